"""Insert rows into a copy of a database until a gold returns some, within what the tables allow.

Rows that are there are used where they fit, and others come from them: an existing row with the values that the
query names, new keys, and references that lead to a row. An insertion stays when the gold returns rows, every gold that
returned some still does, and none that cut a sorted list in one way has a tie at the cut; else all of it is taken back.
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
from jaxrl_sql.datagen.augment.column_kind import is_alike, next_value, value_within
from jaxrl_sql.datagen.augment.required_rows import RequiredRows, Slot, read_required_rows, value_for
from jaxrl_sql.text2sql.env.parse import parse_statements
from jaxrl_sql.text2sql.evals.ties import is_tied
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import ForeignKey, Schema, Table
from jaxrl_sql.types import Record

_OPCODES = 1_000_000_000
_DEEPEST = 5
_DRAWS = 5
_MOST_KNOWN = 50
_DEFAULTS = (
    ("INT", 1), ("REAL", 1.0), ("FLOA", 1.0), ("DOUB", 1.0), ("NUM", 1), ("DEC", 1.0), ("YEAR", 2020), ("BOOL", 0),
    ("DATETIME", "2020-01-01 00:00:00"), ("TIMESTAMP", "2020-01-01 00:00:00"), ("DATE", "2020-01-01"),
    ("TIME", "12:00:00"),
)  # fmt: skip
_ANY_TEXT = "a"
Row = Record


class _Inserted(NamedTuple):
    table: str
    row: Row


class _NoRowError(Exception):
    """No row can be made that the tables take."""


def fill(
    connection: sqlite3.Connection, schema: Schema, uid: str, sql: str, others: Sequence[str], rng: random.Random,
    is_enough: Callable[[Sequence[tuple[Any, ...]]], bool] = bool,
) -> Change | str:  # fmt: skip
    """Insert rows for a gold and commit; return the change, or why there is none.

    `others` are golds that must go on returning rows, and without new ties. `is_enough` says when the rows of the gold
    are.
    """
    why = "the query cannot be read, or names no table"
    with _bounded(connection):
        clear = _clear(connection, others)
        for branch, reuses, more in itertools.product((0, 1), (True, False), (0, 1)):
            witness = read_required_rows(sql, schema, lambda inner: _scalar(connection, inner), branch)
            if witness is None:
                return why
            connection.execute("SAVEPOINT filling")
            inserting = _Inserting(connection, schema, rng)
            try:
                inserting.rows_for(witness, reuses, witness.copies + more - 1)
                why = (
                    _fault(connection, sql, others, clear, is_enough)
                    if inserting.done
                    else "no row is missing that is named"
                )
            except (_NoRowError, sqlite3.Error) as error:
                why = f"no row fits: {error}"
            if not why:
                connection.execute("RELEASE filling")
                connection.commit()
                rows = [{"table": table, "row": _shown(row)} for table, row in inserting.done]
                return Change("fill", uid, {"inserted": rows, "by": "query"})
            connection.execute("ROLLBACK TO filling")
            connection.execute("RELEASE filling")
    return why


def fill_by(
    connection: sqlite3.Connection, uid: str, sql: str, others: Sequence[str], script: str,
    is_enough: Callable[[Sequence[tuple[Any, ...]]], bool] = bool,
) -> Change | str:  # fmt: skip
    """Insert rows that somebody else wrote, as INSERT statements and nothing else; as `fill` otherwise."""
    trees = parse_statements(script)
    if trees is None:
        return "the answer cannot be read"
    if not trees or not all(isinstance(tree, exp.Insert) for tree in trees):
        return "the answer is no list of INSERT statements"
    statements = [tree.sql("sqlite") for tree in trees]
    with _bounded(connection):
        clear = _clear(connection, others)
        connection.execute("SAVEPOINT filling")
        connection.set_authorizer(_only_inserts)
        try:
            lost = len(connection.execute("PRAGMA foreign_key_check").fetchall())
            for statement in statements:
                connection.execute(statement)
            why = _fault(connection, sql, others, clear, is_enough)
            if not why and len(connection.execute("PRAGMA foreign_key_check").fetchall()) > lost:
                why = "a row refers to none"
        except (sqlite3.Error, sqlite3.Warning) as error:
            why = f"the answer does not run: {error}"
        finally:
            connection.set_authorizer(None)
        if why:
            connection.execute("ROLLBACK TO filling")
        connection.execute("RELEASE filling")
    if why:
        return why
    connection.commit()
    return Change("fill", uid, {"inserted": statements, "by": "endpoint"})


def _only_inserts(action: int, name: str | None, *_: str | None) -> int:
    allowed = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
    is_check = action == sqlite3.SQLITE_PRAGMA and name == "foreign_key_check"
    return sqlite3.SQLITE_OK if action in allowed or is_check else sqlite3.SQLITE_DENY


@contextmanager
def _bounded(connection: sqlite3.Connection) -> Iterator[None]:
    """Interrupt what takes too many of SQLite's instructions."""
    left = itertools.count(_OPCODES // 10_000, -1)

    def step() -> int:
        return next(left) < 0

    connection.set_progress_handler(step, 10_000)
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


def _clear(connection: sqlite3.Connection, sqls: Sequence[str]) -> list[str]:
    """Return the queries without a tie; none where finding out takes too long."""
    try:
        return [sql for sql in sqls if not is_tied(connection, sql)]
    except sqlite3.Error:
        return []


def _fault(
    connection: sqlite3.Connection,
    sql: str,
    others: Sequence[str],
    clear: Sequence[str],
    is_enough: Callable[[Sequence[Any]], bool],
) -> str:
    """Return why an insertion is not to stay; `clear` are the golds that had no tie before it."""
    if not is_enough(connection.execute(sql).fetchmany(2)):
        return "the gold stays empty"
    if not all(connection.execute(other).fetchone() for other in others):
        return "another gold would be empty"
    if is_tied(connection, sql):
        return "the gold would have a tie"
    return "another gold would have a tie" if any(is_tied(connection, other) for other in clear) else ""


def _shown(row: Row) -> Row:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}


