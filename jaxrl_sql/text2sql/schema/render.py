"""Render a schema as prompt text; `RENDERERS` has the formats.

`compact` uses few tokens, for small models trained from scratch. `ddl` is familiar to pretrained models, and `omnisql`
and `profile` add comments on columns. All keep the database's spelling and quote a name only if SQLite requires it
(`omnisql`: also keywords). DDL is executable and creates the same schema, except that `omnisql` omits NOT NULL.

The module `released_forms` has two formats that equal, to the byte, those of other systems' published code. `raw_ddl`
is the database's own CREATE statements (SQL-R1), and `omnisql_strict` the output of OmniSQL's script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from jaxrl_sql.text2sql.schema.describe import NO_DESCRIPTIONS, Descriptions, read_descriptions
from jaxrl_sql.text2sql.schema.quote import RESERVED, as_omnisql, quote_name, quote_postgresql
from jaxrl_sql.text2sql.schema.read import Column, ForeignKey, Schema, Table
from jaxrl_sql.text2sql.schema.released_forms import omnisql_strict, raw_ddl
from jaxrl_sql.text2sql.schema.values import NO_VALUES, ColumnValues, Value, read_values
from jaxrl_sql.types import Example

_DOUBLE_QUOTED = ("postgresql", "duckdb")  # dialects without backticks
# A type is words with optional lengths; SQLite accepts any other text in quotes.
_TYPE = re.compile(r"[A-Za-z_][\w ]*(\([^()'\"`\[\]-]*\))?")


def compact(schema: Schema) -> str:
    """Render one line per table, `employees(id, name, dept_id=departments.id)`.

    `=` marks a foreign key; of a column in several foreign keys, only the first is shown.
    """
    return "\n".join(_compact_table(table, quote_of(schema)) for table in schema.tables)


def quote_of(schema: Schema, quote: Callable[[str], str] = quote_name) -> Callable[[str], str]:
    """Return the function that quotes a schema's names: `quote`, and for a PostgreSQL database also its rules."""
    return partial(quote_postgresql, quote=quote) if schema.is_postgresql else quote


def _compact_table(table: Table, quote: Callable[[str], str]) -> str:
    references: dict[str, str] = {}
    for key in table.foreign_keys:
        for column, target in zip(key.columns, key.targets, strict=True):
            references.setdefault(column, f"={quote(key.table)}.{quote(target)}")
    columns = (quote(column.name) + references.get(column.name, "") for column in table.columns)
    return f"{quote(table.name)}({', '.join(columns)})"


def ddl(schema: Schema) -> str:
    """Render CREATE TABLE statements with types and PRIMARY KEY and FOREIGN KEY lines, separated by blank lines."""
    return _render_with_comments(schema, lambda _table, _column: "")


def omnisql(
    schema: Schema, values: ColumnValues, descriptions: Descriptions = NO_DESCRIPTIONS, dialect: str = "sqlite"
) -> str:
    """Render in OmniSQL's format (Li et al. 2025, arXiv:2503.02240) with comments `-- meaning, example: ['a', 'b']`.

    Names have backticks where OmniSQL has them (or the quotes of a `dialect` without backticks), foreign keys are named
    constraints, and NOT NULL is omitted. Examples are all values that the question seems to refer to
    (`Schema.matched`), then frequent ones up to two in total.
    """

    def comment_of(table: str, column: str) -> str:
        examples = _examples(schema, values, table, column, 2)
        parts = [descriptions.of(table, column), f"example: [{', '.join(map(repr, examples))}]" if examples else ""]
        return "-- " + ", ".join(filter(None, parts)) if any(parts) else ""

    return _render_with_comments(schema, comment_of, quote_mark='"' if dialect in _DOUBLE_QUOTED else "`")


def profile(schema: Schema, values: ColumnValues, descriptions: Descriptions = NO_DESCRIPTIONS) -> str:
    """Render like `ddl`, with PaVeRL-SQL's comments: `--MIN x MAX y` for numbers, else `--Example v1, v2, v3`.

    A column's description comes first, `--meaning; Example v1`; the paper inlines it without specifying a format.
    Examples are all values that the question seems to refer to (`Schema.matched`), then frequent ones up to three.
    """

    def comment_of(table: str, column: str) -> str:
        column_values = values.get((table, column), NO_VALUES)
        examples = _examples(schema, values, table, column, 3)
        if column_values.low is not None and not any(isinstance(value, _Boolean) for value in examples):
            text = f"MIN {column_values.low} MAX {column_values.high}"
        else:
            text = f"Example {', '.join(map(str, examples))}" if examples else ""
        comment = "; ".join(filter(None, (descriptions.of(table, column), text)))
        return f"--{comment}" if comment else ""

    return _render_with_comments(schema, comment_of)


