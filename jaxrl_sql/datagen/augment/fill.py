"""Insert rows into a copy of a database so that a gold returns rows, within the constraints of the tables.

A gold is the reference query of a question. `required_rows` derives the rows that it needs, with operators such as `=`,
`like`, `known` (not NULL) and `new` (not an existing value) on their columns. Existing rows are reused if they fit. New
rows are copies of existing ones with the values that the query names, new keys and valid references.

An insertion is committed if the gold returns rows, all golds that returned rows still do, and no gold without a tie at
its LIMIT gets one (a tie is a LIMIT between rows of equal sort keys). Otherwise it is rolled back.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlglot import exp

from jaxrl_sql.datagen.augment.change import Change
from jaxrl_sql.datagen.augment.column_kind import has_same_kind, nearest_value, next_value
from jaxrl_sql.datagen.augment.required_rows import RequiredCell, RequiredRows, read_required_rows, value_for
from jaxrl_sql.text2sql.env.parse import parse_statements
from jaxrl_sql.text2sql.evals.ties import is_tied
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import ForeignKey, Schema, Table
from jaxrl_sql.types import Record

# Limit of SQLite instructions for all queries of an insertion, counted in steps of `_INSTRUCTIONS_PER_STEP`.
_MAX_INSTRUCTIONS = 1_000_000_000
_INSTRUCTIONS_PER_STEP = 10_000
# Longest chain of new rows that reference each other.
_MAX_DEPTH = 5
# A row that violates a constraint is generated again, this many times in all.
_ATTEMPTS = 5
# Number of existing values of a column that are compared.
_MAX_EXISTING = 50
# The value of a column in the first row of an empty table, by a part of its declared type.
_DEFAULTS = (
    ("INT", 1), ("REAL", 1.0), ("FLOA", 1.0), ("DOUB", 1.0), ("NUM", 1), ("DEC", 1.0), ("YEAR", 2020), ("BOOL", 0),
    ("DATETIME", "2020-01-01 00:00:00"), ("TIMESTAMP", "2020-01-01 00:00:00"), ("DATE", "2020-01-01"),
    ("TIME", "12:00:00"),
)  # fmt: skip
_DEFAULT_TEXT = "a"
RowValues = Record
"""The values of a row by column."""


class _InsertedRow(NamedTuple):
    table: str
    row: RowValues


class _NoRowError(Exception):
    """Raised if no row satisfies the query and the constraints of the tables."""


def fill(
    connection: sqlite3.Connection, schema: Schema, uid: str, sql: str, others: Sequence[str], rng: random.Random,
    is_enough: Callable[[Sequence[tuple[Any, ...]]], bool] = bool,
) -> Change | str:  # fmt: skip
    """Insert rows for the gold `sql` of the question `uid` and commit; return the change, or why there is none.

    `others` are golds that must still return rows, without new ties. `is_enough` decides whether the gold's rows (its
    first two) suffice; by default one row does.
    """
    reason = "the query cannot be parsed, or names no table"
    with _limit_instructions(connection):
        untied = _find_untied(connection, others)
        # Further attempts take the second alternative of OR, IN and UNION, only new rows, and an additional row.
        for branch, reuses_rows, num_extra in itertools.product((0, 1), (True, False), (0, 1)):
            required = read_required_rows(sql, schema, lambda inner: _scalar(connection, inner), branch)
            if required is None:
                return reason
            connection.execute("SAVEPOINT filling")
            inserter = _RowInserter(connection, schema, rng)
            try:
                inserter.insert_required(required, reuses_rows, required.copies - 1 + num_extra)
                reason = (
                    _rollback_reason(connection, sql, others, untied, is_enough)
                    if inserter.inserted
                    else "the database has all rows that the query names"
                )
            except (_NoRowError, sqlite3.Error) as error:
                reason = f"no row fits: {error}"
            if not reason:
                connection.execute("RELEASE filling")
                connection.commit()
                rows = [{"table": table, "row": _as_json(row)} for table, row in inserter.inserted]
                return Change("fill", uid, {"inserted": rows, "by": "query"})
            connection.execute("ROLLBACK TO filling")
            connection.execute("RELEASE filling")
    return reason


def fill_by(
    connection: sqlite3.Connection, uid: str, sql: str, others: Sequence[str], script: str,
    is_enough: Callable[[Sequence[tuple[Any, ...]]], bool] = bool,
) -> Change | str:  # fmt: skip
    """Insert rows with the script that a chat endpoint answered; see `fill` for the other arguments.

    The script may hold INSERT statements only. In the returned reasons "the answer" is the script.
    """
    trees = parse_statements(script)
    if trees is None:
        return "the answer cannot be parsed"
    if not trees or not all(isinstance(tree, exp.Insert) for tree in trees):
        return "the answer has statements other than INSERT"
    statements = [tree.sql("sqlite") for tree in trees]
    with _limit_instructions(connection):
        untied = _find_untied(connection, others)
        connection.execute("SAVEPOINT filling")
        connection.set_authorizer(_only_inserts)
        try:
            num_violations = len(connection.execute("PRAGMA foreign_key_check").fetchall())
            for statement in statements:
                connection.execute(statement)
            reason = _rollback_reason(connection, sql, others, untied, is_enough)
            if not reason and len(connection.execute("PRAGMA foreign_key_check").fetchall()) > num_violations:
                reason = "a foreign key of a new row has no parent"
        except (sqlite3.Error, sqlite3.Warning) as error:
            reason = f"the answer does not run: {error}"
        finally:
            connection.set_authorizer(None)
        if reason:
            connection.execute("ROLLBACK TO filling")
        connection.execute("RELEASE filling")
    if reason:
        return reason
    connection.commit()
    return Change("fill", uid, {"inserted": statements, "by": "endpoint"})


def _only_inserts(action: int, name: str | None, *_: str | None) -> int:
    """Return SQLite's decision whether a statement may do an action, as an authorizer callback."""
    allowed = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
    is_check = action == sqlite3.SQLITE_PRAGMA and name == "foreign_key_check"
    return sqlite3.SQLITE_OK if action in allowed or is_check else sqlite3.SQLITE_DENY


