"""Compare two finished evaluations of the same questions, by rule and by question.

A rule compares a prediction's result with that of the gold, the reference query. The own rule is the benchmark's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.files import cases
from jaxrl_sql.text2sql.evals.endings import ending_metrics, finish_reasons
from jaxrl_sql.text2sql.evals.pairs import PairedComparison, caution, compare_runs
from jaxrl_sql.text2sql.evals.records import example_of, verdict_of
from jaxrl_sql.text2sql.evals.tables import ReportTable, as_markdown
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Fields, InputError, Record

RECORDS, METRICS = "records.jsonl", "metrics.json"


class SideBySide(NamedTuple):
    """The comparison of the evaluations in two folders.

    `rules` has a comparison per rule. `changed` has the pairs of records of the questions whose score by the own rule
    differs. `notes` are lines on questions that are not compared, and on the meaning of the numbers.
    """

    folders: tuple[Path, Path]
    own_rule: str
    rules: tuple[PairedComparison, ...]
    changed: tuple[tuple[Record, Record], ...]
    notes: tuple[str, ...]


def side_by_side(first: Path, second: Path) -> SideBySide:
    """Compare two output folders of `evaluate`; over several runs, a question's score is the mean.

    Raises InputError for a folder without a finished evaluation, and for folders without a common question.
    """
    left, right = _read(first), _read(second)
    if all(len({name for name, _ in records}) == 1 for records in (left, right)):  # a single set may have two names
        left, right = ({("", uid): runs for (_, uid), runs in records.items()} for records in (left, right))
    shared_keys = [key for key in left if key in right]
    common = [key for key in shared_keys if _is_same_question(left[key][0], right[key][0])]
    if not common:
        ids = (
            f", only ids: {cases(_ids(shared_keys))}" if shared_keys else f": {cases(_ids(left))}; {cases(_ids(right))}"
        )
        raise InputError(f"{first} and {second} have no question in common{ids}")
    notes = []
    if others := _ids(key for key in shared_keys if not _is_same_question(left[key][0], right[key][0])):
        notes.append(
            f"{quantity(len(others), 'questions', 'differ')} in {second}, without comparison ({cases(others)})"
        )
    for folder, records, rest in ((first, left, right), (second, right, left)):
        alone = [key for key in records if key not in rest]
        if alone:
            subject = quantity(len(alone), "questions", "are")
            notes.append(f"{subject} only in {folder}, without comparison ({cases(_ids(alone))})")
    changed_golds = [key for key in common if left[key][0]["gold_sql"] != right[key][0]["gold_sql"]]
    if changed_golds:
        subject = quantity(len(changed_golds), "questions", "have")
        notes.append(f"{subject} a different gold in {second} ({cases(_ids(changed_golds))})")
    pairs = [(left[key], right[key]) for key in common]
    for folder, folder_runs in zip((first, second), zip(*pairs, strict=True), strict=True):
        endings = ending_metrics(finish_reasons(record for runs in folder_runs for record in runs))
        if truncated := endings.get("truncated"):
            notes.append(f"{truncated:.1%} of the answers in {folder} are truncated at the token limit")
    examples = [example_of(runs[0]) for runs, _ in pairs]
    first_verdicts = [_mean_verdict(runs) for runs, _ in pairs]
    second_verdicts = [_mean_verdict(runs) for _, runs in pairs]
    scored = zip(first_verdicts, second_verdicts, strict=True)
    rules = list(dict.fromkeys(rule for before, after in scored for rule in before.scores if rule in after.scores))
    if not rules:
        raise InputError(f"{first} and {second} have no rule in common: evaluate both by the same evaluate.rules")
    own_rule = pairs[0][0][0]["own"]
    own_rule = own_rule if own_rule in rules else rules[0]
    changed = tuple(
        (first_runs[0], second_runs[0])
        for (first_runs, second_runs), before, after in zip(pairs, first_verdicts, second_verdicts, strict=True)
        if before.scores.get(own_rule) != after.scores.get(own_rule)
    )
    paired = tuple(compare_runs(examples, first_verdicts, second_verdicts, rule) for rule in rules)
    notes += filter(None, [caution(min(pair.databases for pair in paired))])
    return SideBySide((first, second), own_rule, paired, changed, tuple(notes))


def _read(folder: Path) -> dict[tuple[str, str], list[Record]]:
    """Return the records of a folder by (benchmark, id), with a record per run."""
    if not (folder / METRICS).is_file() or not (folder / RECORDS).is_file():
        raise InputError(f"{folder}: no finished evaluation ({METRICS} and {RECORDS} are expected in it)")
    records: dict[tuple[str, str], list[Record]] = {}
    for number, line in enumerate((folder / RECORDS).read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            records.setdefault((record.get("set", ""), record["id"]), []).append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder / RECORDS}:{number}: not a valid question record") from error
    return records


def _is_same_question(record: Record, other: Record) -> bool:
    """Return whether two records with the same id have the same question.

    Its text or its gold may have changed, but not both.
    """
    return record["db_id"] == other["db_id"] and any(record[key] == other[key] for key in ("question", "gold_sql"))


def _ids(keys: Any) -> list[str]:
    return [uid for _, uid in keys]


def _mean_verdict(runs: Sequence[Record]) -> Verdict:
    """Return the verdict of a question's first run with the mean score of all runs per rule."""
    verdicts = [verdict_of(run) for run in runs]
    rules = [rule for rule in verdicts[0].scores if all(rule in verdict.scores for verdict in verdicts)]
    scores = {rule: sum(verdict.scores[rule] for verdict in verdicts) / len(verdicts) for rule in rules}
    return dataclasses.replace(verdicts[0], scores=scores)


