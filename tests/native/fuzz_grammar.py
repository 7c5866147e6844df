"""Random schemas, and random statements on them, for `fuzz_executor.py`."""

from __future__ import annotations

import random
import re
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TYPES = [
    "INTEGER", "INT", "BIGINT", "REAL", "DOUBLE PRECISION", "TEXT", "VARCHAR(20)", "CLOB", "NUMERIC", "DECIMAL(10, 2)",
    "BOOLEAN", "DATE", "STRING", "BLOB", "",
]  # fmt: skip
WORDS = [
    "a", "A", "ab", "aB", "abc", "b", "B", "é", "É", "ß", "日本", "", " ", "1", "01", "1.0", "1e3", "x'y", "%", "_",
    "a b",
]  # fmt: skip
NUMBERS = [
    0, 1, 2, 3, -1, 10, 100, 255, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, 1.5, -2.25, 1e-7, 1e16,
    1e300,
]  # fmt: skip
DATES = ["2024-01-31", "1999-12-31", "2024-02-29 10:20:30", "10:20", "2024-13-01"]
BLOBS = [b"", b"a", b"ab", b"A", b"1", b"\x00", "é".encode()]

SCALARS = [
    ("abs", 1), ("length", 1), ("lower", 1), ("upper", 1), ("typeof", 1), ("quote", 1), ("trim", 1), ("ltrim", 2),
    ("rtrim", 2), ("trim", 2), ("instr", 2), ("replace", 3), ("substr", 2), ("substr", 3), ("round", 1), ("round", 2),
    ("coalesce", 2), ("ifnull", 2), ("nullif", 2), ("iif", 3), ("max", 2), ("min", 3), ("unicode", 1), ("sign", 1),
    ("date", 1), ("strftime", 2), ("julianday", 1), ("floor", 1), ("sqrt", 1), ("mod", 2), ("power", 2),
    ("concat", 2), ("concat_ws", 3), ("format", 2), ("json_quote", 1), ("json_array", 2), ("octet_length", 1),
]  # fmt: skip
BLOB_FUNCTIONS = [("hex", 1), ("unhex", 1), ("zeroblob", 1)]
AGGREGATES = ["count", "sum", "total", "avg", "min", "max", "group_concat"]
WINDOWS = ["row_number()", "rank()", "dense_rank()", "count(*)", "ntile(3)"]
BINARY = [
    "+", "-", "*", "/", "%", "||", "=", "<>", "<", "<=", ">", ">=", "IS", "IS NOT", "AND", "OR", "&", "|", "<<",
    ">>",
]  # fmt: skip
NOISE = [
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "ORDER", "(", ")", ",", "*", "'", '"', "--", "/*", "NULL", "AS", "ON",
    ".", "1",
]  # fmt: skip


@dataclass
class Table:
    """A table or a view, and the names of its columns."""

    name: str
    columns: list[str]


@dataclass
class Schema:
    """The contents of a database."""

    tables: list[Table] = field(default_factory=list)
    has_blobs: bool = False


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def value(draw: random.Random, schema: Schema) -> Any:
    kinds = [WORDS, NUMBERS, NUMBERS, DATES, [None]] + ([BLOBS] if schema.has_blobs else [])
    return draw.choice(draw.choice(kinds))


def literal(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, bytes):
        return f"x'{item.hex()}'"
    return "'" + item.replace("'", "''") + "'" if isinstance(item, str) else repr(item)


def make_database(draw: random.Random, path: Path) -> Schema:
    """Write a database of a few tables and views; half of them have blobs, some are UTF-16, some in WAL mode."""
    schema = Schema(has_blobs=draw.random() < 0.5)
    connection = sqlite3.connect(path, isolation_level=None)
    if draw.random() < 0.2:
        connection.execute(f"PRAGMA encoding = '{draw.choice(['UTF-16le', 'UTF-16be'])}'")
    if draw.random() < 0.2:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN")
    for number in range(draw.randint(1, 4)):
        add_table(draw, connection, schema, f"t{number}" if draw.random() < 0.8 else f"odd name {number}")
    for table in schema.tables[:]:
        if draw.random() < 0.4:
            name = f"v_{len(schema.tables)}"
            sql = Statements(draw, Schema([table], schema.has_blobs), parameters=False).simple(width=2)
            try:
                connection.execute(f"CREATE VIEW {name}(c0, c1) AS {sql}")
                connection.execute(f"SELECT * FROM {name} LIMIT 1").fetchall()
            except (sqlite3.Error, UnicodeDecodeError):
                continue
            schema.tables.append(Table(name, ["c0", "c1"]))
    connection.execute("COMMIT")
    if draw.random() < 0.3:
        connection.execute("ANALYZE")
    connection.close()
    return schema


