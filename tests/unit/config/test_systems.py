"""Settings of published evaluations in `configs/as/`, for `evaluate --as SYSTEM`."""

from __future__ import annotations

from typing import Any

import pytest

from jaxrl_sql.config import EvaluateConfig
from jaxrl_sql.config.check import flatten
from jaxrl_sql.config.load import SYSTEMS, apply_published_settings, load_config
from jaxrl_sql.types import InputError

CHAT = {
    "prompt": "chat", "chat": {"thinking": "template", "assistant_prefill": "", "template": ""}, "schema": "recipe",
    "max_prompt_tokens": 8192, "retrieval": {"top_k": 0, "placement": "examples", "synonyms": ""}, "shots": 0,
    "schema_budget": 0,
}  # fmt: skip
ONCE = {"samples": 1, "runs": 1}
GREEDY = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    "turns": 1, "max_new_tokens": 2048, "max_total_tokens": 0, "stop": [],
}  # fmt: skip
REFINED = {"runs": 3, "rule": "refined"}
QWEN3 = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_new_tokens": 4096}
# (recipe, values that differ: in `data` from CHAT, in `evaluate.sampling` from GREEDY, elsewhere in `evaluate` from
# ONCE)
EXPECTED: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "omnisql": ("omnisql", {"retrieval": {**CHAT["retrieval"], "top_k": 20}}, {}, {}),
    "arctic": ("arctic", {}, {"max_new_tokens": 4096}, {}),
    "sql_r1": ("sql_r1", {}, {"temperature": 0.8}, {"samples": 8, "vote": "result"}),
    "paverl": ("paverl", {}, {}, {"rules": ["bird", "refined", "test_suite", "ex_b", "paverl"]}),
    "think2sql": (
        "think2sql",
        {"chat": {**CHAT["chat"], "thinking": "no_think"}},
        {**QWEN3, "temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1},
        REFINED,
    ),
    "qwen3": ("omnisql", {"chat": {**CHAT["chat"], "thinking": "no_think"}}, QWEN3, REFINED),
    "qwen3_thinking": (
        "omnisql",
        {"chat": {**CHAT["chat"], "thinking": "think"}},
        {**QWEN3, "temperature": 0.6, "top_p": 0.95},
        REFINED,
    ),
    "skyrl_sql": (
        "skyrl_sql",
        {},
        {"turns": 5, "max_new_tokens": 3072, "max_total_tokens": 20480},
        {"rule": "bird"},
    ),
}


def test_each_system_has_one_file() -> None:
    assert sorted(SYSTEMS) == sorted(EXPECTED)


@pytest.mark.parametrize("system", EXPECTED)
def test_settings_equal_the_papers(system: str) -> None:
    recipe, data, sampling, evaluate = EXPECTED[system]
    sampling = {**GREEDY, **sampling}
    expected: dict[str, Any] = {
        "recipe": recipe,
        "data": {**CHAT, **data},
        "evaluate": {**ONCE, **evaluate, "sampling": sampling},
    }
    settings = apply_published_settings(system, {})
    assert settings == expected
    flat = dict(flatten(settings))
    assert {name: type(value) for name, value in flatten(expected)} == {
        name: type(value) for name, value in flat.items()
    }  # 0 == 0.0 and 1 == True
    load_config(EvaluateConfig, None, ["model.checkpoint=folder"], defaults=settings)


def test_settings_replace_defaults_by_section_and_drop_the_runs_sampling() -> None:
    defaults: dict[str, Any] = {
        "seed": 3,
        "data": {"retrieval": {"top_k": 5, "placement": "question"}, "seed": 7},
        "evaluate": {"sampling": {"stop": ["x"], "max_new_tokens": 9}, "max_num_seqs": 4},
        "executor": {"threads": 2},
    }
    settings = apply_published_settings("omnisql", defaults)
    assert (settings["seed"], settings["executor"]) == (3, {"threads": 2})
    assert (settings["data"]["retrieval"]["top_k"], settings["data"]["seed"]) == (20, 7)
    assert (settings["evaluate"]["sampling"], settings["evaluate"]["max_num_seqs"]) == (GREEDY, 4)
    assert defaults["data"] == {"retrieval": {"top_k": 5, "placement": "question"}, "seed": 7}


@pytest.mark.parametrize(
    ("system", "rules"), [("think2sql", {"rule": "refined"}), ("paverl", {"rules": EXPECTED["paverl"][3]["rules"]})]
)
def test_existing_answers_use_only_the_rules(system: str, rules: dict[str, Any]) -> None:
    settings = apply_published_settings(
        system, {"recipe": "arctic", "data": {"retrieval": {"top_k": 5}}, "evaluate": {"runs": 2}}, True
    )
    assert settings == {"recipe": "arctic", "data": {"retrieval": {"top_k": 5}}, "evaluate": {"runs": 2, **rules}}


def test_unknown_system_error_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^--as artic: not one of arctic, .*skyrl_sql.*; the nearest is arctic$"):
        apply_published_settings("artic", {})