@contextmanager
def _limit_instructions(connection: sqlite3.Connection) -> Iterator[None]:
    """Interrupt a query once all queries of the block have executed `_MAX_INSTRUCTIONS` SQLite instructions."""
    remaining_steps = itertools.count(_MAX_INSTRUCTIONS // _INSTRUCTIONS_PER_STEP, -1)

    def is_over() -> int:
        return next(remaining_steps) < 0

    connection.set_progress_handler(is_over, _INSTRUCTIONS_PER_STEP)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def _scalar(connection: sqlite3.Connection, sql: str) -> Any:
    try:
        row = connection.execute(sql).fetchone()
    except sqlite3.Error:
        return None
    return row[0] if row else None


def _find_untied(connection: sqlite3.Connection, sqls: Sequence[str]) -> list[str]:
    """Return the queries without a tie; an empty list if the check exceeds the limit."""
    try:
        return [sql for sql in sqls if not is_tied(connection, sql)]
    except sqlite3.Error:
        return []


def _rollback_reason(
    connection: sqlite3.Connection,
    sql: str,
    others: Sequence[str],
    untied: Sequence[str],
    is_enough: Callable[[Sequence[Any]], bool],
) -> str:
    """Return the reason to roll back an insertion, or ""; `untied` are the golds without a tie before it."""
    if not is_enough(connection.execute(sql).fetchmany(2)):
        return "the gold stays empty"
    if not all(connection.execute(other).fetchone() for other in others):
        return "another gold would be empty"
    if is_tied(connection, sql):
        return "the gold would have a tie"
    return "another gold would have a tie" if any(is_tied(connection, other) for other in untied) else ""


def _as_json(row: RowValues) -> RowValues:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}


