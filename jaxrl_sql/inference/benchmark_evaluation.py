"""Evaluate on benchmarks: generate or read predictions in parts, judge them, and write the files.

To judge an answer is to run its SQL and the gold (the question's reference query), and to compare their rows by rules.
A run answers all questions once; `evaluate.runs` is the number of runs. Each run is divided into parts, after which the
records of judged questions are saved in a journal, so that the repeated command resumes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import EndpointConfig, EvaluateSettings, ExecutorConfig
from jaxrl_sql.inference.benchmark_sets import BenchmarkSet, InMemoryData, all_ids, open_sets
from jaxrl_sql.inference.fingerprint import (
    checkpoint_settings,
    effort_settings,
    endpoint_settings,
    fingerprint,
    set_digest,
    values_of,
)
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.trained_questions import trained_warning
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.runtime.speed import Speed
from jaxrl_sql.text2sql.env.executor import Executor, make_executor, timing_executor
from jaxrl_sql.text2sql.env.verdicts import is_verdict, raise_if_unreachable
from jaxrl_sql.text2sql.evals.efficiency import SPEED_RULES
from jaxrl_sql.text2sql.evals.endings import finish_reasons, incomplete_warning, why_incomplete
from jaxrl_sql.text2sql.evals.numbers import BenchmarkMetrics, compute_metrics, merge_metrics
from jaxrl_sql.text2sql.evals.records import AnswerJudge, QuestionAnswers
from jaxrl_sql.text2sql.evals.side_by_side import METRICS, RECORDS
from jaxrl_sql.text2sql.evals.submission import write_results, write_submission
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import Example, Fields, InputError, Record

JOURNAL, SPEED = "journal.jsonl", "speed.json"
# The number of answers in a part, and its bounds as a number of questions: a killed run loses at most one part.
_ANSWERS_PER_PART, _MAX_QUESTIONS, _MIN_QUESTIONS = 1024, 128, 8
# Progress updates of the display per part.
_UPDATES_PER_PART = 8
# Files of other commands' folders, which may also contain names that this command writes.
_OTHER_COMMANDS_FILES = ("metrics.jsonl", "checkpoints", "answers.jsonl", "kept.jsonl", "questions.jsonl")


class EvaluationPart(NamedTuple):
    """A part of the work that is saved as a whole: questions of a set in one of its runs, and the part's number."""

    set_index: int
    run: int
    number: int
    examples: tuple[Example, ...]


# Answers a part's questions; the callback gets (number of answers, total).
Answer = Callable[[BenchmarkSet, EvaluationPart, Callable[[int, int], None]], list[QuestionAnswers]]


class EvaluationResult(NamedTuple):
    """A finished evaluation: the metrics of each set, those of all sets together (`numbers`), and the records.

    There is a record per question and run. `warnings` are lines on incomplete answers, and on questions that the model
    was trained on. `speed` has the content of `speed.json`, or None if no model answered in this call. `files` are the
    written ones.
    """

    sets: list[BenchmarkMetrics]
    numbers: Mapping[str, float]
    records: list[Record]
    warnings: list[str]
    speed: Mapping[str, float] | None
    files: list[Path]


