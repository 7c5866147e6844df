"""The benchmarks that an evaluation is on: their questions, which of them are asked, and how answers are judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import EvaluateSettings, ExecutorConfig
from jaxrl_sql.text2sql.benchmarks import Benchmark, load_benchmark, skipped_lines, unused_name
from jaxrl_sql.text2sql.env.files import Predictions
from jaxrl_sql.text2sql.evals.numbers import Counts
from jaxrl_sql.text2sql.evals.predictions import pair, predictions_of, read_predictions
from jaxrl_sql.text2sql.evals.score_predictions import check_rules
from jaxrl_sql.text2sql.prompts.dialects import placed, refuse_translated
from jaxrl_sql.text2sql.question_sets.filters import keep_only
from jaxrl_sql.text2sql.question_sets.hiding import check_hide, hide_in_benchmark
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import Example, InputError

_RULES = ("bird", "refined", "test_suite")


class Memory(NamedTuple):
    """Questions and predictions of a caller in Python, in place of a folder and a file.

    The configuration has a name for each in `evaluate.data` and `evaluate.predictions`, which errors use.
    """

    benchmark: Benchmark | None = None
    predictions: Mapping[str, str | None] | None = None


class Set(NamedTuple):
    """A benchmark to be judged on: what it is called here, its examples, and how they are compared and counted."""

    name: str
    benchmark: Benchmark
    examples: tuple[Example, ...]
    own: str
    rules: tuple[str, ...]
    counts: Counts
    sqls: Mapping[str, str | None]


def open_sets(
    cfg: EvaluateSettings,
    recipe: str,
    executor: ExecutorConfig,
    hide: Sequence[str],
    notes: list[str],
    memory: Memory = Memory(),  # noqa: B008 - a constant
) -> list[Set]:
    """Load the benchmarks, and the predictions where there are some; lines for the user are added to `notes`.

    `hide` are the columns that nobody is shown (`data.hide`).
    """
    if cfg.predictions and len(cfg.predictions) != len(cfg.data):
        raise InputError(f"{len(cfg.predictions)} files of predictions for {len(cfg.data)} folders: give one for each")
    if cfg.predictions and (cfg.runs > 1 or cfg.samples > 1):
        raise InputError("evaluate.runs and evaluate.samples sample from a model, and predictions are there already")
    if cfg.predictions:  # a model's recipe is looked up when the model is opened
        find_recipe(recipe)
    sets: list[Set] = []
    for at, folder in enumerate(cfg.data):
        # Predictions are paired with all questions first, and a model is asked the first ones alone.
        chooses = cfg.predictions or cfg.include_ids or cfg.answerable_only
        limit = 0 if chooses else cfg.limit
        benchmark = _limited(memory.benchmark, limit) or load_benchmark(folder, cfg.split, limit)
        servers = dataclasses.asdict(executor.databases)
        benchmark = benchmark._replace(examples=placed(benchmark.examples, servers))
        benchmark = hide_in_benchmark(benchmark, hide)
        refuse_translated(benchmark.examples, executor.sqlite_version)
        name = _name_of(benchmark, Path(folder), cfg.split, [one.name for one in sets])
        notes += [f"{name}: {note}" for note in benchmark.notes]
        notes += [f"{name}: {line}" for line in skipped_lines(benchmark.skipped)]
        sets.append(_set(cfg, name, benchmark, _predictions(cfg, at, memory), notes))
    check_hide(hide, (example.db_path for set_ in sets for example in set_.benchmark.examples))
    return sets


def _limited(benchmark: Benchmark | None, limit: int) -> Benchmark | None:
    return benchmark and benchmark._replace(examples=benchmark.examples[: limit or None])


def _predictions(cfg: EvaluateSettings, at: int, memory: Memory) -> Predictions | None:
    """Return the predictions for the set of a number, None where a model answers."""
    if not cfg.predictions:
        return None
    if memory.predictions is not None:
        return predictions_of(memory.predictions, cfg.predictions[at])
    return read_predictions(cfg.predictions[at], cfg.sql_field)


def _name_of(benchmark: Benchmark, folder: Path, split: str, taken: Sequence[str]) -> str:
    name = folder.resolve().name if benchmark.name == "plain" else benchmark.name
    name = f"{name}_{split}" if split else name
    return unused_name(name, taken)


def _set(
    cfg: EvaluateSettings, name: str, benchmark: Benchmark, predictions: Predictions | None, notes: list[str]
) -> Set:
    examples = benchmark.examples
    counts, sqls = Counts(left_out=len(benchmark.skipped)), {}
    asked = chosen(examples, cfg, name, notes)
    if predictions is not None:
        order, may_miss = all_ids(benchmark), cfg.allow_missing or len(asked) < len(examples)
        paired = pair(predictions, examples, order, may_miss, cfg.allow_extra)
        notes += paired.notes
        sqls = paired.sqls
        missing = [one.uid for one in asked if one.uid not in sqls]
        if missing and not cfg.allow_missing:
            raise InputError(
                f"{predictions.path}: {len(missing)} of the {len(asked)} questions that are asked for have no "
                f"prediction, such as {missing[0]}: --allow-missing leaves them out"
            )
        asked = tuple(one for one in asked if one.uid in sqls)
        counts = counts._replace(missing=len(missing), extra=paired.extra)
        if not asked:
            raise InputError(f"{predictions.path}: none of the first {len(missing)} questions has a prediction")
    examples = asked
    has_suite = any(example.suite for example in examples)
    if has_suite:  # a database without variants is its own suite
        examples = tuple(dataclasses.replace(one, suite=one.suite or (one.database,)) for one in examples)
    own = cfg.rule or ("suite" if benchmark.rule == "test_suite" and has_suite else benchmark.rule)
    rules = tuple(dict.fromkeys((*(cfg.rules or [*_RULES, *(["suite"] if has_suite else [])]), own)))
    check_rules(rules)
    return Set(name, benchmark, examples, own, rules, counts, sqls)


def chosen(examples: Sequence[Example], cfg: EvaluateSettings, name: str, notes: list[str]) -> tuple[Example, ...]:
    """Return the questions that are asked: those with an answer, of a list of ids, the first ones, as it is wanted."""
    found = [example for example in examples if example.answerable or not cfg.answerable_only]
    if cfg.include_ids:
        found = keep_only(found, cfg.include_ids)
    if not found:
        raise InputError(f"{name}: no question is left by evaluate.answerable_only")
    if len(found) < len(examples):
        by = [key for key in ("include_ids", "answerable_only") if getattr(cfg, key)]
        notes.append(f"{name}: {len(found)} of {len(examples)} questions are asked (evaluate.{', evaluate.'.join(by)})")
    return tuple(found[: cfg.limit] if cfg.limit else found)


def all_ids(benchmark: Benchmark) -> list[str]:
    """Return the ids of all questions, in the order of the benchmark's file."""
    return [*(benchmark.order or (example.uid for example in benchmark.examples))]