def add_table(draw: random.Random, connection: sqlite3.Connection, schema: Schema, name: str) -> None:
    columns = ["id"] + [draw.choice([f"c{i}", f"c{i}", f"C {i}"]) for i in range(draw.randint(1, 5))]
    parts = ["id INTEGER PRIMARY KEY" if draw.random() < 0.8 else "id PRIMARY KEY"]
    for column in columns[1:]:
        collation = draw.choice(["", "", "", " COLLATE NOCASE", " COLLATE RTRIM"])
        parts.append(f"{quote(column)} {draw.choice(TYPES)}{collation}")
    tail = " WITHOUT ROWID" if draw.random() < 0.15 else ""
    connection.execute(f"CREATE TABLE {quote(name)}({', '.join(parts)}){tail}")
    n_rows = draw.choice([0, 1, 5, 30, 30, 200])
    repeated_values = [value(draw, schema) for _ in range(8)]
    for key in range(n_rows):
        row = [
            key,
            *(draw.choice(repeated_values) if draw.random() < 0.7 else value(draw, schema) for _ in columns[1:]),
        ]
        connection.execute(f"INSERT INTO {quote(name)} VALUES ({', '.join('?' * len(row))})", row)
    for column in columns[1:]:
        if draw.random() < 0.4:
            where = f" WHERE {quote(column)} IS NOT NULL" if draw.random() < 0.2 else ""
            connection.execute(f"CREATE INDEX {quote(f'i {name} {column}')} ON {quote(name)}({quote(column)}){where}")
    schema.tables.append(Table(name, columns))