def evaluate(
    policy: PolicySpec,
    cfg: EvaluateSettings,
    limits: ExecutorConfig,
    config_text: str,
    display_kind: str = "none",
    memory: InMemoryData = InMemoryData(),  # noqa: B008 - a constant
) -> EvaluationResult:
    """Answer or read predictions, judge them, and write the files of `evaluate.out`.

    `limits` are those of the executor. `config_text` becomes the content of `config.yaml`, and `display_kind` is a
    value of `run.display`. `memory` has questions and predictions in place of files. Raises InputError for invalid
    input, and OSError if a file cannot be written.
    """
    out, hide = Path(cfg.out), policy.data.hide
    speed = Speed()
    notes: list[str] = []
    answerer, folders = policy.model.checkpoint or cfg.model or ", ".join(cfg.predictions), ", ".join(cfg.data)
    with ExitStack() as stack:
        display = stack.enter_context(make_display(display_kind, 0, f"{answerer} on {folders}", unit="question"))
        with display.task(f"reading {folders}", len(cfg.data), "sets") as on_progress:
            sets = open_sets(cfg, policy.recipe, limits, hide, notes, memory, policy.data.database, on_progress)
        display.set_phases([("", sum(len(eval_set.examples) for eval_set in sets) * cfg.runs)])
        _make_folder(out, cfg.predictions if memory.predictions is None else ())
        executor = stack.enter_context(make_executor(limits, hide))
        settings = answer_settings(policy, cfg, limits, sets)
        journal = Journal(out / JOURNAL, settings | judge_settings(cfg, sets), option="--out (evaluate.out)")
        stack.enter_context(journal)
        (out / CONFIG).write_text(config_text, encoding="utf-8")
        for note in notes:
            display.note(note)
        timer = timing_executor(executor) if any({*SPEED_RULES} & {*eval_set.rules} for eval_set in sets) else None
        with timer or nullcontext():
            answers = _open_answers(policy, cfg, settings, sets, executor, display)
            records = collect_records(cfg, sets, answers, executor, timer, journal, display, speed)
        files: list[Path] = []
        for index, eval_set in enumerate(sets):
            files += write_predictions(out, executor, sets, eval_set, records[index, 0])
    results = [
        compute_metrics(
            eval_set.name,
            eval_set.rule,
            eval_set.examples,
            [records[index, run] for run in range(cfg.runs)],
            eval_set.counts,
        )
        for index, eval_set in enumerate(sets)
    ]
    lines = record_lines(sets, records)
    metrics = merge_metrics(results)
    write(out, lines, metrics)
    warnings = incomplete_warnings(cfg, [record for run in records.values() for record in run])
    if checkpoint := policy.model.checkpoint:
        trained = [trained_warning(eval_set.name, eval_set.examples, checkpoint, cfg.split) for eval_set in sets]
        warnings += [warning for warning in trained if warning]
    speed_metrics = speed.metrics() if speed.tokens else None
    if speed_metrics is not None:  # separate from metrics.json, which is reproducible and has no times
        (out / SPEED).write_text(json.dumps(speed_metrics, indent=2) + "\n", encoding="utf-8")
        files.append(out / SPEED)
    return EvaluationResult(results, metrics, lines, warnings, speed_metrics, [*files, out / RECORDS, out / METRICS])


def answer_settings(
    policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, sets: Sequence[BenchmarkSet]
) -> Record:
    """Return the settings that answers and their scores depend on.

    A journal with other settings in the output folder is an error.
    """
    excluded = {
        "data",
        "predictions",
        "sql_field",
        "out",
        "max_num_seqs",
        "allow_missing",
        "allow_extra",
        "rules",
        "rule",
    }
    excluded |= {field.name for field in dataclasses.fields(EndpointConfig)} - {"model"}
    data, model = policy.data, policy.model
    answerer: Record = {}
    if model.checkpoint:
        answerer = checkpoint_settings(policy.recipe, data, model)
    elif cfg.base_url:
        answerer = endpoint_settings(policy.recipe, data)
    settings = {
        "sets": {eval_set.name: set_digest(eval_set.examples, eval_set.sqls) for eval_set in sets},
        **answerer,  # before other settings, whose defaults depend on the model: an error names the first that differs
        "rules": {eval_set.name: eval_set.rules for eval_set in sets},
        "seed": policy.seed,
        "data.max_prompt_tokens": data.max_prompt_tokens,
        **values_of(cfg, "evaluate", exclude=excluded),
        **effort_settings(cfg, "evaluate"),
    }
    return fingerprint(settings, data, limits)


def judge_settings(cfg: EvaluateSettings, sets: Sequence[BenchmarkSet]) -> Record:
    """Return further settings of records: the rules, if there are several samples.

    Each sample is then judged only by its set's rule, so the records of another rule cannot be reused.
    """
    return {"own": {eval_set.name: eval_set.rule for eval_set in sets}} if cfg.samples > 1 else {}


