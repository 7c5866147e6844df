"""Two finished evaluations of the same questions side by side: by rule, and question by question."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.text2sql.env.files import cases
from jaxrl_sql.text2sql.evals.endings import ending_metrics, finish_reasons
from jaxrl_sql.text2sql.evals.pairs import Paired, caution, compare_runs
from jaxrl_sql.text2sql.evals.records import example_of, verdict_of
from jaxrl_sql.text2sql.evals.tables import Table, as_markdown
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Fields, InputError, Record

RECORDS, METRICS = "records.jsonl", "metrics.json"


class SideBySide(NamedTuple):
    """What two runs have in common and where they part; records are by benchmark and id."""

    folders: tuple[Path, Path]
    own: str
    rules: tuple[Paired, ...]
    changed: tuple[tuple[Record, Record], ...]
    notes: tuple[str, ...]


def side_by_side(first: Path, second: Path) -> SideBySide:
    """Compare two folders that `evaluate` wrote; of several runs a question's score is their mean.

    Raises InputError for a folder that holds no finished evaluation, and for two without a question in common.
    """
    one, other = _read(first), _read(second)
    both = [key for key in one if key in other]
    common = [key for key in both if _is_same(one[key][0], other[key][0])]
    if not common:
        ids = f", only ids: {cases(_names(both))}" if both else f": {cases(_names(one))}; {cases(_names(other))}"
        raise InputError(f"{first} and {second} have no question in common{ids}")
    notes = []
    if others := _names(key for key in both if not _is_same(one[key][0], other[key][0])):
        notes.append(f"{len(others)} questions are others in {second} and not compared ({cases(others)})")
    for folder, found, rest in ((first, one, other), (second, other, one)):
        alone = [key for key in found if key not in rest]
        if alone:
            notes.append(f"{len(alone)} questions are in {folder} alone and not compared ({cases(_names(alone))})")
    golds = [key for key in common if one[key][0]["gold_sql"] != other[key][0]["gold_sql"]]
    if golds:
        notes.append(f"{len(golds)} questions have another gold in {second} ({cases(_names(golds))})")
    pairs = [(one[key], other[key]) for key in common]
    for folder, of_folder in zip((first, second), zip(*pairs, strict=True), strict=True):
        endings = ending_metrics(finish_reasons(record for runs in of_folder for record in runs))
        if truncated := endings.get("truncated"):
            notes.append(f"{truncated:.1%} of the answers in {folder} are truncated at the token limit")
    examples = [example_of(runs[0]) for runs, _ in pairs]
    mine = [_mean_verdict(runs) for runs, _ in pairs]
    theirs = [_mean_verdict(runs) for _, runs in pairs]
    scored = zip(mine, theirs, strict=True)
    rules = list(dict.fromkeys(rule for one, other in scored for rule in one.scores if rule in other.scores))
    if not rules:
        raise InputError(f"{first} and {second} have no rule in common: evaluate both by the same evaluate.rules")
    own = pairs[0][0][0]["own"]
    own = own if own in rules else rules[0]
    changed = tuple(
        (first_runs[0], second_runs[0])
        for (first_runs, second_runs), before, after in zip(pairs, mine, theirs, strict=True)
        if before.scores.get(own) != after.scores.get(own)
    )
    paired = tuple(compare_runs(examples, mine, theirs, rule) for rule in rules)
    notes += filter(None, [caution(min(pair.databases for pair in paired))])
    return SideBySide((first, second), own, paired, changed, tuple(notes))


def _read(folder: Path) -> dict[tuple[str, str], list[Record]]:
    """Return a run's records by (benchmark, id), one a run."""
    if not (folder / METRICS).is_file() or not (folder / RECORDS).is_file():
        raise InputError(f"{folder}: no finished evaluation ({METRICS} and {RECORDS} are expected in it)")
    found: dict[tuple[str, str], list[Record]] = {}
    for number, line in enumerate((folder / RECORDS).read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            found.setdefault((record.get("set", ""), record["id"]), []).append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder / RECORDS}:{number}: no record of a question") from error
    return found


def _is_same(one: Record, other: Record) -> bool:
    """Return whether two records of an id are of one question; its words or its gold may have been mended."""
    return one["db_id"] == other["db_id"] and any(one[key] == other[key] for key in ("question", "gold_sql"))


def _names(keys: Any) -> list[str]:
    return [uid for _, uid in keys]


