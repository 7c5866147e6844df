"""Schemas exactly as the code that other text-to-SQL systems published writes them, byte by byte.

`raw_ddl` is the text of `sqlite_master`, as in SQL-R1's training rows. `omnisql_strict` is the output of OmniSQL's
function for evaluation. It has names, types, natural names ("student id" for `stuid`) and keys from the tables file of
the set (Spider's `tables.json`), and two values of each column from the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from jaxrl_sql.text2sql.schema.cache import Version, version_of
from jaxrl_sql.text2sql.schema.describe import tables_file_records, tables_files
from jaxrl_sql.text2sql.schema.quote import as_released_omnisql, quote_name
from jaxrl_sql.text2sql.schema.read import Schema, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import read_file, skip_unreadable
from jaxrl_sql.types import Example, Fields, InputError

# OmniSQL's numbers: sampled values per column, values per column in the prompt, and characters per value.
_NUM_SAMPLED, _MAX_SHOWN, _MAX_CHARACTERS = 2, 6, 40

T = TypeVar("T")
_Key = tuple[str, str]  # a table and a column in lower case
_Values = Mapping[_Key, Sequence[object]]


def raw_ddl(example: Example, _schema: Schema) -> str:
    """Return the statements that created the tables of an example's database, separated by blank lines."""
    return _statements(version_of(example.db_path))


@lru_cache(maxsize=4096)
def _statements(version: Version) -> str:
    def read(connection: sqlite3.Connection) -> str:
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL")
        return "\n\n".join(sql for (sql,) in rows)

    return _read(version.path, read)


def omnisql_strict(example: Example, schema: Schema) -> str:
    """Return the tables and columns of a schema as OmniSQL's function writes them.

    Values that the question names come first among a column's examples. Raises InputError without a tables file.
    """
    record = _record_of(example.db_path)
    matched: dict[_Key, list[object]] = {}
    for table, column, value in schema.matched:
        matched.setdefault((table.lower(), column.lower()), []).append(value)
    sampled_values = _sample_values(version_of(example.db_path, example.hide))
    values = {
        key: [*dict.fromkeys((*matched.get(key, ()), *sampled_values.get(key, ())))][:_MAX_SHOWN]
        for key in matched.keys() | sampled_values.keys()
    }
    # The columns that `schema` lacks are omitted. The tables file may list others, such as sqlite_sequence; these stay.
    left_out = _columns(read_schema(example.db_path)) - _columns(schema)
    return "\n\n".join(_tables(record, values, left_out))


def _columns(schema: Schema) -> set[_Key]:
    return {(table.name.lower(), column.name.lower()) for table in schema.tables for column in table.columns}


def _tables(record: Fields, values: _Values, left_out: set[_Key]) -> Iterator[str]:
    """Yield the CREATE TABLE statement of each table; the columns of a key are in the order of the tables file.

    `record` is the database's object in the tables file, which lists columns as (index of the table, name). Columns in
    `left_out` are omitted.
    """
    names, columns = record["table_names_original"], record["column_names_original"]
    keys = [(names[table_id].lower() if table_id >= 0 else "", name.lower()) for table_id, name in columns]
    in_key = {i for key in record["primary_keys"] for i in (key if isinstance(key, list) else [key])}
    for number, table in enumerate(names):
        ids = [i for i, (table_id, _) in enumerate(columns) if table_id == number and keys[i] not in left_out]
        lines = [_column(record, i, values.get(keys[i], ())) for i in ids]
        key = dict.fromkeys(as_released_omnisql(columns[i][1]) for i in ids if i in in_key)
        lines += [f"PRIMARY KEY ({', '.join(key)}),"] if key else []
        references = (
            _reference(record, source, target)
            for i in ids
            for source, target in record["foreign_keys"]
            if i == source and keys[target] not in left_out
        )
        lines += dict.fromkeys(references)
        if ids:
            # A comment at the end keeps its column's comma, as in the released prompts.
            body = "\n".join(f"    {line}" for line in lines).removesuffix(",")
            yield f"CREATE TABLE {as_released_omnisql(table)} (\n{body}\n);"


def _column(record: Fields, i: int, values: Sequence[object]) -> str:
    """Return the line of column i, with a comment of its natural name and its values."""
    (_, name), (_, natural) = record["column_names_original"][i], record["column_names"][i]
    lower = natural.lower()
    repeats = name.lower() in (lower, lower.replace(" ", "_"), lower.replace(" ", ""))
    parts = ["" if repeats or not natural.strip() else natural, f"example: {[*values]}" if values else ""]
    comment = ", ".join(filter(None, parts))
    line = f"{as_released_omnisql(name)} {record['column_types'][i]},"
    return f"{line} -- {comment}" if comment else line


def _reference(record: Fields, source: int, target: int) -> str:
    """Return the line of a foreign key from column `source` to column `target`."""
    names, columns = record["table_names_original"], record["column_names_original"]
    (table, column), (target_table, target_column) = ((names[columns[i][0]], columns[i][1]) for i in (source, target))
    constraint = f"fk_{table}_{column}".lower().replace(" ", "_")
    to = f"{as_released_omnisql(target_table)} ({as_released_omnisql(target_column)})"
    return f"CONSTRAINT {constraint} FOREIGN KEY ({as_released_omnisql(column)}) REFERENCES {to},"


def _record_of(db_path: str) -> Fields:
    """Return a database's object in the tables file; raises InputError without one."""
    files = tables_files(Path(db_path))
    versions = tuple((str(file), file.stat().st_mtime_ns) for file in files)
    return _read_record(db_path, versions)


@lru_cache(maxsize=4096)
def _read_record(db_path: str, _versions: tuple[tuple[str, int], ...]) -> Fields:
    record = next(iter(tables_file_records(db_path)), None)
    if record is None:
        raise InputError(
            f"data.schema=omnisql_strict needs the tables file of the set (tables.json) with {Path(db_path).stem}, "
            f"next to the folder of the databases of {db_path}"
        )
    return record


@lru_cache(maxsize=4096)
def _sample_values(version: Version) -> _Values:
    """Return the first two distinct values of each column that are not NULL and not empty."""

    def read(connection: sqlite3.Connection) -> _Values:
        values: dict[_Key, list[object]] = {}
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            with skip_unreadable(version.path, table):
                columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
                for (column,) in columns:
                    with skip_unreadable(version.path, f"{table}.{column}"):
                        values[table.lower(), column.lower()] = _first_values(connection, table, column)
        return values

    return _read(version.path, read)


def _first_values(connection: sqlite3.Connection, table: str, column: str) -> list[object]:
    """Return the first distinct values of a column, texts truncated."""
    name, source = quote_name(column, always=True), quote_name(table, always=True)
    rows = connection.execute(
        f"SELECT DISTINCT {name} FROM {source} WHERE {name} IS NOT NULL AND {name} != '' LIMIT {_NUM_SAMPLED}"
    )
    return [value[:_MAX_CHARACTERS] if isinstance(value, str) else value for (value,) in rows]


def _read(path: str, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of `read` on a connection to a file; raises InputError if the file is not readable."""
    try:
        return read_file(path, read)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter in SQLite's error messages
        raise InputError(f"{path}: not a readable SQLite database ({error})") from error
