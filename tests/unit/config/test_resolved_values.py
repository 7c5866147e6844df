"""Every shipped configuration resolves to the values of resolved_values.json, except for changes listed here."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[3]


def load_script() -> ModuleType:
    path = ROOT / "scripts/write_resolved_values.py"
    spec = importlib.util.spec_from_file_location("write_resolved_values", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses looks up the module
    spec.loader.exec_module(module)
    return module


script = load_script()


class Changes(NamedTuple):
    """Changes since the table was written; keys have the table's names.

    `intended` maps (pattern of entries, key) to the new value and the reason. An item without an effect is an error.
    `unread` maps a pattern of keys to a predicate and the reason. The predicate returns whether nothing reads the keys,
    given an entry's values. `renamed` maps a table's key to its present name. `removed` maps a removed key to the
    reason.
    """

    intended: Mapping[tuple[str, str], tuple[Any, str]] = {}
    unread: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], str]] = {}
    renamed: Mapping[str, str] = {}
    removed: Mapping[str, str] = {}


_DEFAULT = "the default is that of the field; no file of a published system or a small run keeps it"
_SUPERVISED = "`jaxrl-sql sft` runs it, which has no GRPO"
_EVALUATED = "scripts/gemma_spider.sh gives evaluations their own limit"
INTENDED: dict[tuple[str, str], tuple[Any, str]] = {
    ("*", "model.compute_dtype"): ("bfloat16", "where weights are bfloat16 this is the same type"),
    ("configs/own_database.yaml", "model.checkpoint"): ("runs/spider/model", "the page's own start; it was required"),
    ("configs/own_database.yaml + --model", "evaluate.max_new_tokens"): (128, "the limit of its validation"),
    ("configs/distill.yaml", "executor.vm_steps"): (300_000_000, _DEFAULT),
    ("configs/evaluate.yaml", "executor.vm_steps"): (300_000_000, "a model's defaults are over it: see with --model"),
    ("configs/gemma_spider.yaml + --model", "executor.vm_steps"): (20_000_000, _EVALUATED),
    ("configs/gpu_spider*.yaml + --model", "executor.vm_steps"): (20_000_000, _EVALUATED),
    ("configs/*_sft*.yaml", "sampling.max_new_tokens"): (1024, _SUPERVISED),
    ("configs/*_sft*.yaml", "grpo.group_std_ddof"): (1, _SUPERVISED),
    ("configs/*_sft*.yaml", "grpo.optim.lr"): (1e-6, _SUPERVISED),
    ("configs/*_sft*.yaml", "grpo.optim.beta2"): (0.999, _SUPERVISED),
    ("configs/tiny.yaml", "grpo.group_std_ddof"): (1, "a base alone: the recipes that it makes small name theirs"),
    ("configs/verbal.yaml", "data.max_prompt_tokens"): (2048, "prompts of any length are asked"),
    ("configs/as/arctic.yaml", "data.retrieve"): (20, "the authors' evaluation always shows values"),
    ("configs/as/arctic.yaml", "evaluate.max_new_tokens"): (8192, "the limit of the authors' evaluation"),
    ("configs/as/think2sql.yaml", "evaluate.top_k"): (0, "the authors' evaluation sends none"),
    ("configs/as/think2sql.yaml", "evaluate.repetition_penalty"): (1.0, "1.1 is training's alone"),
    ("configs/as/paverl.yaml", "data.max_prompt_tokens"): (64_000, "the model length of the authors' evaluation"),
    ("configs/distill.yaml", "recipe"): ("omnisql", "the authors ask OmniSQL's prompt"),
    ("configs/distill.yaml", "distill.samples"): (1, "the authors ask once"),
    ("configs/think2sql_sft*.yaml", "sft.optim.lr"): (4e-5, "the released script's"),
    ("configs/think2sql_sft*.yaml", "sft.optim.warmup_steps"): (18, "10 % of 178 steps, as released"),
    ("configs/think2sql_sft*.yaml", "sft.eval_every"): (5, "as released"),
}


def _reads_no_questions(values: Mapping[str, Any]) -> bool:
    """Return whether an entry's command reads neither the questions of `evaluate.data` nor those of training."""
    return "evaluate.data" in values or "grpo.steps" not in values


