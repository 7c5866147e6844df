"""The settings of published evaluations in `configs/as/`, as `evaluate --as SYSTEM` takes them."""

from __future__ import annotations

from typing import Any

import pytest

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.config.load import SYSTEMS, as_published, load_config
from jaxrl_sql.types import InputError

CHAT = {
    "prompt": "chat", "thinking": "template", "assistant_prefill": "", "template": "", "schema": "recipe",
    "max_prompt_tokens": 8192, "retrieve": 0, "matched": "examples", "synonyms": "", "shots": 0, "schema_budget": 0,
}  # fmt: skip
GREEDY = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    "samples": 1, "runs": 1, "turns": 1, "max_new_tokens": 2048, "max_total_tokens": 0,
}  # fmt: skip
QWEN3 = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "runs": 3, "rule": "refined", "max_new_tokens": 4096}
# (recipe, values of `data` that differ from CHAT, values of `evaluate` that differ from GREEDY)
EXPECTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "omnisql": ("omnisql", {"retrieve": 20}, {}),
    "arctic": ("arctic", {}, {"max_new_tokens": 4096}),
    "sql_r1": ("sql_r1", {}, {"temperature": 0.8, "samples": 8, "vote": "result"}),
    "paverl": ("paverl", {}, {"rules": ["bird", "refined", "test_suite", "ex_b", "paverl"]}),
    "think2sql": (
        "think2sql",
        {"thinking": "no_think"},
        {**QWEN3, "temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1},
    ),
    "qwen3": ("omnisql", {"thinking": "no_think"}, QWEN3),
    "qwen3_thinking": ("omnisql", {"thinking": "think"}, {**QWEN3, "temperature": 0.6, "top_p": 0.95}),
    "skyrl_sql": ("skyrl_sql", {}, {"turns": 5, "max_new_tokens": 3072, "max_total_tokens": 20480, "rule": "bird"}),
}


def test_each_system_has_one_file() -> None:
    assert sorted(SYSTEMS) == sorted(EXPECTED)


@pytest.mark.parametrize("system", EXPECTED)
def test_settings_are_those_of_the_paper(system: str) -> None:
    recipe, data, evaluate = EXPECTED[system]
    expected = {"recipe": recipe, "data": {**CHAT, **data}, "evaluate": {**GREEDY, **evaluate}}
    settings = as_published(system, {})
    assert settings == expected
    for section in ("data", "evaluate"):  # 0 == 0.0 and 1 == True
        types = {name: type(value) for name, value in expected[section].items()}
        assert {name: type(value) for name, value in settings[section].items()} == types
    load_config(TrainConfig, None, ["model.checkpoint=folder"], beneath=settings)


def test_settings_replace_defaults_by_section_and_drop_the_runs_sampling() -> None:
    beneath = {"seed": 3, "sampling": {"stop": ["x"]}, "data": {"retrieve": 5, "seed": 7}, "executor": {"threads": 2}}
    settings = as_published("omnisql", beneath)
    assert (settings["seed"], settings["executor"], "sampling" in settings) == (3, {"threads": 2}, False)
    assert (settings["data"]["retrieve"], settings["data"]["seed"]) == (20, 7)
    assert beneath["data"] == {"retrieve": 5, "seed": 7}


@pytest.mark.parametrize(
    ("system", "rules"), [("think2sql", {"rule": "refined"}), ("paverl", {"rules": EXPECTED["paverl"][2]["rules"]})]
)
def test_answers_that_exist_take_the_rules_alone(system: str, rules: dict[str, Any]) -> None:
    settings = as_published(system, {"recipe": "arctic", "data": {"retrieve": 5}, "evaluate": {"runs": 2}}, True)
    assert settings == {"recipe": "arctic", "data": {"retrieve": 5}, "evaluate": {"runs": 2, **rules}}


def test_unknown_system_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^--as artic: none of arctic, .*skyrl_sql.*; the nearest is arctic$"):
        as_published("artic", {})
