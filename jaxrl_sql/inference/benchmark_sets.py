"""The benchmarks of an evaluation: their questions, the selection, and the rules for judging answers.

A rule compares the rows of an answer with those of the gold, the reference query. `bird` compares them as sets, as
BIRD's script does. `refined` compares them as multisets, with the cells of each row sorted. `test_suite` compares them
as Spider's script does, on the question's own database, and `suite` also on further databases with other rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import EvaluateSettings, ExecutorConfig
from jaxrl_sql.databases.question_files import load_benchmark
from jaxrl_sql.runtime.progress import ProgressCallback, agree, no_progress, quantity
from jaxrl_sql.text2sql.benchmarks import Benchmark, make_unique_name, summarize_skipped
from jaxrl_sql.text2sql.benchmarks.benchmark import label_notes
from jaxrl_sql.text2sql.env.files import Predictions
from jaxrl_sql.text2sql.evals.numbers import ExcludedCounts
from jaxrl_sql.text2sql.evals.predictions import pair, predictions_of, read_predictions
from jaxrl_sql.text2sql.evals.score_predictions import check_rules
from jaxrl_sql.text2sql.prompts.dialects import check_translation_support, with_server_urls
from jaxrl_sql.text2sql.question_sets.filters import keep_only
from jaxrl_sql.text2sql.question_sets.hiding import check_hide, hide_in_benchmark
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import Example, InputError

# Rules that every evaluation reports unless `evaluate.rules` is set.
_DEFAULT_RULES = ("bird", "refined", "test_suite")


class InMemoryData(NamedTuple):
    """Questions and predictions passed in Python instead of a folder and a file.

    Errors use the names in `evaluate.data` and `evaluate.predictions`.
    """

    benchmark: Benchmark | None = None
    predictions: Mapping[str, str | None] | None = None


class BenchmarkSet(NamedTuple):
    """A benchmark in an evaluation: its name, the selected `examples`, and the predictions `sqls` by id, if any.

    `rule` decides the accuracy: the setting `evaluate.rule`, or the benchmark's own rule. `rules` are all rules that
    are reported, including `rule`. `counts` are those of questions and predictions without a counterpart.
    """

    name: str
    benchmark: Benchmark
    examples: tuple[Example, ...]
    rule: str
    rules: tuple[str, ...]
    counts: ExcludedCounts
    sqls: Mapping[str, str | None]


def open_sets(
    cfg: EvaluateSettings,
    recipe: str,
    executor: ExecutorConfig,
    hide: Sequence[str],
    notes: list[str],
    memory: InMemoryData = InMemoryData(),  # noqa: B008 - a constant
    database: str = "",
    on_progress: ProgressCallback = no_progress,
) -> list[BenchmarkSet]:
    """Load the benchmarks and any predictions; lines for the user are appended to `notes`.

    `hide` are the hidden columns (`data.hide`), which prompts omit and queries cannot read. `database` is the database
    of questions whose file names none (`data.database`). `memory` has questions and predictions that replace files.
    `on_progress` is called with the number of loaded sets.
    """
    if cfg.predictions and len(cfg.predictions) != len(cfg.data):
        raise InputError(f"{len(cfg.predictions)} files of predictions for {len(cfg.data)} folders: give one for each")
    if cfg.predictions and (cfg.runs > 1 or cfg.samples > 1):
        raise InputError("evaluate.runs and evaluate.samples need a model: with predictions both must be 1")
    if cfg.predictions:  # a model's recipe is looked up when the model is opened
        find_recipe(recipe)
    sets: list[BenchmarkSet] = []
    set_notes: list[tuple[str, Sequence[str]]] = []
    for index, folder in enumerate(cfg.data):
        # Predictions are paired with all questions before the limit; a model needs only the first ones.
        needs_all = cfg.predictions or cfg.include_ids or cfg.answerable_only
        limit = 0 if needs_all else cfg.limit
        benchmark = _truncate(memory.benchmark, limit) or load_benchmark(folder, cfg.split, limit, database)
        servers = dataclasses.asdict(executor.databases)
        benchmark = benchmark._replace(examples=with_server_urls(benchmark.examples, servers))
        benchmark = hide_in_benchmark(benchmark, hide)
        check_translation_support(benchmark.examples, executor.sqlite_version)
        name = _name_of(benchmark, Path(folder), cfg.split, [eval_set.name for eval_set in sets])
        set_notes.append((name, benchmark.notes))
        notes += [f"{name}: {line}" for line in summarize_skipped(benchmark.skipped, benchmark.lines)]
        sets.append(_make_set(cfg, name, benchmark, _read_predictions(cfg, index, memory), notes))
        on_progress(len(sets))
    notes[:0] = label_notes(set_notes)
    check_hide(hide, (example.db_path for eval_set in sets for example in eval_set.benchmark.examples))
    return sets


def _truncate(benchmark: Benchmark | None, limit: int) -> Benchmark | None:
    return benchmark and benchmark._replace(examples=benchmark.examples[: limit or None])


def _read_predictions(cfg: EvaluateSettings, index: int, memory: InMemoryData) -> Predictions | None:
    """Return the predictions for set number `index`; None if a model answers."""
    if not cfg.predictions:
        return None
    if memory.predictions is not None:
        return predictions_of(memory.predictions, cfg.predictions[index])
    return read_predictions(cfg.predictions[index], cfg.sql_field)


def _name_of(benchmark: Benchmark, folder: Path, split: str, used: Sequence[str]) -> str:
    name = folder.resolve().name if benchmark.name in ("plain", "own") else benchmark.name
    name = f"{name}_{split}" if split else name
    return make_unique_name(name, used)


def _make_set(
    cfg: EvaluateSettings, name: str, benchmark: Benchmark, predictions: Predictions | None, notes: list[str]
) -> BenchmarkSet:
    examples = benchmark.examples
    counts, sqls = ExcludedCounts(left_out=len(benchmark.skipped)), {}
    selected = select_questions(examples, cfg, name, notes)
    if predictions is not None:
        order, may_miss = all_ids(benchmark), cfg.allow_missing or len(selected) < len(examples)
        paired = pair(predictions, examples, order, may_miss, cfg.allow_extra)
        notes += paired.notes
        sqls = paired.sqls
        missing = [example.uid for example in selected if example.uid not in sqls]
        if missing and not cfg.allow_missing:
            raise InputError(
                f"{predictions.path}: {len(missing)} of the {len(selected)} questions "
                f"{agree(len(missing), 'have')} no prediction, such as "
                f"{missing[0]}: --allow-missing skips them"
            )
        selected = tuple(example for example in selected if example.uid in sqls)
        counts = counts._replace(missing=len(missing), extra=paired.extra)
        if not selected:
            raise InputError(
                f"{predictions.path}: none of the first {quantity(len(missing), 'questions')} has a prediction"
            )
    examples = selected
    has_suite = any(example.suite for example in examples)
    if has_suite:  # a database without variants is its own suite
        examples = tuple(
            dataclasses.replace(example, suite=example.suite or (example.database,)) for example in examples
        )
    rule = cfg.rule or ("suite" if benchmark.rule == "test_suite" and has_suite else benchmark.rule)
    rules = tuple(dict.fromkeys((*(cfg.rules or [*_DEFAULT_RULES, *(["suite"] if has_suite else [])]), rule)))
    check_rules(rules)
    return BenchmarkSet(name, benchmark, examples, rule, rules, counts, sqls)


def select_questions(
    examples: Sequence[Example], cfg: EvaluateSettings, name: str, notes: list[str]
) -> tuple[Example, ...]:
    """Return the questions selected by `answerable_only`, `include_ids` and `limit`."""
    selected = [example for example in examples if example.answerable or not cfg.answerable_only]
    if cfg.include_ids:
        selected = keep_only(selected, cfg.include_ids)
    if not selected:
        raise InputError(f"{name}: evaluate.answerable_only excludes all of {quantity(len(examples), 'questions')}")
    if len(selected) < len(examples):
        settings = [key for key in ("include_ids", "answerable_only") if getattr(cfg, key)]
        notes.append(
            f"{name}: {len(selected)} of {len(examples)} questions {agree(len(selected), 'are')} selected "
            f"(evaluate.{', evaluate.'.join(settings)})"
        )
    return tuple(selected[: cfg.limit] if cfg.limit else selected)


def all_ids(benchmark: Benchmark) -> list[str]:
    """Return the ids of all questions in the order of the benchmark's file."""
    return [*(benchmark.order or (example.uid for example in benchmark.examples))]
