"""The report of an audit: sets are loaded and looked at, and findings are written and shown as a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.datagen.audit.finding import Finding, Set
from jaxrl_sql.datagen.audit.golds import audit_golds
from jaxrl_sql.datagen.audit.overlap import shared_databases, shared_questions, shared_sql
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.text2sql.benchmarks import load_benchmark
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError


def load_sets(folders: Sequence[Path], limit: int) -> list[Set]:
    """Load sets under the names of their folders, or their paths where two names are the same; tell their notes."""
    paths = Counter(folder.resolve() for folder in folders)
    if twice := [path for path, times in paths.items() if times > 1]:
        raise InputError(f"audit: {twice[0]} is named twice")
    names = Counter(folder.resolve().name for folder in folders)
    sets = []
    for folder in folders:
        loaded = load_benchmark(folder, limit=limit)
        name = folder.resolve().name if names[folder.resolve().name] == 1 else str(folder)
        for note in loaded.notes:
            _tell(f"{name}: {note}")
        sets.append(Set(name, loaded.examples, loaded.skipped))
    return sets


def audit(options: argparse.Namespace) -> list[Finding]:
    """Look at the sets that the options name, write the files and show the table."""
    sets = load_sets([*options.train, *options.eval], options.limit)
    trains, evals = sets[: len(options.train)], sets[len(options.train) :]
    findings: list[Finding] = []
    for target in evals if trains else ():
        _tell(f"{target.name}: looking for what it shares with training")
        findings += shared_questions(trains, target, options.near_question)
        findings += shared_sql(trains, target)
        findings += shared_databases(trains, target, options.near_schema)
    if not options.no_golds:
        limits = ExecutorConfig(threads=options.threads, timeout_ms=options.timeout_ms, vm_steps=0)
        with make_executor(limits) as executor:
            for one in sets:
                findings += audit_golds(executor, one, options.slow_ms, options.suite, _tell)
    findings += [Finding("cannot be read", one.name, uid, {"reason": why}) for one in sets for uid, why in one.skipped]
    counts = write(options, trains, evals, findings)
    show(sets, counts)
    print_text(str(options.out / "findings.jsonl"))
    return findings


def write(
    options: argparse.Namespace, trains: Sequence[Set], evals: Sequence[Set], findings: Sequence[Finding]
) -> dict[str, Counter[str]]:
    """Write the two files and return how often each kind was found, by set."""
    counts = {one.name: Counter(found.kind for found in findings if found.set == one.name) for one in (*trains, *evals)}
    summary = {
        "train": [one.name for one in trains],
        "eval": [one.name for one in evals],
        "near_question": options.near_question,
        "near_schema": options.near_schema,
        "timeout_ms": options.timeout_ms,
        "slow_ms": options.slow_ms,
        "suite": str(options.suite) if options.suite else "",
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
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "audit.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(found.record(), ensure_ascii=False) + "\n" for found in findings)
    (options.out / "findings.jsonl").write_text(lines, encoding="utf-8", errors="backslashreplace")
    return counts


def _by_rule(findings: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """Count the golds that each constant answer matches by each rule."""
    counts: dict[str, Counter[str]] = {}
    for found in findings:
        for answer, rules in found.details.get("answers", {}).items():
            counts.setdefault(answer, Counter()).update(rules)
    return {answer: dict(rules) for answer, rules in counts.items()}


def show(sets: Sequence[Set], counts: dict[str, Counter[str]]) -> None:
    """Show how often each kind was found, a set a column."""
    kinds = list(dict.fromkeys(kind for one in sets for kind in counts[one.name]))
    kinds.sort(key=lambda kind: _ORDER.index(kind.partition(":")[0]) if kind.partition(":")[0] in _ORDER else 99)
    rows = [("questions", *(f"{len(one.examples):,}" for one in sets))]
    rows.append(("databases", *(f"{len(one.databases):,}" for one in sets)))
    for kind in kinds:
        whole = [len(one.databases) if kind.startswith("database:") else len(one.examples) for one in sets]
        found = [counts[one.name][kind] for one in sets]
        shares = [f"{100 * n / max(total, 1):5.1f} %" if n else " " * 7 for n, total in zip(found, whole, strict=True)]
        rows.append((kind, *(f"{n:,} {share}" for n, share in zip(found, shares, strict=True))))
    if not kinds:
        rows.append(("nothing was found", *("" for _ in sets)))
    show_table(sys.stdout, "", ("", *(one.name for one in sets)), rows)


_ORDER = ("question", "sql", "database", "gold", "suite", "cannot be read")


def _tell(words: str) -> None:
    print_text(words, sys.stderr)
