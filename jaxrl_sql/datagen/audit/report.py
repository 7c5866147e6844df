"""Run an audit of question sets: load them, collect the findings, write and count them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.config.audit import AuditConfig
from jaxrl_sql.databases.question_files import load_benchmark
from jaxrl_sql.datagen.audit.finding import Finding, QuestionSet
from jaxrl_sql.datagen.audit.golds import FAILURES, audit_golds
from jaxrl_sql.datagen.audit.overlap import (
    find_repeated_questions,
    find_shared_databases,
    find_shared_questions,
    find_shared_sql,
)
from jaxrl_sql.runtime.display import Display
from jaxrl_sql.text2sql.benchmarks.benchmark import describe_databases, label_notes
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.evals.tables import ReportTable
from jaxrl_sql.types import InputError

_MAX_SQL_CHARACTERS = 120  # of a failing gold in a message
# The order of findings in the table: by the part of their kind before the colon.
_KIND_ORDER = ("question", "sql", "database", "gold", "suite", "cannot be read")


class AuditResult(NamedTuple):
    """The sets, their findings, the number of findings by set and kind, and the path of `findings.jsonl`.

    `timeout_ms` is the time limit of a gold.
    """

    sets: Sequence[QuestionSet]
    findings: Sequence[Finding]
    counts: Mapping[str, Counter[str]]
    path: Path
    timeout_ms: int


def load_sets(config: AuditConfig, report: Callable[[str], object]) -> tuple[list[QuestionSet], list[QuestionSet]]:
    """Load the training and the evaluation sets, and report their notes.

    A set is named by its folder, or by its path if two names are equal. From a folder or file in both lists, training
    gets the split `train` and evaluation the split `dev`, into which a file without splits is divided as for training.
    Raises InputError for a folder that one list names twice.
    """
    for option, folders in (("--train", config.train), ("--eval", config.eval)):
        paths = Counter(folder.resolve() for folder in folders)
        if twice := [path for path, times in paths.items() if times > 1]:
            raise InputError(f"audit: {option} names {twice[0]} twice")
    both = {folder.resolve() for folder in config.train} & {folder.resolve() for folder in config.eval}
    names = Counter(path.name for path in {folder.resolve() for folder in (*config.train, *config.eval)})

    notes: list[tuple[str, Sequence[str]]] = []

    def load(folder: Path, split: str) -> QuestionSet:
        path = folder.resolve()
        name = path.name if names[path.name] == 1 else str(folder)
        split = split if path in both else ""
        name = f"{name}/{split}" if split else name
        loaded = load_benchmark(folder, split, config.limit, config.database)
        notes.append((name, loaded.notes))
        return QuestionSet(name, loaded.examples, loaded.skipped, loaded.lines)

    sets = [load(folder, "train") for folder in config.train], [load(folder, "dev") for folder in config.eval]
    for line in label_notes(notes):
        report(line)
    return sets


def audit(config: AuditConfig, display: Display) -> AuditResult:
    """Audit the sets of a configuration and write the findings; `display` shows the progress."""
    trains, evals = load_sets(config, display.note)
    sets = [*trains, *evals]
    findings = [finding for questions in sets for finding in find_repeated_questions(questions)]
    for target in evals if trains else ():
        display.note(f"{target.name}: comparing with the training sets")
        findings += find_shared_questions(trains, target, config.near_question)
        findings += find_shared_sql(trains, target)
        findings += find_shared_databases(trains, target, config.near_schema)
    if not config.no_golds:
        limits = ExecutorConfig(
            threads=config.threads, timeout_ms=config.timeout_ms, engine_timeout_ms=config.timeout_ms, vm_steps=0
        )
        with make_executor(limits) as executor:
            for question_set in sets:
                findings += audit_golds(executor, question_set, config.slow_ms, config.suite, display)
    findings += [
        Finding("cannot be read", questions.name, uid, {"reason": reason})
        for questions in sets
        for uid, reason in questions.skipped
    ]
    lines = {questions.name: questions.lines for questions in sets}
    findings = [finding.with_line(lines[finding.set].get(finding.id, "")) for finding in findings]
    counts = write(config, trains, evals, findings)
    return AuditResult(sets, findings, counts, config.out / "findings.jsonl", config.timeout_ms)


def write(
    config: AuditConfig, trains: Sequence[QuestionSet], evals: Sequence[QuestionSet], findings: Sequence[Finding]
) -> dict[str, Counter[str]]:
    """Write `audit.json` and `findings.jsonl`, and return the number of findings by set and kind."""
    counts = {
        train.name: Counter(finding.kind for finding in findings if finding.set == train.name)
        for train in (*trains, *evals)
    }
    summary = {
        "train": [questions.name for questions in trains],
        "eval": [questions.name for questions in evals],
        "near_question": config.near_question,
        "near_schema": config.near_schema,
        "timeout_ms": config.timeout_ms,
        "slow_ms": config.slow_ms,
        "suite": str(config.suite) if config.suite else "",
        "sets": {
            questions.name: {
                "questions": len(questions.examples),
                "databases": len(questions.databases),
                "matched_with": describe_databases(questions.examples),
                "findings": dict(counts[questions.name]),
                "constants": _by_rule([finding for finding in findings if finding.set == questions.name]),
            }
            for questions in (*trains, *evals)
        },
    }
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "audit.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(finding.record(), ensure_ascii=False) + "\n" for finding in findings)
    (config.out / "findings.jsonl").write_text(lines, encoding="utf-8", errors="backslashreplace")
    return counts


def _by_rule(findings: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """Return the number of golds that a constant answer matches: by answer, then by comparison rule."""
    counts: dict[str, Counter[str]] = {}
    for finding in findings:
        for answer, rules in finding.details.get("answers", {}).items():
            counts.setdefault(answer, Counter()).update(rules)
    return {answer: dict(rules) for answer, rules in counts.items()}


def table(result: AuditResult) -> ReportTable:
    """Return the number of findings: a row per kind, a column per set."""
    sets, counts = result.sets, result.counts
    kinds = list(dict.fromkeys(kind for questions in sets for kind in counts[questions.name]))
    kinds.sort(key=_kind_position)
    rows = [("questions", *(f"{len(questions.examples):,}" for questions in sets))]
    rows.append(("databases", *(f"{len(questions.databases):,}" for questions in sets)))
    for kind in kinds:
        totals = [
            len(question_set.databases) if kind.startswith("database:") else len(question_set.examples)
            for question_set in sets
        ]
        counted = [counts[questions.name][kind] for questions in sets]
        shares = [
            f"{100 * n / max(total, 1):5.1f} %" if n else " " * 7 for n, total in zip(counted, totals, strict=True)
        ]
        rows.append((kind, *(f"{n:,} {share}" for n, share in zip(counted, shares, strict=True))))
    if not kinds:
        rows.append(("nothing was found", *("" for _ in sets)))
    return ReportTable("", ("", *(questions.name for questions in sets)), tuple(rows))


def _kind_position(kind: str) -> int:
    """Return the position of a kind in the table; an unknown kind is last."""
    group = kind.partition(":")[0]
    return _KIND_ORDER.index(group) if group in _KIND_ORDER else len(_KIND_ORDER)


def failing_golds(result: AuditResult) -> list[str]:
    """Return a line for each gold that fails or times out, with its place in the user's file."""
    golds = {
        (questions.name, example.uid): example.gold_sql for questions in result.sets for example in questions.examples
    }
    lines = []
    for finding in result.findings:
        if finding.kind not in FAILURES:
            continue
        where = finding.line or f"{finding.set}: {finding.id}"
        reason = (
            finding.details.get("error") or finding.details.get("status") or f"over --timeout-ms={result.timeout_ms}"
        )
        sql = shorten(golds[finding.set, finding.id], _MAX_SQL_CHARACTERS, placeholder=" …")
        lines.append(f"{where}: {finding.kind} ({' '.join(str(reason).split())}): {sql}")
    return lines
