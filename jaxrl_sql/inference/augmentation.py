"""Augment a set: correct golds, reword questions, insert rows, and add tables of other databases.

A gold is a question's reference query. Golds and questions are corrected and reworded by an endpoint's model. Then each
database is copied and changed. A step on a database is `fill`, which inserts rows for golds without result rows, or
`distract`, which adds tables of other databases of the set, the donors. `work.jsonl` is the journal: the repeated
command resumes from it.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import AugmentSettings, DataConfig, DistillSettings, ExecutorConfig, FilterSettings
from jaxrl_sql.databases.copy_database import copy_database, copy_descriptions, refuse_namesakes, write_natural_names
from jaxrl_sql.datagen.augment import Change, Donor, add_tables, fill, fill_by
from jaxrl_sql.datagen.gold_repair import EndpointSession, correct, open_session, rows_prompt
from jaxrl_sql.datagen.rewording import reword
from jaxrl_sql.inference.fingerprint import fingerprint, set_digest, teacher_settings, values_of
from jaxrl_sql.inference.training_set import sqlite_questions
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.text2sql.benchmarks import Benchmark, plain_record
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.question_sets.filters import DroppedQuestion, by_gold, by_text, is_trivial, without_repeats
from jaxrl_sql.text2sql.question_sets.hiding import check_hide
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import Example, InputError, Record

_CHUNK = 64


class _Context(NamedTuple):
    """The common inputs of the steps on a database; `session` asks the endpoint's model (None: no endpoint)."""

    cfg: AugmentSettings
    seed: int
    executor: Executor
    session: EndpointSession | None
    donors: Sequence[Donor]


class AugmentResult(NamedTuple):
    """The counts of changed and dropped questions, and the output folder.

    `reached_limit` is the limit of the endpoint's budget that was reached, or "".
    """

    counts: Mapping[str, int]
    out: Path
    reached_limit: str


def augment(
    cfg: AugmentSettings,
    seed: int,
    data: DataConfig,
    limits: ExecutorConfig,
    teacher: DistillSettings,
    filters: FilterSettings,
) -> AugmentResult:
    """Write the augmented set to `augment.out`; return the counts of changes and dropped questions.

    `teacher` is the endpoint; `filters` apply to the golds and texts of the augmented set.
    """
    out = Path(cfg.out)
    _refuse_foreign_folder(out)
    loaded = sqlite_questions(data, limits.databases)
    examples, dropped = _select_with_golds(data, loaded)
    with (
        Journal(out / "work.jsonl", copy_settings(cfg, seed, data, limits, teacher, loaded.examples)) as journal,
        make_executor(limits, data.hide) as executor,
        open_session(teacher, journal) if _uses_endpoint(cfg) else nullcontext() as session,
    ):
        examples, changes, failed = correct(session, executor, examples, cfg.correct)
        failed_changes = {uid: f"correct: {reason}" for uid, reason in failed.items()} if cfg.correct else {}
        examples, reworded = reword(session, executor, examples, cfg.reword)
        changes += reworded
        by_database: dict[str, list[Example]] = {}
        for example in examples:
            by_database.setdefault(example.db_id, []).append(example)
        donors = [Donor(db_id, questions[0].db_path) for db_id, questions in by_database.items()]
        context = _Context(cfg, seed, executor, session, donors)
        finished = {record["id"]: record for record in journal.records if record.get("step") == "database"}
        for donor in donors:
            record = finished.get(donor.db_id)
            if record is None or not _database_path(out, donor.db_id).is_file():
                record = augment_database(context, donor, by_database[donor.db_id])
                # Failures after the budget was spent are not final: the repeated command tries this database again.
                if not (session and session.is_budget_spent and record["left"]):
                    journal.add(record)
            changes += [Change(entry.pop("step"), entry.pop("id"), entry) for entry in map(dict, record["changes"])]
            failed_changes |= {failure["id"]: f"{failure['step']}: {failure['reason']}" for failure in record["left"]}
        write_natural_names(out, [(donor.db_id, Path(donor.path)) for donor in donors])
        moved = [
            dataclasses.replace(example, db_path=str(_database_path(out, example.db_id)), suite=())
            for example in examples
        ]
        remaining, filtered = _filter(moved, executor, filters)
        dropped += filtered
    counts = write(out, remaining, dropped, changes, failed_changes)
    return AugmentResult(
        counts, out, session.endpoint.budget.reached_limit if session and session.is_budget_spent else ""
    )