class _RowInserter:
    """An attempt to insert the rows that a query needs.

    `inserted` are the new rows so far. `fixed` has the chosen values and `conditions` the conditions (operator, value),
    both by the root of the equal cells of `required`. An integer `row` is the index of a required row.
    """

    def __init__(self, connection: sqlite3.Connection, schema: Schema, rng: random.Random) -> None:
        self.connection, self.rng = connection, rng
        self.tables = {table.name.lower(): table for table in schema.tables}
        self.inserted: list[_InsertedRow] = []

    def insert_required(self, required: RequiredRows, reuses_rows: bool, num_copies: int) -> None:
        """Insert the required rows that are missing, and `num_copies` more of the row that references the others.

        With `reuses_rows` a row is missing if no existing row meets its conditions, else always.
        """
        self.required = required
        self.fixed: dict[RequiredCell, Any] = {}
        self.conditions: dict[RequiredCell, list[tuple[str, Any]]] = {}
        for cell, sign, value in required.conditions:
            self.conditions.setdefault(required.root(cell), []).append((sign, value))
        # `root` adds each root to `equal`, in which `_cells` looks up the cells that the query names.
        for cell in list(required.equal):
            required.root(cell)
        for root, conditions in self.conditions.items():
            if any(sign == "=" for sign, _ in conditions):
                self.fixed[root] = self._choose_value(conditions)
        # The row with the most conditions is looked up first, because it determines values of the others.
        order = sorted(range(len(required.rows)), key=lambda row: -len(self._row_conditions(row)))
        missing = [row for row in order if not (reuses_rows and self._row_conditions(row) and self._find(row))]
        missing = [
            row for row in missing if not (reuses_rows and not self._constrained_columns(row) and self._find(row))
        ]
        # Referenced rows are inserted before those that reference them.
        depth = {row: self._depth(required.rows[row], ()) for row in range(len(required.rows))}
        for row in sorted(missing, key=depth.__getitem__):
            self._insert(required.rows[row], self._query_values(row))
        last = max(depth, key=depth.__getitem__)  # the row with the longest chain of references
        for _ in range(num_copies):
            table = required.rows[last]
            values = {
                name: value
                for name, value in self._query_values(last).items()
                if name not in self._unique_columns(table)
            }
            self._insert(table, values)

    def _choose_value(self, conditions: Sequence[tuple[str, Any]]) -> Any:
        outcome, value = value_for(iter(conditions))
        if outcome == "none":
            raise _NoRowError("the query contradicts itself")
        return value

    def _cells(self, row: int) -> Iterator[tuple[str, RequiredCell]]:
        """Yield (column as declared, root cell of its value) of the columns of a row that the query names."""
        for column in self.required.rows[row].columns:
            cell = (row, column.name.lower())
            if cell in self.required.equal or cell in self.conditions:
                yield column.name, self.required.root(cell)

    def _constrained_columns(self, row: int) -> list[str]:
        """Return the columns of a row that have conditions of the query, not only equal cells."""
        return [name for name, root in self._cells(row) if root in self.conditions]

    def _row_conditions(self, row: int) -> list[tuple[str, str, Any]]:
        """Return (column, operator, value) conditions on a row; the operator is `is` for a chosen value."""
        conditions = []
        for name, root in self._cells(row):
            if root in self.fixed:
                conditions.append((name, "is", self.fixed[root]))
            else:
                conditions += [(name, sign, value) for sign, value in self.conditions.get(root, ())]
        return conditions

    def _find(self, row: int) -> bool:
        """Look up an existing row that meets the conditions, and fix its values; return whether it exists."""
        table = self.required.rows[row]
        conditions = self._row_conditions(row)
        if any(sign == "new" for _, sign, _ in conditions):
            return False
        tests = [_SQL_TESTS.get(sign, "{} " + sign + " ?").format(quote_name(name)) for name, sign, _ in conditions]
        values = [value for _, sign, value in conditions if "?" in _SQL_TESTS.get(sign, "?")]
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        names = [name for name, _ in self._cells(row)]
        selected = ", ".join(map(quote_name, names)) or "1"
        stored = self.connection.execute(
            f"SELECT {selected} FROM {quote_name(table.name)}{where} LIMIT 1", values
        ).fetchone()
        if stored:
            for (_, root), value in zip(self._cells(row), stored, strict=False):
                self.fixed.setdefault(root, value)
        return stored is not None

    def _query_values(self, row: int) -> RowValues:
        """Choose and return the values of a row's columns that the query names, the same for all equal cells.

        An unconstrained key gets a new value, other unconstrained columns an existing one.
        """
        table = self.required.rows[row]
        key_columns = self._key_columns(table) | self._unique_columns(table)
        values: RowValues = {}
        for name, root in self._cells(row):
            if root not in self.fixed:
                outcome, value = value_for(iter(self.conditions.get(root, ())))
                if outcome == "none":
                    raise _NoRowError("the query contradicts itself")
                if outcome == "free":
                    is_new = name in key_columns or any(sign == "new" for sign, _ in self.conditions.get(root, ()))
                    value = self._new_value(table, name) if is_new else self._choose_existing(table, name, root)
                elif value is not None:
                    value = nearest_value(self.conditions[root], value, self._existing_values(table, name))
                    if value is None:
                        raise _NoRowError(f"{table.name}.{name} has no values that satisfy the query")
                self.fixed[root] = value
            values[name] = self.fixed[root]
            if not has_same_kind(values[name], self._existing_values(table, name), is_named=True):
                raise _NoRowError(f"{table.name}.{name} has no values such as {values[name]!r}")
        return values

    def _existing_values(self, table: Table, name: str) -> list[Any]:
        """Return values of a column, highest first; without values, the default of its type unless it is a text."""
        column = quote_name(name)
        query = f"SELECT DISTINCT {column} FROM {quote_name(table.name)} WHERE {column} IS NOT NULL ORDER BY 1 DESC"
        existing = [value for (value,) in self.connection.execute(f"{query} LIMIT {_MAX_EXISTING}")]
        declared = next(column.type for column in table.columns if column.name == name)
        # The default text says nothing about the texts of the column.
        return existing or [value for value in [_default(declared)] if value != _DEFAULT_TEXT]

    def _choose_existing(self, table: Table, name: str, root: RequiredCell) -> Any:
        """Choose an existing value of the column, or of the column that it references; a new one if there is none.

        Values that the query excludes by `!=` are not chosen.
        """
        excluded = [value for sign, value in self.conditions.get(root, ()) if sign == "!="]
        for key in table.foreign_keys:
            if key.columns == (name,):
                table, name = self.tables[key.table.lower()], key.targets[0]
                break
        column = quote_name(name)
        query = f"SELECT DISTINCT {column} FROM {quote_name(table.name)} WHERE {column} IS NOT NULL LIMIT 50"
        existing = [value for (value,) in self.connection.execute(query) if value not in excluded]
        return self.rng.choice(existing) if existing else self._new_value(table, name)

    def _new_value(self, table: Table, name: str) -> Any:
        """Return a value new to the column: the next number, date or code, or a text with a number."""
        existing = self._existing_values(table, name)
        if (following := next_value(existing)) is not None:
            return following
        column, source = quote_name(name), quote_name(table.name)
        declared = next(column.type for column in table.columns if column.name == name).upper()
        query = f"SELECT MAX(CAST({column} AS INTEGER)), COUNT(*) FROM {source}"
        largest, num_rows = self.connection.execute(query).fetchone()
        number = max(largest or 0, 0) + 1
        if any(word in declared for word in ("CHAR", "TEXT", "CLOB")):
            sample = self.connection.execute(f"SELECT {column} FROM {source} LIMIT 1").fetchone()
            return str(number) if sample and str(sample[0]).isdecimal() else f"new {num_rows + 1}"
        return number

    def _unique_columns(self, table: Table) -> set[str]:
        """Return the columns that are a key by themselves."""
        return {name for names in self._keys(table) for name in names if len(names) == 1}

    def _keys(self, table: Table) -> list[tuple[str, ...]]:
        """Return the columns of each key of a table: the primary key and unique indexes."""
        keys = [table.primary_key] if table.primary_key else []
        query = 'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial'
        for (index,) in self.connection.execute(query, (table.name,)).fetchall():
            names = self.connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
            if all(name is not None for (name,) in names):
                keys.append(tuple(name for (name,) in names))
        return keys

    def _key_columns(self, table: Table) -> set[str]:
        """Return the identifying column of each key: its last column that is not a foreign key, if any."""
        references = {name for key in table.foreign_keys for name in key.columns}
        own_columns = ([name for name in names if name not in references] for names in self._keys(table))
        return {names[-1] for names in own_columns if names}

    def _depth(self, table: Table, above: tuple[str, ...]) -> int:
        """Return the number of tables in the longest chain of foreign keys from this table.

        `above` are the tables from which the chain came, so that a cycle ends.
        """
        names = {key.table.lower() for key in table.foreign_keys} - {table.name.lower(), *above}
        return 1 + max((self._depth(self.tables[name], (*above, table.name.lower())) for name in names), default=0)

    def _insert(self, table: Table, named: RowValues, depth: int = 0) -> None:
        """Insert a row with the values `named`, and first the rows that it references.

        The other values are those of an existing row. `depth` is the number of rows that led to this one by references.
        """
        if depth > _MAX_DEPTH:
            raise _NoRowError(f"the chain of foreign keys is longer than {_MAX_DEPTH}")
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            template = self._template_row(table)
            row = template | {name: value for name, value in named.items() if name in template}
            for key in table.foreign_keys:
                self._set_reference(table, key, row, named, depth)
            columns, placeholders = ", ".join(map(quote_name, row)), ", ".join("?" * len(row))
            try:
                self.connection.execute(
                    f"INSERT INTO {quote_name(table.name)} ({columns}) VALUES ({placeholders})", list(row.values())
                )
            except sqlite3.IntegrityError as failed:
                error = failed
            else:
                self.inserted.append(_InsertedRow(table.name, row))
                return
        raise _NoRowError(str(error))

    def _template_row(self, table: Table) -> RowValues:
        """Return a copy of a random row with new keys; for an empty table a row of defaults by type."""
        # Generated columns cannot be inserted.
        generated = {
            name
            for (name,) in self.connection.execute(
                "SELECT name FROM pragma_table_xinfo(?) WHERE hidden IN (2, 3)", (table.name,)
            )
        }
        columns = [column for column in table.columns if column.name not in generated]
        selected = ", ".join(quote_name(column.name) for column in columns)
        rows = self.connection.execute(f"SELECT {selected} FROM {quote_name(table.name)} LIMIT 50").fetchall()
        if rows:
            row = dict(zip((column.name for column in columns), self.rng.choice(rows), strict=True))
        else:
            row = {column.name: _default(column.type) for column in columns}
        return row | {name: self._new_value(table, name) for name in self._key_columns(table) if name in row}

    def _set_reference(self, table: Table, key: ForeignKey, row: RowValues, named: RowValues, depth: int) -> None:
        """Make the foreign key `key` of `row` reference an existing row, or a new one with the key in `named`."""
        parent = self.tables[key.table.lower()]
        source = quote_name(parent.name)
        values = [row.get(name) for name in key.columns]
        # A key with NULL references nothing; a reference to the same table keeps the value of the copied row.
        if None in values or (parent.name == table.name and not any(name in named for name in key.columns)):
            return
        # A reference to an existing row stays, unless the copied key is part of the primary key, which must be unique.
        where = " AND ".join(f"{quote_name(name)} = ?" for name in key.targets)
        if self.connection.execute(f"SELECT 1 FROM {source} WHERE {where}", values).fetchone() and (
            any(name in named for name in key.columns) or not any(name in table.primary_key for name in key.columns)
        ):
            return
        targets = ", ".join(map(quote_name, key.targets))
        unnamed = [name for name in key.columns if name not in named]
        parent_keys = self.connection.execute(f"SELECT {targets} FROM {source} LIMIT 50").fetchall()
        if len(unnamed) == len(key.columns) and parent_keys:
            row |= dict(zip(key.columns, self.rng.choice(parent_keys), strict=True))
            return
        self._insert(parent, dict(zip(key.targets, values, strict=True)), depth + 1)


# The SQL of operators; the others have the form `column operator ?`.
_SQL_TESTS = {"null": "{} IS NULL", "known": "{} IS NOT NULL", "=": "{} = ?", "is": "{} IS ?"}


def _default(declared: str) -> Any:
    return next((value for word, value in _DEFAULTS if word in declared.upper()), _DEFAULT_TEXT)