def collect_records(
    cfg: EvaluateSettings,
    sets: Sequence[BenchmarkSet],
    answers: AbstractContextManager[Answer],
    executor: Executor,
    timer: Executor | None,
    journal: Journal,
    display: Display,
    speed: Speed,
) -> dict[tuple[int, int], list[Record]]:
    """Return the records of each (set, run) in the order of its examples.

    Records of the journal are reused, except those without a verdict. `answers` yields the function that answers
    questions, and is opened only if records are missing. `timer` is the executor that measures speed, if a rule does.
    """
    judged_records = [record for record in journal.records if is_verdict(record["status"], record.get("stop"))]
    finished = {(record["set"], record["run"], record["id"]): record for record in judged_records}
    parts = [*divide_into_parts(cfg, sets)]
    names = [eval_set.name for eval_set in sets]
    pending = [
        part
        for part in parts
        if any((names[part.set_index], part.run, example.uid) not in finished for example in part.examples)
    ]
    # Before the model is loaded: a server that does not answer, or refuses its role.
    raise_if_unreachable(executor, (example.database for part in pending for example in part.examples))
    if finished:
        display.note(f"resuming: {quantity(len(finished), 'answers', 'are')} judged already")
    total, activity = sum(len(part.examples) for part in parts), "judging" if cfg.predictions else "answering"
    with (
        answers if pending else nullcontext() as answer,
        display.task(activity, total, "questions") if pending else nullcontext(),
    ):
        for part in pending:
            part_set = sets[part.set_index]
            answered = _answer_part(answer, part_set, part, len(finished), display, speed) if answer else []
            with display.task("judging", len(answered), "questions", is_announced=False) as on_progress:
                records = _make_judge(cfg, executor, part_set, timer).records(part.examples, answered, on_progress)
            for record in records:
                key = (part_set.name, part.run, record["id"])
                if key not in finished:
                    finished[key] = {"set": part_set.name, "run": part.run, **record}
                    journal.add(finished[key])
            speed_metrics = {"speed/tokens_per_s": speed.tokens_per_s} if speed.tokens else {}
            display.update(len(finished), {"phase": "judged", **speed_metrics, **_running_accuracy(sets, finished)})
    runs = range(cfg.runs)
    return {
        (index, run): [
            {**finished[eval_set.name, run, example.uid], "own": eval_set.rule} for example in eval_set.examples
        ]
        for index, eval_set in enumerate(sets)
        for run in runs
    }


