"""Read a DuckDB file for a sample, through the SQL executor: read-only, with limits, and without DuckDB's package."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.databases.engines.base import READ_SECONDS, DatabaseReader
from jaxrl_sql.databases.engines.catalog import (
    Catalog,
    CatalogColumn,
    CatalogForeignKey,
    CatalogTable,
    KeyValues,
    TablePath,
    TextRow,
)
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_names, quote_text
from jaxrl_sql.types import Cell, InputError

_MAX_ROWS = 100_000
_COLUMNS = """
SELECT c.schema_name, c.table_name, c.column_name, c.data_type, NOT c.is_nullable, c.comment, v.view_name IS NOT NULL
FROM duckdb_columns() AS c LEFT JOIN duckdb_views() AS v
ON v.database_name = c.database_name AND v.schema_name = c.schema_name AND v.view_name = c.table_name
WHERE NOT c.internal AND c.database_name = current_database()
ORDER BY c.schema_name <> 'main', c.schema_name, c.table_oid, c.column_index
"""
_KEYS = """
SELECT schema_name, table_name, constraint_type, to_json(constraint_column_names), referenced_table,
       to_json(referenced_column_names)
FROM duckdb_constraints() WHERE database_name = current_database() ORDER BY table_oid, constraint_index
"""
_KINDS: Mapping[str, str] = {
    "BOOLEAN": "boolean", "TINYINT": "integer", "SMALLINT": "integer", "INTEGER": "integer", "BIGINT": "integer",
    "UTINYINT": "integer", "USMALLINT": "integer", "UINTEGER": "integer", "UBIGINT": "whole", "HUGEINT": "whole",
    "UHUGEINT": "whole", "FLOAT": "float", "DOUBLE": "float", "VARCHAR": "text", "DATE": "date", "TIME": "time",
    "TIMESTAMP": "timestamp", "TIMESTAMP_S": "timestamp", "TIMESTAMP_MS": "timestamp", "TIMESTAMP_NS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "zoned", "BLOB": "bytes",
}  # fmt: skip


class DuckdbReader(DatabaseReader):
    """A DuckDB file. Each statement has a time limit and runs in a process that can only read the file."""

    reasons: ClassVar = {}

    def __init__(self, path: Path) -> None:
        self.file = path
        self.shown = f"duckdb:{path}"
        self.quote_name, self.quote_list = partial(quote_name, always=True), partial(quote_names, always=True)
        if not path.is_file():
            raise InputError(f"{self.shown}: no such file")
        limits = ExecutorConfig(threads=1, engine_timeout_ms=READ_SECONDS * 1000, max_rows=_MAX_ROWS)
        self._executor = make_executor(limits)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()

    def catalog(self) -> Catalog:
        """Return the tables and views of all schemas, in the order of their creation."""
        columns: dict[TablePath, list[CatalogColumn]] = defaultdict(list)
        views = set()
        for schema, name, column, kind, not_null, comment, is_view in self._rows(self.shown, _COLUMNS):
            path = (str(schema), str(name))
            columns[path].append(
                CatalogColumn(str(column), str(kind), _kind(str(kind)), bool(not_null), str(comment or ""))
            )
            views |= {path} if is_view else set()
        # (table, type of the constraint, columns, referenced table, referenced columns)
        keys = [
            (path, str(kind), tuple(json.loads(str(names))), parent, tuple(json.loads(str(targets or "[]"))))
            for schema, name, kind, names, parent, targets in self._rows(self.shown, _KEYS)
            if (path := (str(schema), str(name))) in columns
        ]
        # A DuckDB foreign key references a table of its own schema, `path[0]`.
        types = {
            (path, column.name): column.type for path, table_columns in columns.items() for column in table_columns
        }
        tables = []
        for path, table_columns in columns.items():
            primary = next((names for table, kind, names, *_ in keys if (table, kind) == (path, "PRIMARY KEY")), ())
            unique = tuple(names for table, kind, names, *_ in keys if (table, kind) == (path, "UNIQUE"))
            tables.append(CatalogTable(path, tuple(table_columns), primary, unique, primary, is_view=path in views))
        foreign = [
            CatalogForeignKey(path, names, (path[0], str(parent)), targets, tuple(types[path, name] for name in names))
            for path, kind, names, parent, targets in keys
            if kind == "FOREIGN KEY" and (path[0], str(parent)) in columns
        ]
        return Catalog(tuple(tables), tuple(foreign))

    def first_rows(self, table: CatalogTable, count: int) -> list[TextRow]:
        """Return the first `count` rows of a table, sorted by the columns `table.order`."""
        order = f" ORDER BY {self.quote_list(table.order)}" if table.order else ""
        shown = ", ".join(_as_text(column, "t") for column in table.columns)
        return self.run(table.title, f"SELECT {shown} FROM {self.qualified_name(table)} AS t{order} LIMIT {count}")

    def parents(self, parent: CatalogTable, key: CatalogForeignKey, keys: Sequence[KeyValues]) -> list[TextRow]:
        """Return the rows of the referenced table `parent` whose columns `key.targets` equal one of `keys`."""
        names = [f"c{number}" for number in range(len(key.columns))]
        casts = [
            [f"CAST({quote_text(value)} AS {kind})" for value, kind in zip(values, key.types, strict=True)]
            for values in keys
        ]
        rows = ", ".join(f"({', '.join(row)})" for row in casts)
        on = " AND ".join(
            f"p.{self.quote_name(target)} = k.{name}" for target, name in zip(key.targets, names, strict=True)
        )
        shown = ", ".join(_as_text(column, "p") for column in parent.columns)
        keyed = f"(VALUES {rows}) AS k({', '.join(names)})"
        return self.run(parent.title, f"SELECT {shown} FROM {keyed} JOIN {self.qualified_name(parent)} AS p ON {on}")

    def run(self, title: str, sql: str) -> list[TextRow]:
        """Run a statement on the table `title` and return its rows as texts."""
        return [tuple(None if cell is None else str(cell) for cell in row) for row in self._rows(title, sql)]

    def texts(self, sql: str) -> list[TextRow]:
        """Run a statement and return its rows as texts."""
        return self.run(self.shown, sql)

    def code(self, _error: Any) -> object:
        """Return None: the executor's errors have no codes."""
        return None

    def _rows(self, title: str, sql: str) -> Sequence[tuple[Cell, ...]]:
        outcome = self._executor.execute(f"duckdb:{self.file}", sql)
        if outcome.status == "timeout":
            raise InputError(f"{title} takes more than {READ_SECONDS} s to read: omit the table with --leave-out")
        if outcome.status != "ok" or outcome.rows is None:
            raise InputError(f"{title}: {' '.join((outcome.error or outcome.status).split())}")
        return outcome.rows


def _kind(declared: str) -> str:
    """Return the kind of a type's values; for lists, structs and other types `other`: the sample has their text."""
    if declared.startswith("DECIMAL("):
        return "whole" if declared.rstrip(")").endswith(",0") else "numeric"
    return "text" if declared.startswith("ENUM(") else _KINDS.get(declared, "other")


def _as_text(column: CatalogColumn, table: str) -> str:
    """Return the SQL expression that writes a column's value as the text that `sample.values` reads."""
    name = f"{table}.{quote_name(column.name, always=True)}"
    if column.kind == "bytes":
        return f"hex({name})"
    if column.kind == "boolean":
        return f"CAST(CAST({name} AS TINYINT) AS VARCHAR)"
    text = f"CAST({name} AS VARCHAR)"
    return f"replace({text}, 'nan', 'NaN')" if column.kind == "float" else text
