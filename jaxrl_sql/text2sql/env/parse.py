"""Parse SQL to sqlglot trees, and handle sqlglot's errors on invalid SQL."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.dialects.sqlite import SQLite

P = ParamSpec("P")
T = TypeVar("T")

# sqlglot warns about every statement that it does not parse, and a model's queries have many of them.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
# 1_000 is a number in SQLite >= 3.46 and PostgreSQL >= 16, but `1 AS _000` in sqlglot.
SQLite.NUMBERS_CAN_BE_UNDERSCORE_SEPARATED = Postgres.NUMBERS_CAN_BE_UNDERSCORE_SEPARATED = True


def none_if_it_fails(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function that parses SQL to return None if sqlglot raises, since invalid SQL is expected input."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - noise makes sqlglot raise errors of many kinds
            return None

    return wrapper


@none_if_it_fails
def parse_query(sql: str, dialect: str = "sqlite") -> exp.Expression:
    """Return the tree of the first query in a text, in one of sqlglot's dialects; None if it does not parse."""
    return _without_index(sqlglot.parse_one(sql, read=dialect), sql)


@none_if_it_fails
def parse_statements(sql: str, dialect: str = "sqlite") -> list[exp.Expression]:
    """Return the trees of all statements of a text; None if it does not parse."""
    return [_without_index(tree, sql) for tree in sqlglot.parse(sql, read=dialect) if tree is not None]


def _without_index(tree: exp.Expression, sql: str) -> exp.Expression:
    """Remove INDEXED BY and NOT INDEXED from a tree: they affect no result, but sqlglot parses the index as a table."""
    for table in tree.find_all(exp.Table) if "indexed" in sql.lower() else ():
        table.args.pop("indexed", None)
    return tree


def tables_of(select: exp.Select) -> list[exp.Expression]:
    """Return the tables and subqueries of a SELECT's FROM clause, joined ones last."""
    start = select.args.get("from_")
    items = [] if start is None else [start.this]
    return items + [join.this for join in select.args.get("joins") or []]