def _has_no_sft(values: Mapping[str, Any]) -> bool:
    return not (values.get("sft.steps") or values.get("sft.epochs"))


def _has_no_grpo(values: Mapping[str, Any]) -> bool:
    return not values.get("grpo.steps")


UNREAD: dict[str, tuple[Callable[[Mapping[str, Any]], bool], str]] = {
    "sft.*": (_has_no_sft, "there is no supervised phase"),
    "grpo.optim.*": (_has_no_grpo, "there are no GRPO steps"),
    "grpo.group_std_ddof": (
        lambda values: _has_no_grpo(values) or values["grpo.advantage"] != "group",
        "the advantage is not divided by the group's deviation",
    ),
    "sampling.max_new_tokens": (_has_no_grpo, "there are no GRPO steps"),
    "model.[im]*": (
        lambda values: bool(values["model.checkpoint"]) or "grpo.steps" not in values,
        "no model is made from scratch, whose init and max_positions they are",
    ),
    "data.source": (lambda values: "evaluate.data" in values, "the questions are those of evaluate.data"),
    "data.dir": (lambda values: "evaluate.data" in values, "the questions are those of evaluate.data"),
    "data.evals": (_reads_no_questions, "no splits are evaluated"),
    "data.prompt": (lambda values: "distill.base_url" in values, "an endpoint gets chats"),
    "data.max_prompt_tokens": (lambda values: "model.dtype" not in values, "there is no tokenizer"),
}
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "turns", "max_total_tokens",
)  # fmt: skip
_LOSS = (
    "max_completion_tokens", "importance_sampling_level", "mask_truncated", "tis_clip_max", "entropy_bonus",
)  # fmt: skip
RENAMED: dict[str, str] = {
    "grpo.clip_low": "grpo.clip.low",
    "grpo.clip_high": "grpo.clip.high",
    "grpo.dual_clip": "grpo.clip.dual",
    "grpo.kl_coef": "grpo.kl.coef",
    "grpo.kl_kind": "grpo.kl.estimator",
    "grpo.kl_in": "grpo.kl.placement",
    "data.retrieve": "data.retrieval.top_k",
    "data.matched": "data.retrieval.placement",
    "data.synonyms": "data.retrieval.synonyms",
    **{f"grpo.{name}": f"grpo.ppo.{name}" for name in ("gae_lambda", "discount", "value_coef", "value_clip")},
    **{f"evaluate.{name}": f"evaluate.sampling.{name}" for name in _SAMPLING},
    **{f"data.{name}": f"data.chat.{name}" for name in ("template", "thinking", "assistant_prefill", "date")},
    "data.tokenizer": "data.tokenizer.path",
    **{f"data.{name}": f"data.tokenizer.{name}" for name in ("vocab_size", "eos_token")},
    **{
        f"data.{name}": f"data.select.{name}"
        for name in ("include_ids", "limit_train", "limit_eval", "drop_empty_gold")
    },
    "grpo.loss_agg_mode": "grpo.loss.agg_mode",
    **{f"grpo.{name}": f"grpo.loss.{name}" for name in _LOSS},
    **{
        f"grpo.{name}": f"grpo.dynamic_sampling.{name}"
        for name in ("oversample", "max_extra_generations", "filter_groups")
    },
    "validation.max_new_tokens": "validation.sampling.max_new_tokens",
    "validation.turns": "validation.sampling.turns",
}
REMOVED: dict[str, str] = {}
CHANGES = Changes(INTENDED, UNREAD, RENAMED, REMOVED)

Resolved = Mapping[Any, Mapping[str, Any]]


def part_of(entry: Any) -> str:
    return script.PREPARE if entry.command == script.PREPARE else "settings"


def required_layers(entry: Any) -> tuple[str, ...]:
    """Return the names that the table must have for an entry: a pair may add no values to its two files."""
    return entry.layers[-2:]


def table_values(part: Mapping[str, Any], entry: Any, keys: Iterable[str]) -> dict[str, Any]:
    """Return the table's values for an entry's keys, without keys that the table lacks."""
    shared = {key: script.generalize_key(key) for key in keys}
    known = {key: part["common"][name] for key, name in shared.items() if name in part["common"]}
    for layer in reversed(entry.layers):
        known |= part["entries"].get(layer, {})
    return known


