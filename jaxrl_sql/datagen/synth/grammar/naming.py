"""Rename the tables and columns of a database in a common naming style: `Singer_ID`, `singerId`, `SINGER`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

from jaxrl_sql.datagen.synth.spec import AnnotatedColumn, AnnotatedTable, SynthDatabase
from jaxrl_sql.text2sql.schema.quote import RESERVED

# Common abbreviations of words in names.
_ABBREVIATIONS = {
    "department": "dept", "customer": "cust", "employee": "emp", "number": "num", "quantity": "qty", "amount": "amt",
    "address": "addr", "manager": "mgr", "average": "avg", "account": "acct", "student": "stu", "professor": "prof",
    "position": "pos", "description": "descr", "category": "cat", "transaction": "trans", "nationality": "nation",
    "identifier": "ident", "reference": "ref", "product": "prod", "organization": "org", "temperature": "temp",
}  # fmt: skip
# A plural that `english.plural` gets wrong; its rules must not change, because other generated data depends on them.
_IRREGULAR = re.compile(r"childs\b")
# Probability that a word is abbreviated, and that the labels of a database are called `singer_name` instead of `name`.
_ABBREVIATED_SHARE = 0.12
_PREFIXED_SHARE = 0.3


def _pascal(parts: list[str]) -> str:
    return "".join(word.capitalize() for word in parts)


def _capital_snake(parts: list[str]) -> str:
    return "_".join("ID" if word == "id" else word.capitalize() for word in parts)


# Naming styles: (weight, function from the words of a table's name to the name, the same for columns).
_STYLES: tuple[tuple[int, Callable[[list[str]], str], Callable[[list[str]], str]], ...] = (
    (40, "_".join, "_".join),
    (14, _capital_snake, _capital_snake),
    (12, "_".join, _capital_snake),
    (8, _pascal, _pascal),
    (8, _pascal, lambda parts: parts[0] + _pascal(parts[1:])),
    (6, lambda parts: "_".join(parts).upper(), _capital_snake),
    (6, _capital_snake, "_".join),
    (6, "".join, lambda parts: "".join(parts[:-1]) + ("ID" if parts[-1] == "id" else parts[-1].capitalize())),
)


def rename(rng: random.Random, database: SynthDatabase) -> SynthDatabase:
    """Return the database with names in a random style, distinct and not reserved; words and rows are unchanged."""
    _, of_table, of_column = rng.choices(_STYLES, [style[0] for style in _STYLES])[0]
    has_prefixes = rng.random() < _PREFIXED_SHARE
    tables: dict[str, str] = {}
    columns: dict[tuple[str, str], str] = {}
    for table in database.tables:
        tables[table.name] = _usable_name(of_table(_words(rng, table.name)), table.name, set(tables.values()))
        taken: set[str] = set()
        for column in table.stored:
            parts = _words(rng, column.name)
            if has_prefixes and column is table.label and parts in (["name"], ["title"]):
                parts = [*table.singular.split()[-1:], *parts]
            columns[table.name, column.name] = _usable_name(of_column(parts), column.name, taken)
            taken.add(columns[table.name, column.name].lower())
    return replace(database, tables=tuple(_rename_table(table, tables, columns) for table in database.tables))


def _words(rng: random.Random, name: str) -> list[str]:
    """Return the words of a snake_case name, some of them abbreviated."""
    return [
        _ABBREVIATIONS.get(word, word) if rng.random() < _ABBREVIATED_SHARE else word
        for word in _IRREGULAR.sub("children", name).split("_")
    ]


def _usable_name(name: str, old: str, taken: set[str]) -> str:
    """Return the name, or the old name if the new one is reserved or taken (case-insensitive)."""
    return old if name.upper() in {word.upper() for word in RESERVED} or name.lower() in taken else name


def _rename_table(table: AnnotatedTable, tables: dict[str, str], columns: dict[tuple[str, str], str]) -> AnnotatedTable:
    """Return a table with the new names of `tables`, by old name, and `columns`, by (table, column)."""

    def rename_column(column: AnnotatedColumn) -> AnnotatedColumn:
        return replace(column, name=columns[table.name, column.name])

    references = tuple(
        replace(
            reference,
            column=rename_column(reference.column),
            table=tables[reference.table],
            target=columns[reference.table, reference.target],
        )
        for reference in table.references
    )
    return replace(
        table,
        name=tables[table.name],
        plural=_IRREGULAR.sub("children", table.plural),
        synonyms=tuple(_IRREGULAR.sub("children", synonym) for synonym in table.synonyms),
        key=rename_column(table.key),
        references=references,
        columns=tuple(rename_column(column) for column in table.columns),
    )
