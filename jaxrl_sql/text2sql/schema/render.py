"""Turn a schema into the text that a prompt shows; `RENDERERS` names the ways.

`compact` spends few tokens and is meant for small models made from scratch; `ddl` is what pretrained models know, and
`omnisql` and `profile` write what is known of a column behind it. All spell names as the database does and quote a name
only when SQLite would not read it otherwise (`omnisql` keywords too); what is written as DDL can be run, and makes the
same schema, but that `omnisql` leaves NOT NULL out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from jaxrl_sql.text2sql.schema.describe import NO_DESCRIPTIONS, Descriptions, read_descriptions
from jaxrl_sql.text2sql.schema.quote import RESERVED, as_omnisql, quote_name
from jaxrl_sql.text2sql.schema.read import Column, ForeignKey, Schema, Table
from jaxrl_sql.text2sql.schema.values import NO_VALUES, ColumnValues, Value, read_values
from jaxrl_sql.types import Example

_QUOTES = ("postgresql", "duckdb")  # dialects without backticks
# A type is words and perhaps lengths; SQLite takes any text for one, in quotes.
_TYPE = re.compile(r"[A-Za-z_][\w ]*(\([^()'\"`\[\]-]*\))?")


def compact(schema: Schema) -> str:
    """Render one line a table, `employees(id, name, dept_id=departments.id)`; a column shows its first reference."""
    return "\n".join(_compact_table(table) for table in schema.tables)


def _compact_table(table: Table) -> str:
    target: dict[str, str] = {}
    for key in table.foreign_keys:
        for column, other in zip(key.columns, key.targets, strict=True):
            target.setdefault(column, f"={quote_name(key.table)}.{quote_name(other)}")
    columns = (quote_name(column.name) + target.get(column.name, "") for column in table.columns)
    return f"{quote_name(table.name)}({', '.join(columns)})"


def ddl(schema: Schema) -> str:
    """Render CREATE TABLE statements with types and PRIMARY KEY and FOREIGN KEY lines, a blank line between tables."""
    return "\n\n".join(_ddl_table(table, lambda _: "") for table in schema.tables)


def omnisql(
    schema: Schema, values: ColumnValues, descriptions: Descriptions = NO_DESCRIPTIONS, dialect: str = "sqlite"
) -> str:
    """Render as OmniSQL does (Li et al. 2025, arXiv:2503.02240), comments too: `-- what it is, example: ['a', 'b']`.

    Names are in backticks where they are there (in the quotes of a `dialect` that has no backticks), foreign keys are
    constraints with a name, and nothing is NOT NULL.
    Values that the question seems to mean (`Schema.matched`) come first, all of them, and frequent ones up to two.
    """

    def note(table: str, column: str) -> str:
        examples = _examples(schema, values, table, column, 2)
        said = [descriptions.of(table, column), f"example: {list(examples)}" if examples else ""]
        return "-- " + ", ".join(filter(None, said)) if any(said) else ""

    return _noted(schema, note, mark='"' if dialect in _QUOTES else "`")


def profile(schema: Schema, values: ColumnValues, descriptions: Descriptions = NO_DESCRIPTIONS) -> str:
    """Render as `ddl` does, with PaVeRL-SQL's comments: `--MIN x MAX y` of numbers, else `--Example v1, v2, v3`.

    What is written about a column stands first, `--what it is; Example v1`: the paper inlines it and shows no form.
    Values that the question seems to mean (`Schema.matched`) come first, all of them, and frequent ones up to three.
    """

    def note(table: str, column: str) -> str:
        found = values.get((table, column), NO_VALUES)
        if found.low is not None:
            shown = f"MIN {found.low} MAX {found.high}"
        else:
            examples = _examples(schema, values, table, column, 3)
            shown = f"Example {', '.join(map(str, examples))}" if examples else ""
        said = "; ".join(filter(None, (descriptions.of(table, column), shown)))
        return f"--{said}" if said else ""

    return _noted(schema, note)


def _examples(schema: Schema, values: ColumnValues, table: str, column: str, most: int) -> tuple[Value, ...]:
    """Return a column's matched values, each on one line, and of its frequent ones as many as make `most`."""
    matched = (" ".join(value.split()) for *where, value in schema.matched if where == [table, column])
    first: dict[Value, None] = dict.fromkeys(matched)
    count = max(most, len(first))
    return tuple(dict.fromkeys((*first, *values.get((table, column), NO_VALUES).frequent)))[:count]


def _noted(schema: Schema, note: Callable[[str, str], str], mark: str = "") -> str:
    def of(table: Table) -> Callable[[str], str]:
        return lambda column: note(table.name, column)

    return "\n\n".join(_ddl_table(table, of(table), mark) for table in schema.tables)


def _ddl_table(table: Table, note: Callable[[str], str], mark: str = "") -> str:
    """Render a table; `note` is what is said of a column, behind the comma of its line.

    With a `mark`, which stands around names, it is in OmniSQL's form.
    """

    def quote(name: str) -> str:
        return as_omnisql(name, mark) if mark else quote_name(name)

    def names(given: Iterable[str]) -> str:
        return ", ".join(map(quote, given))

    lines = [(_declared(column, quote, with_null=not mark), note(column.name)) for column in table.columns]
    if table.primary_key:
        lines.append((f"PRIMARY KEY ({names(table.primary_key)})", ""))
    for key in table.foreign_keys:
        named = f"CONSTRAINT {quote(_constraint(table, key))} " if mark else ""
        target = f"{quote(key.table)} ({names(key.targets)})"
        lines.append((f"{named}FOREIGN KEY ({names(key.columns)}) REFERENCES {target}", ""))
    last = len(lines) - 1
    body = "\n".join(
        f"    {line}{'' if i == last else ','}{' ' + said if said else ''}" for i, (line, said) in enumerate(lines)
    )
    return f"CREATE TABLE {quote(table.name)} (\n{body}\n);"


def _constraint(table: Table, key: ForeignKey) -> str:
    """Return the name that OmniSQL gives to a foreign key."""
    return "_".join(("fk", table.name, *key.columns)).lower().replace(" ", "_")


def _declared(column: Column, quote: Callable[[str], str], with_null: bool) -> str:
    words = column.type.lower().split()
    is_plain = _TYPE.fullmatch(column.type) and RESERVED.isdisjoint(words)
    kind = column.type if is_plain else quote_name(column.type, always=True)
    never_null = " NOT NULL" if column.not_null and with_null else ""
    return f"{quote(column.name)}{' ' + kind if column.type else ''}{never_null}"


def names_only(schema: Schema) -> str:
    """Render the tables' names, one a line: the rest is to be looked up."""
    return "\n".join(quote_name(table.name) for table in schema.tables)


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
}
"""How a prompt may show the database of an example, by name."""

SHOW_EXAMPLES = frozenset(RENDERERS[name] for name in ("omnisql", "profile"))
"""The ways that show values of a column, and so can show those that a question seems to mean."""