def compare_table(comparison: SideBySide) -> ReportTable:
    """Return a table of both shares per rule, their difference with its interval, and p (see `pairs`)."""
    rows = tuple(
        (
            _rule(comparison, paired),
            f"{100 * paired.first:.1f}",
            f"{100 * paired.second:.1f}",
            f"{100 * paired.difference:+.1f}",
            f"{100 * paired.low:+.1f} to {100 * paired.high:+.1f}",
            f"{paired.p_value:.2g}",
        )
        for paired in comparison.rules
    )
    columns = ("rule", "first %", "second %", "points", "95 %\ninterval", "sign-flip\np")
    databases = max(paired.databases for paired in comparison.rules)
    over = "1 database" if databases == 1 else f"{databases} databases"
    return ReportTable(f"{comparison.folders[0]} and {comparison.folders[1]}, over {over}", columns, rows)


def questions_table(comparison: SideBySide) -> ReportTable:
    """Return a table of the number of changed questions per rule, and p of McNemar's test (see `pairs`)."""
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
    title = "by question, assuming independence: p is too small if databases differ"
    return ReportTable(title, ("rule", "better", "worse", "of", "McNemar's\np"), rows)


def _rule(comparison: SideBySide, paired: PairedComparison) -> str:
    return f"{paired.rule} *" if paired.rule == comparison.own_rule else paired.rule


def make_changes_table(comparison: SideBySide) -> ReportTable:
    """Return a table of the questions whose score by the own rule changed, with both statuses."""
    rows = tuple(
        (
            first["id"],
            first["db_id"],
            f"{_score(first, comparison.own_rule)} → {_score(second, comparison.own_rule)}",
            f"{_status(first)} → {_status(second)}",
            first["question"],
        )
        for first, second in comparison.changed
    )
    title = f"{quantity(len(rows), 'questions')} changed by {comparison.own_rule}"
    return ReportTable(title, ("id", "database", comparison.own_rule, "status", "question"), rows, (0, 1, 2, 3, 4))


def _score(record: Fields, rule: str) -> str:
    value = record["scores"].get(rule)
    return "none" if value is None else f"{value:g}"


def _status(record: Fields) -> str:
    """Return a prediction's status, with the answer's finish reason unless it is `stop`."""
    reason = record["finish_reason"]
    return f"{record['status']} ({reason})" if reason not in ("", "stop") else str(record["status"])


def write_comparison(comparison: SideBySide, out: Path) -> list[Path]:
    """Write compare.json and compare.md, with the SQL of changed questions."""
    out.mkdir(parents=True, exist_ok=True)
    fields = ("sql", "finish_reason", "status", "gold_status", "scores", "reasons")
    changed = [
        {
            **{name: first[name] for name in ("id", "db_id", "question", "gold_sql")},
            "first": {name: first[name] for name in fields},
            "second": {name: second[name] for name in fields},
        }
        for first, second in comparison.changed
    ]
    content = {
        "first": str(comparison.folders[0]),
        "second": str(comparison.folders[1]),
        "own": comparison.own_rule,
        "notes": list(comparison.notes),
        "rules": {rule.rule: dataclasses.asdict(rule) for rule in comparison.rules},
        "changed": changed,
    }
    json_path, markdown_path = out / "compare.json", out / "compare.md"
    json_path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    tables = [compare_table(comparison), questions_table(comparison), make_changes_table(comparison)]
    shown = as_markdown([table for table in tables if table.rows])
    sqls = [_sqls(first, second) for first, second in comparison.changed]
    markdown_path.write_text(
        "\n".join(["# Two evaluations side by side", "", *comparison.notes, shown, *sqls]), encoding="utf-8"
    )
    return [markdown_path, json_path]


def _sqls(first: Record, second: Record) -> str:
    """Return a section in Markdown with the gold and both predictions of a question."""
    parts = (("gold", first["gold_sql"]), ("first", first["sql"]), ("second", second["sql"]))
    blocks = "\n".join(f"{name}:\n```sql\n{sql or '-- no SQL'}\n```" for name, sql in parts)
    return f"### {first['id']}: {first['question']}\n\n{blocks}\n"
