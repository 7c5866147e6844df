"""Predictions in the form that a benchmark's own leaderboard takes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_sql.text2sql.env.files import BIRD_MARK
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.types import Example

NOTHING = "SELECT no_sql_was_given"
"""Stands for a question without SQL: it fails everywhere, where an empty line would be skipped or equal nothing."""

_PIECE = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])|(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<blank>\s+)""",
    re.DOTALL,
)


def write_submission(
    form: str, folder: Path, asked: Sequence[tuple[str, str]], sqls: Mapping[str, str | None]
) -> list[Path]:
    """Write the SQL of all questions `asked` (uid, db_id) in the form of a benchmark, and as JSON lines.

    `spider`: a line each. `bird`: an object of numbers. `ehrsql`: an object of ids, `null` where there is no SQL.
    `spider2`: a folder of `<id>.sql`. Of several questions with one id the first was asked; the others have no SQL.
    """
    lines = [{"id": uid, "sql": sqls.get(uid)} for uid in dict.fromkeys(uid for uid, _ in asked)]
    written = [folder / "predictions.jsonl"]
    written[0].write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    by_place = [(sqls.get(uid) or NOTHING, db_id) for uid, db_id in asked]
    seen: set[str] = set()
    for i, (uid, _) in enumerate(asked):
        if uid in seen:
            by_place[i] = (NOTHING, "")
        seen.add(uid)
    if form == "spider":
        written.append(folder / "predictions.sql")
        written[-1].write_text("".join(f"{one_line(sql)}\n" for sql, _ in by_place), encoding="utf-8")
    elif form == "bird":
        written.append(folder / "predictions.json")
        numbered = {str(i): f"{sql}{BIRD_MARK}{db_id}" for i, (sql, db_id) in enumerate(by_place)}
        written[-1].write_text(json.dumps(numbered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    elif form == "ehrsql":
        written.append(folder / "predictions.json")
        answers = {uid: sqls.get(uid) or "null" for uid, _ in asked}
        written[-1].write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    elif form == "spider2":
        written.append(folder / "submission")
        written[-1].mkdir(exist_ok=True)
        for uid in seen:
            (written[-1] / f"{uid}.sql").write_text((sqls.get(uid) or NOTHING) + "\n", encoding="utf-8")
    return written


def write_results(
    executor: SqlExecutor, folder: Path, examples: Sequence[Example], sqls: Mapping[str, str | None]
) -> Path:
    """Write what each query returns as `submission_csv/<id>.csv`, Spider 2.0's other form; what fails has no file."""
    place = folder / "submission_csv"
    place.mkdir(exist_ok=True)
    for example in examples:  # one after another: a result may be large
        (outcome,) = executor.execute_many([(example.database, sqls.get(example.uid) or "")])
        if outcome.status == "ok":
            with (place / f"{example.uid}.csv").open("w", encoding="utf-8", errors="replace", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                rows.writerow(outcome.columns)
                rows.writerows(outcome.rows)
    return place


def one_line(sql: str) -> str:
    """Write a query in one line without tabs: comments go, and blanks become one; so do line ends inside of texts."""

    def written(piece: re.Match[str]) -> str:
        return re.sub(r"[\t\r\n]", " ", piece["text"]) if piece["text"] else " "

    return _PIECE.sub(written, sql).strip()
