"""Types of the generator: specification, domains, databases with words and rows, questions.

A `Domain` describes many possible databases of a subject. Each of its roles (a table or a column) has several names, of
which a database uses one, and a database has a subset of the columns. A `SynthDatabase` includes its rows, so that
questions can use its values. The package `jaxrl_sql.text2sql.schema` renders schemas for prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jaxrl_sql.types import Record

if TYPE_CHECKING:  # slow to import, which would delay argument parsing
    from jaxrl_sql.text2sql.schema.read import Schema

VERSION = 4
"""The version of the generated data; a change of the generator's output increases it."""
DIFFICULTIES = ("easy", "medium", "hard", "extra", "advanced")
STYLES = ("templates", "grammar")
"""The sources of questions: fixed templates, or a grammar that builds wording and query together."""
# Shares of the difficulties by style; those of the grammar are the shares of difficulties in Spider's development set.
_SHARES = {"templates": (35.0, 30.0, 20.0, 15.0, 0.0), "grammar": (24.0, 43.0, 16.0, 17.0, 0.0)}
SPLITS = ("train", "dev", "dev_unseen")
"""Training, and evaluation on other databases of the same domains (`dev`) and of other domains (`dev_unseen`)."""

Value = str | int | float | None
"""A value of a generated column."""
_FLAGS = {True: ("1", "-1", "y", "yes", "t", "true"), False: ("0", "n", "no", "f", "false")}
RunSql = Callable[[str], Sequence[tuple[object, ...]] | None]
"""Runs a query and returns its rows, or None if it fails or exceeds the limits."""


@dataclass(frozen=True)
class SynthSpec:
    """Specification of a generated data set.

    `train_dbs`, `dev_dbs` and `unseen_dbs` are the numbers of databases of the splits `train`, `dev` and `dev_unseen`.
    `train_questions` is the number of questions per training database, `dev_questions` that per other database.
    `decorated_share` of the training databases have names of tables and columns that begin with an unrelated word, as
    in `harbor_price` (`databases.py`). A policy then cannot rely on the usual names.
    `vocab_size` is that of the tokenizer, which is trained on the training split. `extra_columns_share` is a share of
    the training questions whose query filters or sorts, without groups or DISTINCT. Their demonstration (the query of
    supervised training) also selects the column of the filter or order. Policies make this mistake, and reinforcement
    learning then has to remove it (`extra_columns.py`).

    `splits` are generated. `rows` is the mean number of rows per table (0: 1,000 to 3,000 rows per database). `easy` to
    `advanced` are relative shares of difficulties (None: the style's default). `mysql_share` of the questions ask for
    MySQL, with SQLite golds as everywhere. `style` is the source of the questions: `templates`, or a `grammar` whose
    difficulties are Spider's. Databases of the grammar have various realistic naming styles and are never decorated.
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
    easy: float | None = None
    medium: float | None = None
    hard: float | None = None
    extra: float | None = None
    advanced: float | None = None
    mysql_share: float = 0.0
    style: str = STYLES[0]

    @property
    def databases(self) -> int:
        """Return the number of databases of all splits."""
        sizes = {"train": self.train_dbs, "dev": self.dev_dbs, "dev_unseen": self.unseen_dbs}
        return sum(sizes[split] for split in self.splits)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the shares of the difficulties, in the order of `DIFFICULTIES`, in any unit."""
        shares = (self.easy, self.medium, self.hard, self.extra, self.advanced)
        return tuple(
            default if share is None else share for share, default in zip(shares, _SHARES[self.style], strict=True)
        )

    @property
    def mix(self) -> tuple[float, ...]:
        """Return the shares of the difficulties, in the order of `DIFFICULTIES`, in per cent."""
        return tuple(100 * share / sum(self.shares) for share in self.shares)

    def record(self) -> Record:
        """Return the spec as `synth.json` holds it."""
        return dataclasses.asdict(self) | {"splits": list(self.splits)}


@dataclass(frozen=True)
class SynthReport:
    """The output of a run: the number of questions and of databases by split.

    `grades` is the number of questions by difficulty. `tokens` has the mean and maximum lengths of schemas, questions
    and SQL by split. `was_present` is true if the folder already held exactly this data.
    """

    spec: SynthSpec
    questions: dict[str, int]
    databases: dict[str, int]
    grades: dict[str, int]
    tokens: dict[str, dict[str, float]]
    was_present: bool


