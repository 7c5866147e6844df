"""Name the nouns of the generator: what is asked for, what a domain is, what one drawn database holds, what came out.

A `Domain` is a space of databases: every role (a table or a column) has several names and a database draws one of
them and a subset of the columns. A `Database` is one draw with its rows, kept in memory so that questions can take
their values from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

VERSION = 4
GRADES = ("easy", "medium", "hard", "extra")
SPLITS = ("train", "dev", "dev_unseen")
# Fields that came after sets had been made: those sets stay what they are, byte by byte.
YOUNGER = ("splits", "rows", *GRADES, "mysql_share")

Value = str | int | float | None


@dataclass(frozen=True)
class SynthSpec:
    """Say what to generate: the seed, databases and questions a split, how much of training is decorated.

    `extra_columns_share` is the share of the training questions with a demonstration in the habit of a teacher of extra
    columns (`habit.py`), of those where the habit can show itself.

    `splits` are those that are made; the tokenizer is the training split's. `rows` is the mean number of rows a table
    (0: 1,000 to 3,000 rows a database). The grades get shares of the questions in the ratio of `easy` to `extra`.
    `mysql_share` of the questions ask for MySQL (their golds are SQLite's, as everywhere).
    """

    seed: int = 0
    train_dbs: int = 120
    dev_dbs: int = 16
    unseen_dbs: int = 24
    train_questions: int = 150
    dev_questions: int = 20
    decorated_share: float = 0.3
    vocab_size: int = 1024
    extra_columns_share: float = 0.0
    splits: tuple[str, ...] = SPLITS
    rows: int = 0
    easy: float = 35.0
    medium: float = 30.0
    hard: float = 20.0
    extra: float = 15.0
    mysql_share: float = 0.0

    @property
    def mix(self) -> tuple[float, ...]:
        """Return the shares of the grades, in the order of `GRADES`, in per cent."""
        shares = (self.easy, self.medium, self.hard, self.extra)
        return tuple(100 * share / sum(shares) for share in shares)

    def record(self) -> dict[str, Any]:
        """Return what `synth.json` says of the spec; younger fields only where they are not as they always were."""
        values = dataclasses.asdict(self) | {"splits": list(self.splits)}
        plain = dataclasses.asdict(SynthSpec()) | {"splits": list(SPLITS)}
        return {name: value for name, value in values.items() if name not in YOUNGER or value != plain[name]}


@dataclass(frozen=True)
class SynthReport:
    """Tell what a run left on disk; `was_present` is true when the folder already held exactly this."""

    spec: SynthSpec
    questions: dict[str, int]
    databases: dict[str, int]
    grades: dict[str, int]
    tokens: dict[str, dict[str, float]]
    was_present: bool


@dataclass(frozen=True)
class ColumnSpec:
    """A column role: its names, what fills it (`kind` and `args`), and whether it holds NULLs."""

    names: tuple[str, ...]
    kind: str
    args: tuple[str, ...]
    is_nullable: bool


@dataclass(frozen=True)
class TableSpec:
    """A table role: its singular names, mean row count, parents (roles by their first name) and column roles."""

    names: tuple[str, ...]
    rows: int
    parents: tuple[str, ...]
    columns: tuple[ColumnSpec, ...]


@dataclass(frozen=True)
class Domain:
    """A domain: a name and 2 to 4 table roles, parents first."""

    name: str
    tables: tuple[TableSpec, ...]


@dataclass(frozen=True)
class Column:
    """A drawn column: name in SQL, words in English, other words for the role, kind, and its values by row."""

    name: str
    words: str
    synonyms: tuple[str, ...]
    kind: str
    values: tuple[Value, ...] = field(repr=False, default=())

    @property
    def has_nulls(self) -> bool:
        """Say whether any row is NULL."""
        return None in self.values


@dataclass(frozen=True)
class ForeignKey:
    """A drawn key: column `column` of its table points to `table`.`target`."""

    column: str
    table: str
    target: str


@dataclass(frozen=True)
class Table:
    """A drawn table: name, English plural and singular, key column, keys, and columns (without keys)."""

    name: str
    plural: str
    singular: str
    synonyms: tuple[str, ...]
    key: Column
    foreign: tuple[tuple[ForeignKey, Column], ...]
    columns: tuple[Column, ...]

    @property
    def label(self) -> Column | None:
        """Return the naming column: the first one, when it is text."""
        return self.columns[0] if self.columns and self.columns[0].kind == "text" else None

    @property
    def stored(self) -> tuple[Column, ...]:
        """Return all columns in the order of the CREATE TABLE: key, label and others, then the foreign keys."""
        return (self.key, *self.columns, *(column for _, column in self.foreign))


@dataclass(frozen=True)
class Database:
    """A drawn database."""

    db_id: str
    domain: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """Return the table of that name; KeyError when there is none."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)


@dataclass(frozen=True)
class Question:
    """One question of a database with its gold SQL, its grade, and a teacher's answer where that is not the gold."""

    text: str
    sql: str
    grade: str
    demonstration: str = ""
    dialect: str = "sqlite"


def render_schema(database: Database) -> str:
    """Render a database compactly, a table a line: `orders(id, total, customer_id=customers.id)`."""
    lines = []
    for table in database.tables:
        names = [column.name for column in (table.key, *table.columns)]
        names += [f"{key.column}={key.table}.{key.target}" for key, _ in table.foreign]
        lines.append(f"{table.name}({', '.join(names)})")
    return "\n".join(lines)
