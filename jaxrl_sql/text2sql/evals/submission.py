"""Write predictions in the submission format of a benchmark's leaderboard."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_sql.text2sql.env.files import BIRD_MARK
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.types import Example

NO_SQL_PLACEHOLDER = "SELECT no_sql_was_given"
"""Placeholder for a question without SQL: it fails on every database, while scorers may skip an empty line."""

# A quoted text or name, a comment, or blanks.
_TEXT_COMMENT_OR_BLANK = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])|(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<blank>\s+)""",
    re.DOTALL,
)


def write_submission(
    form: str, folder: Path, questions: Sequence[tuple[str, str]], sqls: Mapping[str, str | None]
) -> list[Path]:
    """Write the SQL of all `questions` (uid, db_id) in the format of a benchmark, and as JSON lines.

    `sqls` has the SQL by uid. The format `form` is one of these: `spider`, a line per question; `bird`, an object keyed
    by index; `ehrsql`, an object keyed by id, with `null` for no SQL; `spider2`, a folder of `<id>.sql`; others, only
    the JSON lines. If several questions have the same id, only the first has SQL.
    """
    lines = [{"id": uid, "sql": sqls.get(uid)} for uid in dict.fromkeys(uid for uid, _ in questions)]
    written = [folder / "predictions.jsonl"]
    written[0].write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    by_index = [(sqls.get(uid) or NO_SQL_PLACEHOLDER, db_id) for uid, db_id in questions]
    seen: set[str] = set()
    for i, (uid, _) in enumerate(questions):
        if uid in seen:
            by_index[i] = (NO_SQL_PLACEHOLDER, "")
        seen.add(uid)
    if form == "spider":
        written.append(folder / "predictions.sql")
        written[-1].write_text("".join(f"{one_line(sql)}\n" for sql, _ in by_index), encoding="utf-8")
    elif form == "bird":
        written.append(folder / "predictions.json")
        numbered = {str(i): f"{sql}{BIRD_MARK}{db_id}" for i, (sql, db_id) in enumerate(by_index)}
        written[-1].write_text(json.dumps(numbered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    elif form == "ehrsql":
        written.append(folder / "predictions.json")
        answers = {uid: sqls.get(uid) or "null" for uid, _ in questions}
        written[-1].write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    elif form == "spider2":
        written.append(folder / "submission")
        written[-1].mkdir(exist_ok=True)
        for uid in seen:
            (written[-1] / f"{uid}.sql").write_text((sqls.get(uid) or NO_SQL_PLACEHOLDER) + "\n", encoding="utf-8")
    return written


def write_results(
    executor: SqlExecutor, folder: Path, examples: Sequence[Example], sqls: Mapping[str, str | None]
) -> Path:
    """Write query results as `submission_csv/<id>.csv`, Spider 2.0's other format; failed queries have no file."""
    target = folder / "submission_csv"
    target.mkdir(exist_ok=True)
    for example in examples:  # one after another: a result may be large
        (outcome,) = executor.execute_many([(example.database, sqls.get(example.uid) or "")])
        if outcome.status == "ok":
            with (target / f"{example.uid}.csv").open("w", encoding="utf-8", errors="replace", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(outcome.columns)
                writer.writerows(outcome.rows)
    return target


def one_line(sql: str) -> str:
    """Return a query as one line: comments are removed, and whitespace runs, tabs and line ends become a space."""

    def flatten_piece(piece: re.Match[str]) -> str:
        return re.sub(r"[\t\r\n]", " ", piece["text"]) if piece["text"] else " "

    return _TEXT_COMMENT_OR_BLANK.sub(flatten_piece, sql).strip()
