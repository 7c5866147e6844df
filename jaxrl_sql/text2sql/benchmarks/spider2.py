"""Spider 2.0 (Lei et al. 2024), the questions on SQLite databases: each gold is a result table in a CSV file.

`spider2-lite.jsonl` has `instance_id`, `db`, `question` and `external_knowledge`, the name of a text in
`resource/documents/`. Databases are `resource/databases/spider2-localdb/<db>.sqlite`. The evaluation's folder has
`exec_result/<id>.csv`, or `<id>_a.csv`, `<id>_b.csv`, … for alternative answers. Its `spider2lite_eval.jsonl` has the
comparison options `condition_cols` and `ignore_order`. A single folder with the same files, `test.json` and
`databases/<db>/<db>.sqlite` is valid, too. Questions for other engines (BigQuery, Snowflake) are skipped with a reason.

An answer is right if its result has each gold column, or those of `condition_cols`, in any order and with any further
columns; `ignore_order` ignores the order of rows.
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
"""The column names of a query's result, and its rows."""

_QUESTIONS = ("spider2-lite.jsonl", "spider2-snow.jsonl", "spider2-lite.json", "spider2_sqlite.jsonl", "test.json")
_EVAL_OPTIONS_FILES = "*spider2*eval*.jsonl"
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
    """Read the questions on SQLite databases: the only split, with the names `test`, `dev` and `sqlite`."""
    path = _questions(folder)
    if path is None or split not in ("", "test", "dev", "sqlite"):
        raise missing_split_error(folder, split, ["test"] if path else [])
    options_by_id = _read_eval_options(folder, notes)
    results = [folder / name for name in _RESULTS if (folder / name).is_dir()]
    if not results:
        notes.append(f"no golds: exec_result/<id>.csv is expected in {folder / _RESULTS[0]} or {folder / _RESULTS[2]}")
    databases = Databases(folder / name for name in _DATABASES)
    records = read_records(path, notes)
    items = [_item(folder, record, options_by_id, results, databases, notes) for record in records]
    lacking = [item.uid for item in items if not item.error and options_by_id and item.uid not in options_by_id]
    if lacking:
        notes.append(
            f"{quantity(len(lacking), 'questions', 'have')} no line in the evaluation's standard, first "
            f"{', '.join(lacking[:3])}: "
            "all columns are compared, in any order"
        )
    return LoadedQuestions(
        items, databases, f"{path} (databases are expected in {folder / _DATABASES[0]} or {folder / 'databases'})"
    )


def _read_eval_options(folder: Path, notes: Notes) -> dict[str, Record]:
    """Return the comparison options of each question by id, from the file that Spider 2.0 calls evaluation standard.

    For a repeated id, the first options count, as for questions.
    """
    folders = [folder, *(folder / name for name in ("evaluation_suite/gold", "gold", "evaluation_suite"))]
    path = next((path for inner in folders for path in sorted(inner.glob(_EVAL_OPTIONS_FILES))), None)
    if path is None:
        notes.append(
            f"no evaluation standard ({_EVAL_OPTIONS_FILES} is expected in {folders[1]}): all columns are compared, "
            "in any order"
        )
        return {}
    return {id_of(record, str(path), "instance_id"): record for record in reversed(read_records(path, notes))}


def _item(
    folder: Path,
    record: Record,
    options_by_id: Mapping[str, Record],
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
    files = [file for inner in results for file in _gold_files(inner, uid)]
    try:
        tables = [read_table(file, notes) for file in files]
    except ValueError as error:
        return PublishedQuestion(uid, db_id, question, error=f"gold table: {error}")
    if not tables:
        return PublishedQuestion(uid, db_id, question, error="no gold table")
    options, tables = _options(options_by_id.get(uid, {}), tables)
    knowledge = _knowledge(folder, text_field(record, "external_knowledge"), uid, notes)
    more = {"gold_tables": tuple(tables), "options": options}
    return PublishedQuestion(uid, db_id, question, evidence=knowledge, more=more)


def _gold_files(folder: Path, uid: str) -> list[Path]:
    """Return the files of a question's gold results: `<id>.csv`, or `<id>_a.csv` and so on for alternatives."""
    name = re.compile(rf"{re.escape(uid)}(_[a-z])?\.csv")
    return [path for path in sorted(folder.glob(f"{uid}*.csv")) if name.fullmatch(path.name)]


def _options(eval_options: Fields, tables: list[ResultTable]) -> tuple[Record, list[ResultTable]]:
    """Return the comparison's options and the golds.

    `condition_cols` has the indices of the gold columns to compare, or such a list per gold. In the second case the
    golds are reduced to these columns instead, which is equivalent; surplus lists are ignored.
    """
    ignore_order = eval_options.get("ignore_order", True)
    options: Record = {"ignore_order": bool(ignore_order)}
    columns = eval_options.get("condition_cols") or []
    if any(isinstance(column, list) for column in columns):
        if len(columns) >= len(tables):
            return options, [
                _select_columns(table, columns_of_gold or [])
                for table, columns_of_gold in zip(tables, columns, strict=False)
            ]
        columns = columns[0] if len(columns) == 1 else []
    if columns:
        options["condition_cols"] = [int(column) for column in columns]
    return options, tables


def _select_columns(table: ResultTable, columns: Sequence[int]) -> ResultTable:
    """Return a table with only the columns of these indices; unchanged if there are none, or one is out of range."""
    names, rows = table
    if not columns or max(columns) >= len(names):
        return table
    return tuple(names[c] for c in columns), tuple(tuple(row[c] for c in columns) for row in rows)


def read_table(path: Path, notes: Notes) -> ResultTable:
    """Read a gold table; a column of only numbers has numeric values, and '', 'NA', 'None' and 'nan' are NULL.

    Raises ValueError for a file without a header, rows of a different width, and an unclosed quote.
    """
    previous_limit = csv.field_size_limit(1 << 30)  # a global setting of the process, restored below
    try:
        rows = [row for _, row, _ in csv_rows(read_text(path, notes)) if row]
    except csv.Error as error:
        raise ValueError(f"{path.name}, {error}") from error
    finally:
        csv.field_size_limit(previous_limit)
    if not rows:
        raise ValueError(f"{path.name} is empty")
    header, body = rows[0], rows[1:]
    wrong_row = next((number for number, row in enumerate(body, start=2) if len(row) != len(header)), 0)
    if wrong_row:
        raise ValueError(f"row {wrong_row} of {path.name} lacks the {len(header)} columns of its header")
    columns = [_convert_column([row[c] for row in body]) for c in range(len(header))]
    return tuple(header), tuple(zip(*columns, strict=True)) if body else ()


def _convert_column(values: Sequence[str]) -> list[Cell]:
    """Convert a column to the type of its values, as pandas does when it reads a CSV.

    Only numbers of usual size and form (`_NUMBER`) are converted. Others stay text, which the comparison parses in
    golds and predictions alike.
    """
    present = [value for value in values if value not in _MISSING]
    convert: Callable[[str], Cell] = str
    if present and all(_NUMBER.fullmatch(value) for value in present):
        convert = int if all(_INTEGER.fullmatch(value) for value in present) else float
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
    name="spider2",
    rule="spider2",
    submission="spider2",
    description="spider2-lite.jsonl with instance_id, resource/databases/spider2-localdb/<db>.sqlite, "
    "evaluation_suite/gold/",
    matches=is_spider2,
    read=read_spider2,
)