def _answer_part(
    answer: Answer, eval_set: BenchmarkSet, part: EvaluationPart, before: int, display: Display, speed: Speed
) -> list[QuestionAnswers]:
    """Answer a part's questions and show the progress; `before` is the number of questions answered earlier."""
    size, start_time = len(part.examples), time.perf_counter()
    with display.task(f"part {part.number + 1} of {eval_set.name}", size, "questions", is_announced=False) as advance:

        def on_progress(answers: int, total: int) -> None:
            advance(answers * size // total)
            if answers % -(-total // _UPDATES_PER_PART) == 0:
                display.update(before + answers * size // total, {"phase": "answering"})

        answered = answer(eval_set, part, on_progress)
    speed.add(len(answered), sum(answer_.tokens for answer_ in answered), time.perf_counter() - start_time)
    return answered


def _make_judge(
    cfg: EvaluateSettings, executor: Executor, eval_set: BenchmarkSet, timer: Executor | None
) -> AnswerJudge:
    """Return the judge of a set's answers."""
    options = {"strip_distinct": cfg.strip_distinct, "surplus_columns": cfg.surplus_columns or None}
    return AnswerJudge(executor, eval_set.rules, eval_set.rule, cfg.vote, timer, eval_set.benchmark.prepare, options)


def divide_into_parts(cfg: EvaluateSettings, sets: Sequence[BenchmarkSet]) -> Iterator[EvaluationPart]:
    """Yield the parts of the work in order, independent of finished ones.

    The sizes of a set's parts differ by at most one question, because a small last part would need another compilation.
    """
    max_questions = max(_MIN_QUESTIONS, min(_MAX_QUESTIONS, _ANSWERS_PER_PART // cfg.samples))
    for index, eval_set in enumerate(sets):
        count, size = -(-len(eval_set.examples) // max_questions), len(eval_set.examples)
        for run in range(cfg.runs):
            for i in range(count):
                yield EvaluationPart(index, run, i, eval_set.examples[size * i // count : size * (i + 1) // count])


def _running_accuracy(
    sets: Sequence[BenchmarkSet], finished: Mapping[tuple[str, int, str], Record]
) -> dict[str, float]:
    """Return the accuracy of each set over the questions that are finished, for the display."""
    rules, scores = {eval_set.name: eval_set.rule for eval_set in sets}, dict[str, list[float]]()
    for (name, _, _), record in finished.items():
        scores.setdefault(name, []).append(record["scores"].get(rules[name], 0.0))
    return {f"eval/{name}/accuracy": sum(values) / len(values) for name, values in scores.items()}


@contextmanager
def _open_answers(
    policy: PolicySpec,
    cfg: EvaluateSettings,
    settings: Fields,
    sets: Sequence[BenchmarkSet],
    executor: Executor,
    display: Display,
) -> Iterator[Answer]:
    """Yield a function that answers questions: from predictions, an endpoint or a model, which is opened first.

    An endpoint's dialogues are saved with the `settings` that they depend on.
    """
    if cfg.predictions:
        yield lambda eval_set, part, _tick: [
            QuestionAnswers((eval_set.sqls[example.uid],)) for example in part.examples
        ]
        return
    if cfg.base_url:
        from jaxrl_sql.inference.endpoint_client import endpoint_answers  # noqa: PLC0415 (predictions need no endpoint)

        with endpoint_answers(cfg, find_recipe(policy.recipe), policy.data, executor, settings, display.note) as ask:
            yield lambda eval_set, part, on_progress: ask(
                eval_set.name, part.examples, part.run, part.number, on_progress
            )
        return
    from jaxrl_sql.inference.policy_client import open_model_answers  # noqa: PLC0415 (predictions are judged without jax)

    with open_model_answers(
        policy, cfg, executor, {eval_set.name: eval_set.examples for eval_set in sets}, display
    ) as ask:
        yield lambda eval_set, part, on_progress: ask(eval_set.name, part.examples, part.run, part.number, on_progress)


def _make_folder(out: Path, predictions: Sequence[str]) -> None:
    """Create the output folder; raises InputError if it has another command's files or the predictions."""
    others = [name for name in _OTHER_COMMANDS_FILES if (out / name).exists()]
    if others:
        raise InputError(f"--out {out} has {others[0]} of another command: name a separate folder")
    if not (out / JOURNAL).exists() and any(
        out.resolve() == Path(prediction).resolve().parent for prediction in predictions
    ):
        raise InputError(f"--out {out} has the predictions, which could be overwritten: choose another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{METRICS}.tmp").touch()
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error


def write_predictions(
    out: Path, executor: Executor, sets: Sequence[BenchmarkSet], eval_set: BenchmarkSet, records: Sequence[Record]
) -> list[Path]:
    """Write the predictions of a run in a benchmark's submission format; return the files."""
    folder = out / eval_set.name if len(sets) > 1 else out
    folder.mkdir(exist_ok=True)
    databases = {example.uid: example.db_id for example in eval_set.benchmark.examples}
    sqls = {record["id"]: record["sql"] for record in records}
    questions = [(uid, databases.get(uid, "")) for uid in all_ids(eval_set.benchmark)]
    written = write_submission(eval_set.benchmark.submission, folder, questions, sqls)
    if eval_set.benchmark.submission == "spider2":
        written.append(write_results(executor, folder, eval_set.examples, sqls))
    return written


def record_lines(sets: Sequence[BenchmarkSet], records: Mapping[tuple[int, int], list[Record]]) -> list[Record]:
    """Return the lines of records.jsonl, with set and run if there are several."""
    runs = 1 + max(run for _, run in records)
    lines = []
    for (index, run), records_of_run in records.items():
        labels = ({"set": sets[index].name} if len(sets) > 1 else {}) | ({"run": run} if runs > 1 else {})
        lines += [
            labels | {key: value for key, value in record.items() if key not in ("set", "run")}
            for record in records_of_run
        ]
    return lines


def write(out: Path, lines: Sequence[Record], metrics: Mapping[str, float]) -> None:
    """Write the records, then the metrics, whose file marks a finished evaluation."""
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    (out / RECORDS).write_text(text, encoding="utf-8")
    scratch = out / f"{METRICS}.tmp"
    scratch.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    scratch.replace(out / METRICS)


def incomplete_warnings(cfg: EvaluateSettings, records: Sequence[Record]) -> list[str]:
    """Return the share of answers that are incomplete, a line per reason, with the setting to raise."""
    counts = finish_reasons(records)
    lines = [(count, why_incomplete(reason, cfg)) for reason, count in counts.items()]
    return [incomplete_warning(count, counts.total(), cause) for count, cause in lines if cause]
