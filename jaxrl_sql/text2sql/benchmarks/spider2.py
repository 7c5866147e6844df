"""Spider 2.0 (Lei et al. 2024), the questions on SQLite databases: each gold is a result table in a CSV file.

`spider2-lite.jsonl` has `instance_id`, `db`, `question` and `external_knowledge`, the name of a text in
`resource/documents/`. Databases are `resource/databases/spider2-localdb/<db>.sqlite`. The evaluation's folder has
`exec_result/<id>.csv`, or `<id>_a.csv`, `<id>_b.csv`, … for alternative answers. Its `spider2lite_eval.jsonl` has the
comparison options `condition_cols` and `ignore_order`. A single folder with the same files, `test.json` and
`databases/<db>/<db>.sqlite` is valid, too. Questions for other engines are skipped and counted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes, csv_rows, first_record, read_records, read_text
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    id_of,
    missing_split_error,
    text_field,
)
from jaxrl_sql.types import Cell, Fields, Record

ResultTable = tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]

_QUESTIONS = ("spider2-lite.jsonl", "spider2-snow.jsonl", "spider2-lite.json", "spider2_sqlite.jsonl", "test.json")
_STANDARDS = "*spider2*eval*.jsonl"
_DATABASES = (
    "resource/databases/spider2-localdb",
    "resource/databases/sqlite",
    "resource/databases",
    "spider2-localdb",
    "databases",
    "database",
)
_RESULTS = ("evaluation_suite/gold/exec_result", "gold/exec_result", "gold_exec_result", "exec_result")
_DOCUMENTS = ("resource/documents", "documents", "external_knowledge")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}|[0-9]*\.[0-9]+|[0-9]+\.)(?:[eE][+-]?[0-9]{1,2})?")
# The texts that pandas, the scorer's CSV reader, considers missing values.
_MISSING = frozenset(
    ",#N/A,#N/A N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>,N/A,NA,NULL,NaN,None,n/a,nan,null".split(",")
)


def _questions(folder: Path) -> Path | None:
    paths = [folder / name for name in _QUESTIONS if (folder / name).is_file()]
    return next((path for path in paths if "instance_id" in first_record(path)), None)


def is_spider2(folder: Path) -> bool:
    """Return whether a folder contains Spider 2.0: questions with an `instance_id`."""
    return _questions(folder) is not None


def read_spider2(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read the questions on SQLite databases."""
    path = _questions(folder)
    if path is None or split not in ("", "test", "dev", "sqlite"):
        raise missing_split_error(folder, split, ["test"] if path else [])
    standards = _standards(folder, notes)
    results = [folder / name for name in _RESULTS if (folder / name).is_dir()]
    if not results:
        notes.append(f"no golds: exec_result/<id>.csv is expected in {folder / _RESULTS[0]} or {folder / _RESULTS[2]}")
    databases = Databases(folder / name for name in _DATABASES)
    records = read_records(path, notes)
    items = [_item(folder, record, standards, results, databases, notes) for record in records]
    lacking = [item.uid for item in items if not item.error and standards and item.uid not in standards]
    if lacking:
        notes.append(
            f"{quantity(len(lacking), 'questions', 'have')} no line in the evaluation's standard, first "
            f"{', '.join(lacking[:3])}: "
            "all columns are compared, in any order"
        )
    return LoadedQuestions(
        items, databases, f"{path} (databases are expected in {folder / _DATABASES[0]} or {folder / 'databases'})"
    )


def _standards(folder: Path, notes: Notes) -> dict[str, Record]:
    """Return the comparison options of each question by id; for a repeated id, the first count, as for questions."""
    folders = [folder, *(folder / name for name in ("evaluation_suite/gold", "gold", "evaluation_suite"))]
    path = next((path for inner in folders for path in sorted(inner.glob(_STANDARDS))), None)
    if path is None:
        notes.append(
            f"no evaluation standard ({_STANDARDS} is expected in {folders[1]}): all columns are compared, in any order"
        )
        return {}
    return {id_of(record, str(path), "instance_id"): record for record in reversed(read_records(path, notes))}