class Statements:
    """Draws statements on a schema; after each, `values` has the values of its parameters."""

    def __init__(self, draw: random.Random, schema: Schema, *, parameters: bool) -> None:
        self.draw = draw
        self.schema = schema
        self.parameters = parameters
        self.values: list[Any] = []

    def statement(self) -> str:
        """Draw a statement; its parameters are in the order of `values`."""
        self.values = []
        text = self.any()
        # Unused draws leave no value.
        used = list(dict.fromkeys(re.findall(r"\?\d+", text)))
        self.values = [self.values[int(name[1:]) - 1] for name in used]
        return re.sub(r"\?\d+", lambda result: f"?{used.index(result[0]) + 1}", text)

    def any(self) -> str:
        """Draw a compound, a common table expression, or a SELECT."""
        choice = self.draw.random()
        if choice < 0.12:
            return (
                f"{self.select(2, 2)} {self.pick('UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT')} {self.simple(width=2)}"
            )
        if choice < 0.22:
            inner = self.select(2, 1)
            return f"WITH q(c0, c1) AS ({inner}) SELECT * FROM q AS a {self.pick('', 'WHERE c0 IS NOT c1')}"
        if choice < 0.27:
            n = self.draw.randint(1, 60)
            step = self.pick("n + 1", "n * 2 + 1", "n + 3")
            return (
                f"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT {step} FROM r WHERE n < {n}) SELECT n, n % 7 FROM r"
            )
        if choice < 0.32:
            table = self.draw.choice([table for table in self.schema.tables if "id" in table.columns])
            column, prefix = quote(self.draw.choice(table.columns)), self.pick("a", "ab", "1", "é", "A", "2024-0")
            pattern = self.pick(f"LIKE '{prefix}%'", f"GLOB '{prefix}*'")
            return f"SELECT id, {column} FROM {quote(table.name)} WHERE {column} {pattern} ORDER BY id"
        return self.select(self.draw.randint(1, 4), 2)

    def broken(self, sql: str) -> str:
        """Return a statement with a token removed, duplicated, moved or inserted."""
        tokens = sql.split(" ")
        for _ in range(self.draw.randint(1, 2)):
            position = self.draw.randrange(len(tokens))
            match self.draw.randrange(4):
                case 0:
                    tokens[position] = ""
                case 1:
                    tokens.insert(position, tokens[position])
                case 2:
                    other = self.draw.randrange(len(tokens))
                    tokens[position], tokens[other] = tokens[other], tokens[position]
                case _:
                    tokens[position] = self.draw.choice(NOISE)
        return " ".join(tokens)

    def pick(self, *choices: str) -> str:
        return self.draw.choice(choices)

    def simple(self, width: int) -> str:
        """Draw a SELECT from one table."""
        table = self.draw.choice(self.schema.tables)
        names = [f"a.{quote(column)}" for column in table.columns]
        columns = ", ".join(self.expression(names, 1) for _ in range(width))
        return f"SELECT {columns} FROM {quote(table.name)} AS a WHERE {self.condition(names, 1)}"

    def select(self, width: int, depth: int) -> str:
        sources, names = self.sources(depth)
        draw = self.draw
        if draw.random() < 0.3:
            keys = [draw.choice(names) for _ in range(draw.randint(1, 2))]
            columns = keys[:width] + [self.aggregate(names) for _ in range(width - len(keys[:width]))]
            head = f"SELECT {', '.join(columns)} FROM {sources}"
            where = f" WHERE {self.condition(names, depth)}" if draw.random() < 0.5 else ""
            tail = f" GROUP BY {', '.join(keys)}" if draw.random() < 0.8 else ""
            if tail and draw.random() < 0.4:
                tail += f" HAVING {self.aggregate(names)} {self.pick('>', '<', '=', 'IS NOT')} {self.atom(names)}"
            return head + where + tail + self.order(width)
        columns = [self.expression(names, depth) for _ in range(width)]
        if draw.random() < 0.12:
            over = f"PARTITION BY {draw.choice(names)} ORDER BY {draw.choice(names)}, {draw.choice(names)}"
            columns[-1] = f"{draw.choice(WINDOWS)} OVER ({over})"
        distinct = "DISTINCT " if draw.random() < 0.2 else ""
        where = f" WHERE {self.condition(names, depth)}" if draw.random() < 0.7 else ""
        return f"SELECT {distinct}{', '.join(columns)} FROM {sources}{where}{self.order(width)}"

    def sources(self, depth: int) -> tuple[str, list[str]]:
        draw = self.draw
        first = draw.choice(self.schema.tables)
        text, names = f"{quote(first.name)} AS a", [f"a.{quote(column)}" for column in first.columns]
        if depth > 1 and draw.random() < 0.35:
            other = draw.choice(self.schema.tables)
            other_names = [f"b.{quote(column)}" for column in other.columns]
            kind = self.pick("JOIN", "LEFT JOIN", "CROSS JOIN", "FULL JOIN", "RIGHT JOIN")
            on = "" if kind == "CROSS JOIN" else f" ON {draw.choice(names)} = {draw.choice(other_names)}"
            return f"{text} {kind} {quote(other.name)} AS b{on}", names + other_names
        if depth > 1 and draw.random() < 0.15:
            return f"({self.simple(width=2).replace(' FROM', ', 1 AS one FROM', 1)}) AS a", ["a.one"]
        return text, names

    def order(self, width: int) -> str:
        draw = self.draw
        text = ""
        if draw.random() < 0.4:
            keys = [
                f"{draw.randint(1, width)} {self.pick('', 'DESC', 'ASC NULLS LAST')}" for _ in range(draw.randint(1, 2))
            ]
            text = f" ORDER BY {', '.join(keys)}"
        if draw.random() < 0.3:
            text += f" LIMIT {draw.choice([0, 1, 3, 10])}" + self.pick("", f" OFFSET {draw.randint(0, 3)}")
        return text

    def aggregate(self, names: list[str]) -> str:
        name = self.draw.choice(AGGREGATES)
        what = self.draw.choice(names)
        distinct = "DISTINCT " if self.draw.random() < 0.3 else ""
        only = f" FILTER (WHERE {self.draw.choice(names)} IS NOT NULL)" if self.draw.random() < 0.15 else ""
        return f"{name}({distinct}{what}){only}" if self.draw.random() < 0.9 else "count(*)"

    def condition(self, names: list[str], depth: int) -> str:
        draw = self.draw
        left = self.expression(names, depth - 1)
        match draw.randrange(9):
            case 0:
                return f"{left} BETWEEN {self.atom(names)} AND {self.atom(names)}"
            case 1:
                items = ", ".join(self.atom(names) for _ in range(draw.randint(1, 3)))
                return f"{left} {self.pick('', 'NOT ')}IN ({items})"
            case 2 if depth > 0:
                return f"{left} {self.pick('', 'NOT ')}IN ({self.simple(width=1)})"
            case 3 if depth > 0:
                return f"{self.pick('', 'NOT ')}EXISTS ({self.simple(width=1)})"
            case 4:
                return f"{draw.choice(names)} {self.pick('', 'NOT ')}{self.pattern()}"
            case 5:
                return f"{left} IS {self.pick('', 'NOT ')}NULL"
            case _:
                return f"{left} {self.pick('=', '<', '>', '<=', '<>', 'IS')} {self.atom(names)}"

    def pattern(self) -> str:
        """Draw a LIKE or GLOB whose pattern is not a literal, so that no SQLite uses an index for it.

        Builds in which LIKE matches blobs, or in which it is our function, otherwise use one, and thus another order.
        """
        prefix = self.draw.choice(["a", "ab", "1", "é", "x", "A", "2024-0"])
        if self.draw.random() < 0.5:
            return f"LIKE ('{self.pick('', '%', '_', 'a')}' || '{prefix}{self.pick('', '%', '_')}')"
        return f"GLOB ('{self.pick('', '*', '?', '[a-c]')}' || '{prefix}{self.pick('', '*', '?')}')"

    def atom(self, names: list[str]) -> str:
        draw = self.draw
        if draw.random() < 0.5:
            return draw.choice(names)
        item = value(draw, self.schema)
        if self.parameters and draw.random() < 0.2:
            self.values.append(item)
            return f"?{len(self.values)}"
        return literal(item)

    def expression(self, names: list[str], depth: int) -> str:  # noqa: PLR0911  a kind each
        draw = self.draw
        if depth <= 0 or draw.random() < 0.35:
            return self.atom(names)
        match draw.randrange(7):
            case 0:
                return (
                    f"({self.expression(names, depth - 1)} {draw.choice(BINARY)} {self.expression(names, depth - 1)})"
                )
            case 1:
                return f"{self.pick('-', 'NOT ', '~')}({self.expression(names, depth - 1)})"
            case 2:
                kinds = ["INTEGER", "REAL", "TEXT", "NUMERIC"] + (["BLOB"] if self.schema.has_blobs else [])
                return f"CAST({self.expression(names, depth - 1)} AS {draw.choice(kinds)})"
            case 3:
                then, otherwise = self.expression(names, depth - 1), self.atom(names)
                return f"CASE WHEN {self.condition(names, depth - 1)} THEN {then} ELSE {otherwise} END"
            case 4 if depth > 1:
                return f"({self.simple(width=1)} LIMIT 1)"
            case 5:
                collation = self.pick("NOCASE", "BINARY")
                return f"({self.atom(names)} {self.pick('=', '<', 'LIKE')} {self.atom(names)} COLLATE {collation})"
            case _:
                name, n = draw.choice(SCALARS + (BLOB_FUNCTIONS if self.schema.has_blobs else []))
                if name in {"zeroblob", "power", "format"}:
                    first = {"zeroblob": "5", "power": "2", "format": "'%s|%5.2f|%d'"}[name]
                    return f"{name}({', '.join([first] + [self.atom(names)] * (n - 1))})"
                return f"{name}({', '.join(self.expression(names, depth - 1) for _ in range(n))})"