def _select_with_golds(data: DataConfig, loaded: Benchmark) -> tuple[list[Example], list[DroppedQuestion]]:
    """Return the questions with a gold, and the dropped ones.

    Raises InputError for hidden columns that no database has, for questions on a server, and for duplicate database
    names.
    """
    check_hide(data.hide, (example.db_path for example in loaded.examples))
    if foreign := next((example for example in loaded.examples if example.engine_url), None):
        raise InputError(f"{data.dir}: {foreign.uid} is on {foreign.dialect}: augment the SQLite files, then copy them")
    dropped = [
        DroppedQuestion(uid, reason if reason.startswith("gold ") else f"cannot be read: {reason}")
        for uid, reason in loaded.skipped
    ]
    dropped += [
        DroppedQuestion(example.uid, "the gold is not SQL") for example in loaded.examples if not example.gold_sql
    ]
    examples = [example for example in loaded.examples if example.gold_sql]
    refuse_namesakes(data.dir, examples)
    return examples, dropped


def _filter(
    examples: Sequence[Example], executor: Executor, filters: FilterSettings
) -> tuple[Sequence[Example], list[DroppedQuestion]]:
    """Return the questions that the filters keep, and those that they drop."""
    remaining, dropped = by_text(examples, filters)
    remaining, others = by_gold(executor, remaining, filters)
    dropped = [*dropped, *others]
    if filters.repeats:
        remaining, others = without_repeats(remaining)
        dropped += others
    return remaining, dropped


def copy_settings(
    cfg: AugmentSettings,
    seed: int,
    data: DataConfig,
    limits: ExecutorConfig,
    teacher: DistillSettings,
    examples: Sequence[Example],
) -> Record:
    """Return the settings that the copies and the endpoint's answers depend on."""
    select = data.select
    chosen = {"data.select.include_ids": select.include_ids, "data.select.limit_train": select.limit_train}
    settings = {"questions": set_digest(examples), "seed": seed} | chosen | values_of(cfg, "augment", ("out",))
    return fingerprint(settings | (teacher_settings(teacher) if _uses_endpoint(cfg) else {}), data, limits)


def _uses_endpoint(cfg: AugmentSettings) -> bool:
    """Return whether any step uses the endpoint."""
    return bool(cfg.correct or cfg.reword or cfg.fill_tries)