def _examples(schema: Schema, values: ColumnValues, table: str, column: str, max_values: int) -> tuple[Value, ...]:
    """Return a column's matched values, each as one line, filled up to `max_values` with frequent ones."""
    matched = (" ".join(value.split()) for *where, value in schema.matched if where == [table, column])
    matched_values: dict[Value, None] = dict.fromkeys(matched)
    count = max(max_values, len(matched_values))
    examples = tuple(dict.fromkeys((*matched_values, *values.get((table, column), NO_VALUES).frequent)))[:count]
    return _as_postgresql(schema, table, column, examples) if schema.is_postgresql else examples


class _Boolean(int):
    """A boolean of PostgreSQL, which a sample has as 0 or 1."""

    def __repr__(self) -> str:
        return "true" if self else "false"


def _as_postgresql(schema: Schema, table: str, column: str, examples: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the values of a sample's column as PostgreSQL writes them: booleans, and times with their zone (UTC)."""
    types = (
        each.type for shown in schema.tables if shown.name == table for each in shown.columns if each.name == column
    )
    match next(types, ""):
        case "BOOLEAN":
            return tuple(_Boolean(value) if isinstance(value, int) else value for value in examples)
        case "TIMESTAMPTZ":
            return tuple(f"{value}+00" if str(value)[-1:].isdigit() else value for value in examples)
    return examples


def _render_with_comments(schema: Schema, comment_of: Callable[[str, str], str], quote_mark: str = "") -> str:
    """Render CREATE TABLE statements; `comment_of` returns the comment of a table's column, "" for none."""

    def comment_of_table(table: Table) -> Callable[[str], str]:
        return lambda column: comment_of(table.name, column)

    quote = quote_of(schema, partial(as_omnisql, mark=quote_mark) if quote_mark else quote_name)
    return "\n\n".join(
        _ddl_table(table, comment_of_table(table), quote, is_omnisql=bool(quote_mark)) for table in schema.tables
    )


def _ddl_table(table: Table, comment_of: Callable[[str], str], quote: Callable[[str], str], *, is_omnisql: bool) -> str:
    """Render a table; `comment_of` returns a column's comment, which follows the comma of its line."""

    def names(identifiers: Iterable[str]) -> str:
        return ", ".join(map(quote, identifiers))

    lines = [
        (_column_definition(column, quote, with_not_null=not is_omnisql), comment_of(column.name))
        for column in table.columns
    ]
    if table.primary_key:
        lines.append((f"PRIMARY KEY ({names(table.primary_key)})", ""))
    for key in table.foreign_keys:
        constraint = f"CONSTRAINT {quote(_constraint(table, key))} " if is_omnisql else ""
        target = f"{quote(key.table)} ({names(key.targets)})"
        lines.append((f"{constraint}FOREIGN KEY ({names(key.columns)}) REFERENCES {target}", ""))
    last = len(lines) - 1
    body = "\n".join(
        f"    {line}{'' if i == last else ','}{' ' + comment if comment else ''}"
        for i, (line, comment) in enumerate(lines)
    )
    return f"CREATE TABLE {quote(table.name)} (\n{body}\n);"


def _constraint(table: Table, key: ForeignKey) -> str:
    """Return the name of a foreign key as in OmniSQL's prompts, such as `fk_orders_customer_id`."""
    return "_".join(("fk", table.name, *key.columns)).lower().replace(" ", "_")


def _column_definition(column: Column, quote: Callable[[str], str], with_not_null: bool) -> str:
    """Return a column's name and type; a type that SQLite would not parse is quoted."""
    tokens = column.type.lower().split()
    is_plain = _TYPE.fullmatch(column.type) and RESERVED.isdisjoint(tokens)
    declared = column.type if is_plain else quote_name(column.type, always=True)
    not_null = " NOT NULL" if column.not_null and with_not_null else ""
    return f"{quote(column.name)}{' ' + declared if column.type else ''}{not_null}"


def names_only(schema: Schema) -> str:
    """Render the names of the tables, one per line; the model has to look up the columns."""
    return "\n".join(map(quote_of(schema), (table.name for table in schema.tables)))


RENDERERS: dict[str, Callable[[Example, Schema], str]] = {
    "compact": lambda _, schema: compact(schema),
    "ddl": lambda _, schema: ddl(schema),
    "omnisql": lambda example, schema: omnisql(
        schema, read_values(example.db_path, example.hide), read_descriptions(example.db_path), example.dialect
    ),
    "profile": lambda example, schema: profile(
        schema, read_values(example.db_path, example.hide), read_descriptions(example.db_path)
    ),
    "names_only": lambda _, schema: names_only(schema),
    "raw_ddl": raw_ddl,
    "omnisql_strict": omnisql_strict,
}
"""The formats of an example's database in prompts, by name."""

SHOW_EXAMPLES = frozenset(RENDERERS[name] for name in ("omnisql", "omnisql_strict", "profile"))
"""The formats with example values of columns, which can include values that a question seems to refer to."""