def _mean_verdict(runs: Sequence[Record]) -> Verdict:
    verdicts = [verdict_of(run) for run in runs]
    rules = [rule for rule in verdicts[0].scores if all(rule in verdict.scores for verdict in verdicts)]
    scores = {rule: sum(one.scores[rule] for one in verdicts) / len(verdicts) for rule in rules}
    return dataclasses.replace(verdicts[0], scores=scores)


def compare_table(made: SideBySide) -> Table:
    """Return both shares by rule, their difference with its interval, and the sign-flip test's p over databases."""
    rows = tuple(
        (
            _rule(made, paired),
            f"{100 * paired.first:.1f}",
            f"{100 * paired.second:.1f}",
            f"{100 * paired.difference:+.1f}",
            f"{100 * paired.low:+.1f} to {100 * paired.high:+.1f}",
            f"{paired.p_value:.2g}",
        )
        for paired in made.rules
    )
    columns = ("rule", "first %", "second %", "points", "95 %\ninterval", "sign-flip\np")
    databases = max(paired.databases for paired in made.rules)
    over = "1 database" if databases == 1 else f"{databases} databases"
    return Table(f"{made.folders[0]} and {made.folders[1]}, over {over}", columns, rows)


def questions_table(comparison: SideBySide) -> Table:
    """Return by rule how many questions changed, and McNemar's p."""
    rows = tuple(
        (
            _rule(comparison, paired),
            str(len(paired.better)),
            str(len(paired.worse)),
            str(paired.count),
            f"{paired.p_mcnemar:.2g}",
        )
        for paired in comparison.rules
    )
    title = "by questions, as if they were independent: this p is too small where databases differ"
    return Table(title, ("rule", "better", "worse", "of", "McNemar's\np"), rows)


def _rule(comparison: SideBySide, paired: Paired) -> str:
    return f"{paired.rule} *" if paired.rule == comparison.own else paired.rule


def changed_table(made: SideBySide) -> Table:
    """Return the questions whose score by the own rule changed, with how both ended."""
    rows = tuple(
        (
            mine["id"],
            mine["db_id"],
            f"{_score(mine, made.own)} → {_score(theirs, made.own)}",
            f"{_status(mine)} → {_status(theirs)}",
            mine["question"],
        )
        for mine, theirs in made.changed
    )
    title = f"{len(rows)} questions changed by {made.own}"
    return Table(title, ("id", "database", made.own, "status", "question"), rows, (0, 1, 2, 3, 4))


def _score(record: Fields, rule: str) -> str:
    value = record["scores"].get(rule)
    return "none" if value is None else f"{value:g}"


def _status(record: Fields) -> str:
    """Return how a prediction ended, with the finish reason of an answer that did not stop by itself."""
    reason = record["finish_reason"]
    return f"{record['status']} ({reason})" if reason not in ("", "stop") else str(record["status"])


def write_comparison(made: SideBySide, out: Path) -> list[Path]:
    """Write compare.json and compare.md with the SQL of what changed."""
    out.mkdir(parents=True, exist_ok=True)
    shown = ("sql", "finish_reason", "status", "gold_status", "scores", "reasons")
    changed = [
        {
            **{name: mine[name] for name in ("id", "db_id", "question", "gold_sql")},
            "first": {name: mine[name] for name in shown},
            "second": {name: theirs[name] for name in shown},
        }
        for mine, theirs in made.changed
    ]
    whole = {
        "first": str(made.folders[0]),
        "second": str(made.folders[1]),
        "own": made.own,
        "notes": list(made.notes),
        "rules": {rule.rule: dataclasses.asdict(rule) for rule in made.rules},
        "changed": changed,
    }
    data, text = out / "compare.json", out / "compare.md"
    data.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    tables = as_markdown([compare_table(made), questions_table(made), changed_table(made)])
    sqls = [_sqls(mine, theirs) for mine, theirs in made.changed]
    text.write_text("\n".join(["# Two evaluations side by side", "", *made.notes, tables, *sqls]), encoding="utf-8")
    return [text, data]


def _sqls(mine: Record, theirs: Record) -> str:
    parts = (("gold", mine["gold_sql"]), ("first", mine["sql"]), ("second", theirs["sql"]))
    blocks = "\n".join(f"{name}:\n```sql\n{sql or '-- no SQL'}\n```" for name, sql in parts)
    return f"### {mine['id']}: {mine['question']}\n\n{blocks}\n"
