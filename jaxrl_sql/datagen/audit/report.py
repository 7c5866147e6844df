"""The report of an audit: load sets, look at them, write the findings and count them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.config.audit import AuditConfig
from jaxrl_sql.datagen.audit.finding import Finding, Set
from jaxrl_sql.datagen.audit.golds import audit_golds
from jaxrl_sql.datagen.audit.overlap import shared_databases, shared_questions, shared_sql
from jaxrl_sql.text2sql.benchmarks import load_benchmark
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.evals.tables import Table
from jaxrl_sql.types import InputError

Note = Callable[[str], object]


class AuditResult(NamedTuple):
    """The sets, their findings, how often each kind was found by set, and the file that has the findings."""

    sets: Sequence[Set]
    findings: Sequence[Finding]
    counts: Mapping[str, Counter[str]]
    path: Path


def load_sets(folders: Sequence[Path], limit: int, report: Note) -> list[Set]:
    """Load sets under the names of their folders, or their paths where two names are the same; report their notes."""
    paths = Counter(folder.resolve() for folder in folders)
    if twice := [path for path, times in paths.items() if times > 1]:
        raise InputError(f"audit: {twice[0]} is named twice")
    names = Counter(folder.resolve().name for folder in folders)
    sets = []
    for folder in folders:
        loaded = load_benchmark(folder, limit=limit)
        name = folder.resolve().name if names[folder.resolve().name] == 1 else str(folder)
        for note in loaded.notes:
            report(f"{name}: {note}")
        sets.append(Set(name, loaded.examples, loaded.skipped))
    return sets


def audit(config: AuditConfig, report: Note) -> AuditResult:
    """Look at sets and write the files; `report` is called with a line about the progress."""
    sets = load_sets([*config.train, *config.eval], config.limit, report)
    trains, evals = sets[: len(config.train)], sets[len(config.train) :]
    findings: list[Finding] = []
    for target in evals if trains else ():
        report(f"{target.name}: comparing with the training sets")
        findings += shared_questions(trains, target, config.near_question)
        findings += shared_sql(trains, target)
        findings += shared_databases(trains, target, config.near_schema)
    if not config.no_golds:
        limits = ExecutorConfig(threads=config.threads, timeout_ms=config.timeout_ms, vm_steps=0)
        with make_executor(limits) as executor:
            for set_ in sets:
                findings += audit_golds(executor, set_, config.slow_ms, config.suite, report)
    findings += [Finding("cannot be read", one.name, uid, {"reason": why}) for one in sets for uid, why in one.skipped]
    counts = write(config, trains, evals, findings)
    return AuditResult(sets, findings, counts, config.out / "findings.jsonl")


def write(
    config: AuditConfig, trains: Sequence[Set], evals: Sequence[Set], findings: Sequence[Finding]
) -> dict[str, Counter[str]]:
    """Write the two files and return how often each kind was found, by set."""
    counts = {
        train.name: Counter(found.kind for found in findings if found.set == train.name) for train in (*trains, *evals)
    }
    summary = {
        "train": [one.name for one in trains],
        "eval": [one.name for one in evals],
        "near_question": config.near_question,
        "near_schema": config.near_schema,
        "timeout_ms": config.timeout_ms,
        "slow_ms": config.slow_ms,
        "suite": str(config.suite) if config.suite else "",
        "sets": {
            one.name: {
                "questions": len(one.examples),
                "databases": len(one.databases),
                "findings": dict(counts[one.name]),
                "constants": _by_rule([found for found in findings if found.set == one.name]),
            }
            for one in (*trains, *evals)
        },
    }
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "audit.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(finding.record(), ensure_ascii=False) + "\n" for finding in findings)
    (config.out / "findings.jsonl").write_text(lines, encoding="utf-8", errors="backslashreplace")
    return counts


def _by_rule(findings: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """Count the golds that each constant answer matches by each rule."""
    counts: dict[str, Counter[str]] = {}
    for finding in findings:
        for answer, rules in finding.details.get("answers", {}).items():
            counts.setdefault(answer, Counter()).update(rules)
    return {answer: dict(rules) for answer, rules in counts.items()}


def table(result: AuditResult) -> Table:
    """Return how often each kind was found, a set a column."""
    sets, _, counts, _ = result
    kinds = list(dict.fromkeys(kind for one in sets for kind in counts[one.name]))
    kinds.sort(key=lambda kind: _ORDER.index(kind.partition(":")[0]) if kind.partition(":")[0] in _ORDER else 99)
    rows = [("questions", *(f"{len(one.examples):,}" for one in sets))]
    rows.append(("databases", *(f"{len(one.databases):,}" for one in sets)))
    for kind in kinds:
        whole = [len(set_.databases) if kind.startswith("database:") else len(set_.examples) for set_ in sets]
        found = [counts[one.name][kind] for one in sets]
        shares = [f"{100 * n / max(total, 1):5.1f} %" if n else " " * 7 for n, total in zip(found, whole, strict=True)]
        rows.append((kind, *(f"{n:,} {share}" for n, share in zip(found, shares, strict=True))))
    if not kinds:
        rows.append(("nothing was found", *("" for _ in sets)))
    return Table("", ("", *(one.name for one in sets)), tuple(rows))


_ORDER = ("question", "sql", "database", "gold", "suite", "cannot be read")