def changed_values(resolved: Resolved, table: Mapping[str, Any], changes: Changes) -> Iterator[str]:
    """Yield a line per unintended difference and per intention without effect; 1 and 1.0 differ.

    Skip a configuration that the table lacks: `entry_errors` reports it.
    """
    table_name = {new: old for old, new in changes.renamed.items()}
    effective = set()
    for entry, values in resolved.items():
        part = table[part_of(entry)]
        if not set(required_layers(entry)) <= set(part["entries"]):
            continue
        by_table = {table_name.get(key, key): (key, value) for key, value in values.items()}
        known = table_values(part, entry, by_table)
        for old_key, (key, value) in by_table.items():
            if old_key not in known or repr(value) == repr(known[old_key]):
                continue
            if any(fnmatchcase(key, keys) and is_unread(values) for keys, (is_unread, _) in changes.unread.items()):
                continue
            reasons = {
                (pattern, intended_key)
                for (pattern, intended_key), (new, _) in changes.intended.items()
                if (intended_key, repr(new)) == (old_key, repr(value))
                if fnmatchcase(entry.name, pattern)
            }
            effective |= reasons
            if not reasons:
                yield f"{entry.name}: {key} is {value!r}, in the table {known[old_key]!r}"
    yield from (f"INTENDED {item} changes no entry" for item in changes.intended if item not in effective)


def lost_keys(resolved: Resolved, table: Mapping[str, Any], changes: Changes) -> Iterator[str]:
    """Yield a line per lost key of the table, and per invalid rename or removal.

    An entry has only the sections of its command's root: keys of other sections are not expected.
    """
    for entry, values in resolved.items():
        part = table[part_of(entry)]
        differing = [key for layer in entry.layers for key in part["entries"].get(layer, {})]
        sections = {field.name for field in dataclasses.fields(script.ROOTS[entry.command])}
        for old_key in dict.fromkeys((*part["common"], *differing)):
            key = changes.renamed.get(old_key, old_key)
            if key in values or old_key in changes.removed or ".*." in key:
                continue
            if key.partition(".")[0] in sections:
                yield f"{entry.name}: {key} is gone"
    today = {script.generalize_key(key) for values in resolved.values() for key in values}
    written = {key for part in table.values() for key in part["common"]}
    for key in written - set(changes.renamed) - set(changes.removed) - today:
        yield f"{key} is in no root"
    yield from (f"RENAMED {old}: the table has no such key" for old in changes.renamed if old not in written)
    yield from (f"RENAMED {new}: no root has this key" for new in changes.renamed.values() if new not in today)
    yield from (f"REMOVED {key}: the table has no such key" for key in changes.removed if key not in written)
    yield from (f"REMOVED {key}: a root still has it" for key in changes.removed if key in today)