class _Inserting:
    """One try to insert the rows of a witness."""

    def __init__(self, connection: sqlite3.Connection, schema: Schema, rng: random.Random) -> None:
        self.connection, self.rng = connection, rng
        self.tables = {table.name.lower(): table for table in schema.tables}
        self.done: list[_Inserted] = []

    def rows_for(self, witness: RequiredRows, reuses: bool, copies: int) -> None:
        """Insert what is missing of a witness, and `copies` more of the row that refers to the others."""
        self.witness = witness
        self.fixed: dict[Slot, Any] = {}
        self.wanted: dict[Slot, list[tuple[str, Any]]] = {}
        for slot, sign, value in witness.conditions:
            self.wanted.setdefault(witness.root(slot), []).append((sign, value))
        for slot in list(witness.equal):
            witness.root(slot)
        for root, conditions in self.wanted.items():
            if any(sign == "=" for sign, _ in conditions):
                self.fixed[root] = self._chosen(conditions)
        order = sorted(range(len(witness.rows)), key=lambda row: -len(self._conditions(row)))
        missing = [row for row in order if not (reuses and self._conditions(row) and self._find(row))]
        missing = [row for row in missing if not (reuses and not self._own(row) and self._find(row))]
        depth = {row: self._depth(witness.rows[row], ()) for row in range(len(witness.rows))}
        for row in sorted(missing, key=depth.__getitem__):
            self._insert(witness.rows[row], self._named(row))
        last = max(depth, key=depth.__getitem__)
        for _ in range(copies):
            table = witness.rows[last]
            kept = {name: value for name, value in self._named(last).items() if name not in self._unique(table)}
            self._insert(table, kept)

    def _chosen(self, conditions: Sequence[tuple[str, Any]]) -> Any:
        how, value = value_for(iter(conditions))
        if how == "none":
            raise _NoRowError("the query contradicts itself")
        return value

    def _slots(self, row: int) -> Iterator[tuple[str, Slot]]:
        """Yield (column as declared, what stands for its value) of the columns of a row that the query names."""
        for column in self.witness.rows[row].columns:
            slot = row, column.name.lower()
            if slot in self.witness.equal or slot in self.wanted:
                yield column.name, self.witness.root(slot)

    def _own(self, row: int) -> list[str]:
        return [name for name, root in self._slots(row) if root in self.wanted]

    def _conditions(self, row: int) -> list[tuple[str, str, Any]]:
        """Return (column, sign, value) of what is known about a row."""
        found = []
        for name, root in self._slots(row):
            if root in self.fixed:
                found.append((name, "is", self.fixed[root]))
            else:
                found += [(name, sign, value) for sign, value in self.wanted.get(root, ())]
        return found

    def _find(self, row: int) -> bool:
        """Find a row that is there, and with it the values of its columns; return whether there is one."""
        table = self.witness.rows[row]
        conditions = self._conditions(row)
        if any(sign == "new" for _, sign, _ in conditions):
            return False
        tests = [_TESTS.get(sign, "{} " + sign + " ?").format(quote_name(name)) for name, sign, _ in conditions]
        values = [value for _, sign, value in conditions if "?" in _TESTS.get(sign, "?")]
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        names = [name for name, _ in self._slots(row)]
        shown = ", ".join(map(quote_name, names)) or "1"
        found = self.connection.execute(
            f"SELECT {shown} FROM {quote_name(table.name)}{where} LIMIT 1", values
        ).fetchone()
        if found:
            for (_, root), value in zip(self._slots(row), found, strict=False):
                self.fixed.setdefault(root, value)
        return found is not None

    def _named(self, row: int) -> Row:
        """Choose the values that the query names; a key that is free becomes a new one, once for all that equal it."""
        table = self.witness.rows[row]
        telling = self._telling(table) | self._unique(table)
        values: Row = {}
        for name, root in self._slots(row):
            if root not in self.fixed:
                how, value = value_for(iter(self.wanted.get(root, ())))
                if how == "none":
                    raise _NoRowError("the query contradicts itself")
                if how == "free":
                    is_new = name in telling or any(sign == "new" for sign, _ in self.wanted.get(root, ()))
                    value = self._fresh(table, name) if is_new else self._chosen_known(table, name, root)
                elif value is not None:
                    value = value_within(self.wanted[root], value, self._known(table, name))
                    if value is None:
                        raise _NoRowError(f"{table.name}.{name} holds no values such as the query asks for")
                self.fixed[root] = value
            values[name] = self.fixed[root]
            if not is_alike(values[name], self._known(table, name), is_named=True):
                raise _NoRowError(f"{table.name}.{name} holds no values such as {values[name]!r}")
        return values

    def _known(self, table: Table, name: str) -> list[Any]:
        """Return values that a column holds, the highest first; of an empty table one by its type."""
        column = quote_name(name)
        query = f"SELECT DISTINCT {column} FROM {quote_name(table.name)} WHERE {column} IS NOT NULL ORDER BY 1 DESC"
        known = [value for (value,) in self.connection.execute(f"{query} LIMIT {_MOST_KNOWN}")]
        declared = next(one.type for one in table.columns if one.name == name)
        # Texts of an empty column cannot be guessed.
        return known or [value for value in [_default(declared)] if value != _ANY_TEXT]

    def _chosen_known(self, table: Table, name: str, root: Slot) -> Any:
        """Choose a value that the column (or what it refers to) holds, other than those that may not be."""
        refused = [value for sign, value in self.wanted.get(root, ()) if sign == "!="]
        for key in table.foreign_keys:
            if key.columns == (name,):
                table, name = self.tables[key.table.lower()], key.targets[0]
                break
        column = quote_name(name)
        query = f"SELECT DISTINCT {column} FROM {quote_name(table.name)} WHERE {column} IS NOT NULL LIMIT 50"
        known = [value for (value,) in self.connection.execute(query) if value not in refused]
        return self.rng.choice(known) if known else self._fresh(table, name)

    def _fresh(self, table: Table, name: str) -> Any:
        """Return a value that the column does not hold: the next number, date or code, or a text with a number."""
        known = self._known(table, name)
        if (coming := next_value(known)) is not None:
            return coming
        column, source = quote_name(name), quote_name(table.name)
        declared = next(one.type for one in table.columns if one.name == name).upper()
        top = self.connection.execute(f"SELECT MAX(CAST({column} AS INTEGER)), COUNT(*) FROM {source}").fetchone()
        number = max(top[0] or 0, 0) + 1
        if any(word in declared for word in ("CHAR", "TEXT", "CLOB")):
            sample = self.connection.execute(f"SELECT {column} FROM {source} LIMIT 1").fetchone()
            return str(number) if sample and str(sample[0]).isdecimal() else f"new {top[1] + 1}"
        return number

    def _unique(self, table: Table) -> set[str]:
        """Return the columns that hold no value twice, each by itself."""
        return {name for names in self._keys(table) for name in names if len(names) == 1}

    def _keys(self, table: Table) -> list[tuple[str, ...]]:
        """Return the columns of each key of a table, the primary one and others."""
        keys = [table.primary_key] if table.primary_key else []
        query = 'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial'
        for (index,) in self.connection.execute(query, (table.name,)).fetchall():
            names = self.connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
            if all(name is not None for (name,) in names):
                keys.append(tuple(name for (name,) in names))
        return keys

    def _telling(self, table: Table) -> set[str]:
        """Return a column of each key that tells its rows apart: the last that is no reference, if there is one."""
        pointing = {name for key in table.foreign_keys for name in key.columns}
        free = ([name for name in names if name not in pointing] for names in self._keys(table))
        return {names[-1] for names in free if names}

    def _depth(self, table: Table, above: tuple[str, ...]) -> int:
        """Return how many tables stand above this one by its references."""
        names = {key.table.lower() for key in table.foreign_keys} - {table.name.lower(), *above}
        return 1 + max((self._depth(self.tables[name], (*above, table.name.lower())) for name in names), default=0)

    def _insert(self, table: Table, named: Row, deep: int = 0) -> None:
        """Insert a row with the named values, others as an existing row has them, and the rows that it refers to."""
        if deep > _DEEPEST:
            raise _NoRowError("references go too deep")
        error: Exception | None = None
        for _ in range(_DRAWS):
            base = self._base(table)
            row = base | {name: value for name, value in named.items() if name in base}
            for key in table.foreign_keys:
                self._point(table, key, row, named, deep)
            columns, marks = ", ".join(map(quote_name, row)), ", ".join("?" * len(row))
            try:
                self.connection.execute(
                    f"INSERT INTO {quote_name(table.name)} ({columns}) VALUES ({marks})", list(row.values())
                )
            except sqlite3.IntegrityError as failed:
                error = failed
            else:
                self.done.append(_Inserted(table.name, row))
                return
        raise _NoRowError(str(error))

    def _base(self, table: Table) -> Row:
        """Return a row like one that is there, with new keys; of an empty table one by its types."""
        generated = {
            name
            for (name,) in self.connection.execute(
                "SELECT name FROM pragma_table_xinfo(?) WHERE hidden IN (2, 3)", (table.name,)
            )
        }
        columns = [column for column in table.columns if column.name not in generated]
        shown = ", ".join(quote_name(column.name) for column in columns)
        rows = self.connection.execute(f"SELECT {shown} FROM {quote_name(table.name)} LIMIT 50").fetchall()
        if rows:
            row = dict(zip((column.name for column in columns), self.rng.choice(rows), strict=True))
        else:
            row = {column.name: _default(column.type) for column in columns}
        return row | {name: self._fresh(table, name) for name in self._telling(table) if name in row}

    def _point(self, table: Table, key: ForeignKey, row: Row, named: Row, deep: int) -> None:
        """Let a reference lead to a row: one that is there, or a new one with the key that the query names."""
        parent = self.tables[key.table.lower()]
        source = quote_name(parent.name)
        values = [row.get(name) for name in key.columns]
        if None in values or (parent.name == table.name and not any(name in named for name in key.columns)):
            return
        where = " AND ".join(f"{quote_name(name)} = ?" for name in key.targets)
        if self.connection.execute(f"SELECT 1 FROM {source} WHERE {where}", values).fetchone() and (
            any(name in named for name in key.columns) or not any(name in table.primary_key for name in key.columns)
        ):
            return
        targets = ", ".join(map(quote_name, key.targets))
        free = [name for name in key.columns if name not in named]
        there = self.connection.execute(f"SELECT {targets} FROM {source} LIMIT 50").fetchall()
        if len(free) == len(key.columns) and there:
            row |= dict(zip(key.columns, self.rng.choice(there), strict=True))
            return
        self._insert(parent, dict(zip(key.targets, values, strict=True)), deep + 1)


_TESTS = {"null": "{} IS NULL", "known": "{} IS NOT NULL", "=": "{} = ?", "is": "{} IS ?"}


def _default(declared: str) -> Any:
    return next((value for word, value in _DEFAULTS if word in declared.upper()), _ANY_TEXT)