def _item(
    folder: Path,
    record: Record,
    standards: Mapping[str, Record],
    results: Sequence[Path],
    databases: Databases,
    notes: Notes,
) -> PublishedQuestion:
    uid, db_id = id_of(record, str(folder), "instance_id"), text_field(record, "db", "db_id")
    question = text_field(record, "question", "instruction")
    if not uid:
        return PublishedQuestion(uid, db_id, question, error="no id")
    if not uid.startswith(("local", "sf_local")) and not databases.path(db_id):
        return PublishedQuestion(
            uid, db_id, question, error="requires an engine other than SQLite (BigQuery or Snowflake)"
        )
    files = [file for inner in results for file in _files_of(inner, uid)]
    try:
        tables = [read_table(file, notes) for file in files]
    except ValueError as error:
        return PublishedQuestion(uid, db_id, question, error=f"gold table: {error}")
    if not tables:
        return PublishedQuestion(uid, db_id, question, error="no gold table")
    options, tables = _options(standards.get(uid, {}), tables)
    knowledge = _knowledge(folder, text_field(record, "external_knowledge"), uid, notes)
    more = {"gold_tables": tuple(tables), "options": options}
    return PublishedQuestion(uid, db_id, question, evidence=knowledge, more=more)


def _files_of(folder: Path, uid: str) -> list[Path]:
    """Return the gold tables of a question: `<id>.csv`, or `<id>_a.csv` and so on."""
    name = re.compile(rf"{re.escape(uid)}(_[a-z])?\.csv")
    return [path for path in sorted(folder.glob(f"{uid}*.csv")) if name.fullmatch(path.name)]


def _options(standard: Fields, tables: list[ResultTable]) -> tuple[Record, list[ResultTable]]:
    """Return the comparison's options and the golds.

    If each gold has its own list of relevant columns, the golds are reduced to these, which is equivalent; further
    lists are ignored.
    """
    ignore_order = standard.get("ignore_order", True)
    options: Record = {"ignore_order": bool(ignore_order)}
    columns = standard.get("condition_cols") or []
    if any(isinstance(column, list) for column in columns):
        if len(columns) >= len(tables):
            return options, [_select_columns(table, some or []) for table, some in zip(tables, columns, strict=False)]
        columns = columns[0] if len(columns) == 1 else []
    if columns:
        options["condition_cols"] = [int(column) for column in columns]
    return options, tables


def _select_columns(table: ResultTable, columns: Sequence[int]) -> ResultTable:
    names, rows = table
    if not columns or max(columns) >= len(names):
        return table
    return tuple(names[c] for c in columns), tuple(tuple(row[c] for c in columns) for row in rows)


def read_table(path: Path, notes: Notes) -> ResultTable:
    """Read a gold table; a column of only numbers has numeric values, and '', 'NA', 'None' and 'nan' are NULL.

    Raises ValueError for a file without a header, rows of a different width, and an unclosed quote.
    """
    usual = csv.field_size_limit(1 << 30)  # a global of the process
    try:
        rows = [row for _, row, _ in csv_rows(read_text(path, notes)) if row]
    except csv.Error as error:
        raise ValueError(f"{path.name}, {error}") from error
    finally:
        csv.field_size_limit(usual)
    if not rows:
        raise ValueError(f"{path.name} is empty")
    header, body = rows[0], rows[1:]
    odd = next((number for number, row in enumerate(body, start=2) if len(row) != len(header)), 0)
    if odd:
        raise ValueError(f"row {odd} of {path.name} lacks the {len(header)} columns of its header")
    columns = [_convert_column([row[c] for row in body]) for c in range(len(header))]
    return tuple(header), tuple(zip(*columns, strict=True)) if body else ()


def _convert_column(values: Sequence[str]) -> list[Cell]:
    """Convert a column to the type of its values, as pandas does when it reads a CSV.

    Only plain numbers are converted: the comparison reads others in text, as in predictions.
    """
    some = [value for value in values if value not in _MISSING]
    convert: Callable[[str], Cell] = str
    if some and all(_NUMBER.fullmatch(value) for value in some):
        convert = int if all(_INTEGER.fullmatch(value) for value in some) else float
    return [None if value in _MISSING else convert(value) for value in values]


def _knowledge(folder: Path, name: str, uid: str, notes: Notes) -> str:
    """Return the document that a question refers to by name, or inline knowledge unchanged."""
    if not name or not name.endswith((".md", ".txt")):
        return name
    paths = [folder / inner / Path(name).name for inner in _DOCUMENTS]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        notes.append(f"{uid}: external knowledge {name} is missing (expected in {folder / _DOCUMENTS[0]})")
        return ""
    return read_text(path, notes).strip()


SPIDER2 = Format(
    "spider2",
    "spider2",
    "spider2",
    "spider2-lite.jsonl with instance_id, resource/databases/spider2-localdb/<db>.sqlite, evaluation_suite/gold/",
    is_spider2,
    read_spider2,
)
