"""The command `score`: score a file of predictions against a file of golds, by database and by difficulty."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlexec_rs._native import STATUS_NAMES, join_url, split_url
from sqlexec_rs.files import Gold, InputError, read_golds
from sqlexec_rs.pairing import pair
from sqlexec_rs.predictions import read_predictions
from sqlexec_rs.progress import watch
from sqlexec_rs.running import make_executor
from sqlexec_rs.terminal import printable

Item = dict[str, Any]

SUITE_RULE = "test_suite"
"""The rule that compares results on every `*.sqlite` in the database's folder."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DUCKDB = "duckdb:"

# Difficulties of Spider and BIRD, from easy to hard; others follow in file order.
_DIFFICULTIES = ("easy", "simple", "medium", "moderate", "hard", "challenging", "extra")


def score(options: argparse.Namespace) -> int:
    """Score, print the tables, write the JSON, and return the exit code."""
    golds = read_golds(options.gold)
    predictions = read_predictions(options.pred, options.field)
    paired = pair(predictions, golds, [gold.uid for gold in golds], options.allow_missing, options.allow_extra)
    scored = [gold for gold in golds if gold.uid in paired.sqls]
    items = _score_items(scored, [paired.sqls[gold.uid] for gold in scored], options)
    notes = list(paired.notes)
    failed = sum(item["gold_status"] != "ok" for item in items)
    if failed:
        notes.append(f"{failed} golds do not run, so nothing matches them")
    report = make_report(items, options.rules, notes)
    sys.stdout.write(printable(render(report, options.rules)))
    if options.out is not None:
        try:
            options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{options.out}: {error.strerror}") from None
    return 0


def find_databases(root: str, golds: Iterable[Gold]) -> dict[str, list[str]]:
    """Return the path or URL of each database, followed by its variants, which must be in the same folder.

    This is ROOT/DB/DB.sqlite or ROOT/DB.sqlite; for `duckdb:FOLDER` FOLDER/DB.duckdb; for a server's URL the database
    in the URL, or else the one named DB. Raises InputError if the file does not exist.
    """
    databases: dict[str, list[str]] = {}
    for gold in golds:
        if gold.db_id not in databases:
            databases[gold.db_id] = _database_and_variants(root, gold)
    return databases


def _database_and_variants(root: str, gold: Gold) -> list[str]:
    db_id = gold.db_id
    if _SCHEME.match(root):
        try:
            engine, host, port, user, password, database, options = split_url(root)
        except ValueError as error:
            raise InputError(f"--db-root: {error}") from None
        return [root if database else join_url(engine, host, port, user, password, db_id, options)]
    duckdb = root.removeprefix(_DUCKDB)
    if duckdb != root:
        candidates = [Path(duckdb, f"{db_id}.duckdb")]
    else:
        candidates = [Path(root, db_id, f"{db_id}.sqlite"), Path(root, f"{db_id}.sqlite")]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise InputError(f"{gold.location}: {candidates[0]} does not exist")
    if duckdb != root:
        return [f"{_DUCKDB}{path}"]
    variants = sorted(path.parent.glob("*.sqlite")) if path.parent.name == db_id else []
    return [str(path), *(str(variant) for variant in variants if variant != path)]


def _score_items(golds: Sequence[Gold], texts: Sequence[str | None], options: argparse.Namespace) -> list[Item]:
    databases = find_databases(options.db_root, golds)
    answers = [gold.sql for gold in golds]
    choices = {"strip_distinct": options.strip_distinct}
    columns: dict[str, Any] = {}
    with make_executor(options, options.threads) as executor:
        plain = [rule for rule in options.rules if rule != SUITE_RULE]
        if SUITE_RULE in options.rules:
            files = [databases[gold.db_id] for gold in golds]
            job = executor.submit_score(files, texts, answers, (SUITE_RULE,), options=choices)
            watch(job, "test suite", sys.stderr)
            columns |= job.result()
        if plain or not columns:
            paths = [databases[gold.db_id][0] for gold in golds]
            job = executor.submit_score(paths, texts, answers, plain, options=choices)
            watch(job, "scored", sys.stderr)
            columns |= job.result()
    return [_item(i, gold, columns, options.rules) for i, gold in enumerate(golds)]


def _item(i: int, gold: Gold, columns: dict[str, Any], rules: Sequence[str]) -> Item:
    return {
        "id": gold.uid,
        "db_id": gold.db_id,
        "difficulty": gold.difficulty,
        "pred_status": STATUS_NAMES[columns["pred_status"][i]],
        "gold_status": STATUS_NAMES[columns["gold_status"][i]],
        "pred_ms": round(float(columns["pred_ms"][i]), 3),
        "gold_ms": round(float(columns["gold_ms"][i]), 3),
        **{rule: float(columns[rule][i]) for rule in rules},
    }


def make_report(items: Sequence[Item], rules: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """Return the means of every rule over all items, by database and by difficulty, and the items themselves."""

    def means(chosen: Sequence[Item]) -> dict[str, float]:
        return {"n": len(chosen)} | {rule: sum(item[rule] for item in chosen) / len(chosen) for rule in rules}

    def by(key: str, order: Callable[[str], Any]) -> dict[str, dict[str, float]]:
        groups: dict[str, list[Item]] = {}
        for item in items:
            groups.setdefault(item[key], []).append(item)
        return {name: means(groups[name]) for name in sorted(filter(None, groups), key=order)}

    return {
        "all": means(items),
        "by_difficulty": by("difficulty", _difficulty_rank),
        "by_database": by("db_id", str),
        "pred_statuses": dict(Counter(item["pred_status"] for item in items).most_common()),
        "notes": list(notes),
        "items": list(items),
    }


def _difficulty_rank(name: str) -> int:
    return _DIFFICULTIES.index(name) if name in _DIFFICULTIES else len(_DIFFICULTIES)


def render(report: dict[str, Any], rules: Sequence[str]) -> str:
    """Return the report as text tables, with means in percent."""

    def line(name: str, row: dict[str, float]) -> list[str]:
        return [name, f"{row['n']:,}", *(f"{100 * row[rule]:.1f}" for rule in rules)]

    blank = [""] * (2 + len(rules))
    rows = [["database", "n", *rules], *(line(name, row) for name, row in report["by_database"].items())]
    if report["by_difficulty"]:
        rows += [blank, ["difficulty", *blank[1:]], *(line(name, row) for name, row in report["by_difficulty"].items())]
    rows += [blank, line("all", report["all"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(blank))]
    lines = []
    for name, *cells in rows:
        fitted = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *fitted]).rstrip())
    statuses = ", ".join(f"{name} {n:,}" for name, n in report["pred_statuses"].items())
    lines += ["", f"predictions: {statuses}", *(f"note: {note}" for note in report["notes"])]
    return "\n".join(lines) + "\n"