@dataclass(frozen=True)
class ColumnSpec:
    """A column role: its names, the kind of its values with arguments (`notation.py`), and whether it holds NULLs."""

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
class AnnotatedColumn:
    """A column: its name in SQL, its words in English, synonyms, its kind, and its values by row.

    `kind` is `text`, `category` (few values that repeat), `int`, `real`, `year`, `date`, `bool` (a flag) or `id` (a key
    or another number without an average). Values in inequalities are rounded to at most `digits` significant digits (0:
    no rounding).
    """

    name: str
    words: str
    synonyms: tuple[str, ...]
    kind: str
    values: tuple[Value, ...] = field(repr=False, default=())
    digits: int = 0

    @property
    def has_nulls(self) -> bool:
        """Return whether any value is NULL."""
        return None in self.values


def flag_of(value: object) -> bool | None:
    """Return the meaning of a flag's value: True for 1, -1, yes, y, true, t; False for their opposites; else None."""
    text = f"{value:g}" if isinstance(value, float) else str(value).casefold()
    return next((holds for holds, texts in _FLAGS.items() if text in texts), None)


class Relation(NamedTuple):
    """The words of a foreign key: between a child and its parent (`orders placed by customers`), and the reverse.

    The child is the row with the foreign key, the parent the row that it references.
    """

    of_child: str = "of"
    of_parent: str = "with"


OF = Relation()
"""The default relation: `orders of customers`, `customers with orders`."""


@dataclass(frozen=True)
class Reference:
    """A foreign key: a column, the table and its column `target` that it references, and the words of the relation."""

    column: AnnotatedColumn
    table: str
    target: str
    relation: Relation = OF


@dataclass(frozen=True)
class AnnotatedTable:
    """A table: its name, English plural and singular, synonyms, key, foreign keys, and columns (without keys)."""

    name: str
    plural: str
    singular: str
    synonyms: tuple[str, ...]
    key: AnnotatedColumn
    references: tuple[Reference, ...]
    columns: tuple[AnnotatedColumn, ...]

    @property
    def label(self) -> AnnotatedColumn | None:
        """Return the column that identifies rows by name: the first column, if it is text."""
        return self.columns[0] if self.columns and self.columns[0].kind == "text" else None

    @property
    def stored(self) -> tuple[AnnotatedColumn, ...]:
        """Return all columns in the order of the CREATE TABLE: key, label, other columns, foreign keys."""
        return (self.key, *self.columns, *(reference.column for reference in self.references))


@dataclass(frozen=True)
class SynthDatabase:
    """A database with its rows."""

    db_id: str
    domain: str
    tables: tuple[AnnotatedTable, ...]

    def table(self, name: str) -> AnnotatedTable:
        """Return the table of that name; raises KeyError for an unknown name."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)

    @property
    def schema(self) -> Schema:
        """Return names and foreign keys as a prompt shows them, without types."""
        from jaxrl_sql.text2sql.schema.read import Column, ForeignKey, Schema, Table  # noqa: PLC0415 - slow

        return Schema(
            tuple(
                Table(
                    table.name,
                    tuple(Column(column.name, "") for column in table.stored),
                    tuple(
                        ForeignKey((reference.column.name,), reference.table, (reference.target,))
                        for reference in table.references
                    ),
                )
                for table in self.tables
            )
        )


@dataclass(frozen=True)
class SynthQuestion:
    """A question about a database with its gold `sql`, its template's difficulty, and the dialect of answers.

    `demonstration` is the query that supervised training shows, or "" if it is the gold.
    """

    text: str
    sql: str
    template_difficulty: str
    demonstration: str = ""
    dialect: str = "sqlite"

    @property
    def difficulty(self) -> str:
        """Return Spider's difficulty of the SQL, or `advanced` for a question of such a template."""
        from jaxrl_sql.text2sql.evals.hardness import spider_level  # noqa: PLC0415 - slow

        return (
            self.template_difficulty if self.template_difficulty == "advanced" else spider_level(self.sql, self.dialect)
        )