def entry_errors(resolved: Resolved, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per configuration that the table lacks, and per name of the table without a configuration."""
    for name, part in table.items():
        entries = [entry for entry in resolved if part_of(entry) == name]
        needed = {layer for entry in entries for layer in required_layers(entry)}
        yield from (f"{layer} is not in the table" for layer in needed - set(part["entries"]))
        unknown = set(part["entries"]) - needed - {entry.name for entry in entries}
        yield from (f"{layer} of the table is no configuration" for layer in unknown)


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return json.loads(script.TABLE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def resolved() -> dict[Any, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.delenv("JAXRL_SQL_DATA", raising=False)
        configs = {entry: script.load(entry) for entry in script.entries()}
    for entry, config in configs.items():
        assert type(config) is script.ROOTS[entry.command], entry.name
    return {entry: script.values_of(config) for entry, config in configs.items()}


def test_every_configuration_is_in_the_table(resolved: Resolved, table: dict[str, Any]) -> None:
    errors = sorted(entry_errors(resolved, table))
    assert not errors, "\n".join(errors)
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    named = {name for entry in resolved for name in (*entry.files, entry.name)}
    assert {path for path in shipped - named if not Path(path).name.startswith("_")} == set()


def test_resolved_values_equal_the_table(resolved: Resolved, table: dict[str, Any]) -> None:
    errors = list(changed_values(resolved, table, CHANGES))
    assert not errors, "\n".join(errors)


def test_every_key_of_the_table_is_kept_renamed_or_removed(resolved: Resolved, table: dict[str, Any]) -> None:
    errors = sorted(lost_keys(resolved, table, CHANGES))
    assert not errors, "\n".join(errors)


def test_table_names_no_folder_of_a_machine(table: dict[str, Any]) -> None:
    texts = [text for part in table.values() for text in map(script.as_text, part.values())]
    assert all(str(ROOT) not in text and '"/' not in text for text in texts)


ARCTIC = script.Entry("train", ("configs/arctic.yaml",))
ON_GPU = script.Entry("train", ("configs/arctic.yaml", "configs/on/gpu_80gb.yaml"))
PAIR = "configs/arctic.yaml + configs/on/gpu_80gb.yaml"
SMALL: dict[str, Any] = {
    "settings": {
        "common": {"seed": 0, "grpo.steps": 100, "mesh.fsdp": -1},
        "entries": {"configs/arctic.yaml": {"grpo.steps": 7}, "* + configs/on/gpu_80gb.yaml": {"mesh.fsdp": 1}},
    }
}


def resolved_with(**values: Any) -> dict[Any, dict[str, Any]]:
    """Return the values of SMALL with other values in both entries; None removes a key."""
    expected = {
        ARCTIC: {"seed": 0, "grpo.steps": 7, "mesh.fsdp": -1},
        ON_GPU: {"seed": 0, "grpo.steps": 7, "mesh.fsdp": 1},
    }
    return {
        entry: {key: value for key, value in {**known, **values}.items() if value is not None}
        for entry, known in expected.items()
    }


@pytest.mark.parametrize(
    ("values", "changes", "errors"),
    [
        ({}, Changes(), []),
        ({"new": 1}, Changes(), []),
        ({"mesh.fsdp": 1}, Changes(), ["configs/arctic.yaml: mesh.fsdp is 1, in the table -1"]),
        ({"grpo.steps": 7.0}, Changes({("*", "grpo.steps"): (7.0, "")}), []),
        (
            {"seed": False},
            Changes({("*/on/*", "seed"): (False, "")}),
            ["configs/arctic.yaml: seed is False, in the table 0"],
        ),
        ({}, Changes({("*", "seed"): (1, "")}), ["INTENDED ('*', 'seed') changes no entry"]),
        ({"seed": None, "first": 0}, Changes(renamed={"seed": "first"}), []),
        (
            {"seed": None, "first": 2},
            Changes(renamed={"seed": "first"}),
            ["configs/arctic.yaml: first is 2, in the table 0", f"{PAIR}: first is 2, in the table 0"],
        ),
    ],
)
def test_changed_value_is_an_error_unless_intended(values: dict[str, Any], changes: Changes, errors: list[str]) -> None:
    assert list(changed_values(resolved_with(**values), SMALL, changes)) == errors


@pytest.mark.parametrize(
    ("values", "changes", "errors"),
    [
        ({}, Changes(), set()),
        (
            {"grpo.steps": None},
            Changes(),
            {
                "configs/arctic.yaml: grpo.steps is gone",
                f"{PAIR}: grpo.steps is gone",
                "grpo.steps is in no root",
            },
        ),
        ({"grpo.steps": None, "grpo.n": 7}, Changes(renamed={"grpo.steps": "grpo.n"}), set()),
        ({"grpo.steps": None}, Changes(removed={"grpo.steps": ""}), set()),
        (
            {},
            Changes(removed={"seed": "", "x": ""}),
            {"REMOVED seed: a root still has it", "REMOVED x: the table has no such key"},
        ),
        ({}, Changes(renamed={"x": "z"}), {"RENAMED x: the table has no such key", "RENAMED z: no root has this key"}),
    ],
)
def test_lost_key_is_an_error_unless_renamed_or_removed(
    values: dict[str, Any], changes: Changes, errors: set[str]
) -> None:
    assert set(lost_keys(resolved_with(**values), SMALL, changes)) == errors


def test_missing_and_surplus_entries_are_errors() -> None:
    other = script.Entry("train", ("configs/other.yaml",))
    errors = set(entry_errors({ARCTIC: {}, other: {}}, SMALL))
    assert errors == {
        "configs/other.yaml is not in the table",
        "* + configs/on/gpu_80gb.yaml of the table is no configuration",
    }