def _refuse_foreign_folder(out: Path) -> None:
    """Raise InputError for an output folder with other files, such as the set itself."""
    if out.exists() and not out.is_dir():
        raise InputError(f"augment.out: {out} is not a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "work.jsonl").exists():
        raise InputError(f"augment.out: {out} is not empty and has no work.jsonl; choose another folder")


def _database_path(out: Path, db_id: str) -> Path:
    return out / "databases" / db_id / f"{db_id}.sqlite"


def augment_database(context: _Context, donor: Donor, examples: Sequence[Example]) -> Record:
    """Copy and change one database; return the changes and the failures (`left`) as a record of the journal."""
    cfg = context.cfg
    target = _database_path(Path(cfg.out), donor.db_id)
    scratch = target.with_suffix(".part")
    copy_database(Path(donor.path), scratch)
    rng = random.Random(f"{context.seed}/{donor.db_id}")
    changes: list[Change] = []
    rejected: list[dict[str, str]] = []
    if cfg.fill != "none":
        changes += _fill_empty_golds(context, scratch, examples, rng, rejected)
    if cfg.distractors:
        changes += _add_distractors(context, scratch, donor, examples, rng, rejected)
    copy_descriptions(Path(donor.path), target)
    scratch.replace(target)
    return {"step": "database", "id": donor.db_id, "changes": [change.record() for change in changes], "left": rejected}


def _run_queries(executor: Executor, path: Path, sqls: Sequence[str]) -> list[tuple[Any, ...]]:
    """Run queries and return (status, columns, rows) of each, without the messages of failures."""
    results: list[tuple[Any, ...]] = []
    for start in range(0, len(sqls), _CHUNK):
        outcomes = execute_all(executor, [(str(path), sql) for sql in sqls[start : start + _CHUNK]])
        results += [
            (outcome.status, outcome.columns, outcome.rows) if outcome.status == "ok" else (outcome.status, [], [])
            for outcome in outcomes
        ]
    return results


def _fill_empty_golds(
    context: _Context, path: Path, examples: Sequence[Example], rng: random.Random, rejected: list[dict[str, str]]
) -> list[Change]:
    """Insert rows for golds without result rows, and append the golds without a solution to `rejected`.

    By `augment.fill`, results that are trivial (a single row of only 0 and NULL) count as empty, too. All rows are
    removed again if a gold has no result rows afterwards.
    """
    cfg = context.cfg

    def is_enough(rows: Sequence[tuple[Any, ...]]) -> bool:
        return bool(rows) and not (cfg.fill == "trivial" and is_trivial(rows))

    results = _run_queries(context.executor, path, [example.gold_sql for example in examples])
    empty_golds = [
        example
        for example, (status, _, rows) in zip(examples, results, strict=True)
        if status == "ok" and not is_enough(rows)
    ]
    nonempty_golds = [
        example.gold_sql
        for example, (status, _, rows) in zip(examples, results, strict=True)
        if status == "ok" and rows
    ]
    if not empty_golds:
        return []
    backup = path.with_suffix(".before")
    shutil.copyfile(path, backup)
    changes: list[Change] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        connection.execute("PRAGMA synchronous = OFF")
        schema = read_schema(path)
        for example in empty_golds:
            other_golds = [sql for sql in nonempty_golds if sql != example.gold_sql]
            # A Change, or the reason why there is no solution.
            change = fill(connection, schema, example.uid, example.gold_sql, other_golds, rng, is_enough)
            for attempt in range(cfg.fill_tries if context.session else 0):
                if isinstance(change, Change):
                    break
                assert context.session is not None
                requests = [(example.uid, rows_prompt(example, change if attempt else ""))]
                for uid, script, error in context.session.ask("fill", attempt, requests):
                    change = error or fill_by(connection, uid, example.gold_sql, other_golds, script, is_enough)
            if isinstance(change, Change):
                changes.append(change)
                nonempty_golds.append(example.gold_sql)
            else:
                rejected.append({"step": "fill", "id": example.uid, "reason": change})
    results_after = _run_queries(context.executor, path, list(dict.fromkeys(nonempty_golds)))
    if not all(status == "ok" and rows for status, _, rows in results_after):
        backup.replace(path)
        rejected += [
            {"step": "fill", "id": change.id, "reason": "a gold returned no rows after the insertions"}
            for change in changes
        ]
        return []
    backup.unlink()
    return changes


def _add_distractors(
    context: _Context,
    path: Path,
    donor: Donor,
    examples: Sequence[Example],
    rng: random.Random,
    rejected: list[dict[str, str]],
) -> list[Change]:
    """Add tables of the other databases; they are removed again if the result of a gold changes."""
    cfg = context.cfg
    sqls = [sql for example in examples for sql in (example.gold_sql, *example.other_golds)]
    results = _run_queries(context.executor, path, sqls)
    backup = path.with_suffix(".before")
    shutil.copyfile(path, backup)
    with closing(sqlite3.connect(path, uri=True)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        changes = add_tables(
            connection, donor.db_id, read_schema(path), context.donors, cfg.distractors, cfg.distractor_rows, rng,
            by_similarity=cfg.distractors_from == "alike",
        )  # fmt: skip
    if _run_queries(context.executor, path, sqls) != results:
        backup.replace(path)
        rejected.append(
            {"step": "distract", "id": donor.db_id, "reason": "the result of a gold changed with the tables"}
        )
        return []
    backup.unlink()
    return changes


def write(
    out: Path,
    remaining: Sequence[Example],
    dropped: Sequence[DroppedQuestion],
    changes: Sequence[Change],
    failed_changes: Mapping[str, str],
) -> dict[str, int]:
    """Write the questions and the files about them; return the counts."""
    corrected = {change.id: change.details["was"] for change in changes if change.step == "correct"}
    write_lines(out / "questions.jsonl", [_question_record(example, corrected) for example in remaining])
    write_lines(out / "changes.jsonl", [change.record() for change in changes])
    write_lines(
        out / "dropped.jsonl",
        [
            {"id": question.uid, "reason": question.reason, **question.numbers}
            | ({"tried": failed_changes[question.uid]} if question.uid in failed_changes else {})
            for question in dropped
        ],
    )
    by_step = Counter(change.step for change in changes)
    rows = sum(len(change.details["inserted"]) for change in changes if change.step == "fill")
    counts = {
        "questions": len(remaining) + len(dropped),
        "golds corrected": by_step["correct"],
        "questions reworded": by_step["reword"],
        "golds with inserted rows": by_step["fill"],
        "rows inserted": rows,
        "tables added": by_step["distract"],
        "databases with tables added": len({change.id for change in changes if change.step == "distract"}),
        **{f"dropped: {reason}": count for reason, count in Counter(question.reason for question in dropped).items()},
        "kept": len(remaining),
    }
    (out / "counts.json").write_text(json.dumps(counts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return counts


def _question_record(example: Example, corrected: Mapping[str, str]) -> Record:
    """Return the line of a question, with its former gold (`was`) if it was corrected."""
    return plain_record(example) | ({"was": corrected[example.uid]} if corrected.get(example.uid) else {})
