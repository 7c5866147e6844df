"""SQL as sqlglot's trees: the one place that knows how sqlglot fails on text that is no SQL."""

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

# sqlglot warns on standard error of every statement that it takes as it is; a model's queries are full of them.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
# SQLite from 3.46 and PostgreSQL from 16 read 1_000 as a number, which is `1 AS _000` to sqlglot.
SQLite.NUMBERS_CAN_BE_UNDERSCORE_SEPARATED = Postgres.NUMBERS_CAN_BE_UNDERSCORE_SEPARATED = True


def none_if_it_fails(function: Callable[P, T]) -> Callable[P, T | None]:
    """Return None where a function that reads SQL with sqlglot raises: bad SQL is data."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - noise makes sqlglot raise errors of many kinds
            return None

    return call


@none_if_it_fails
def parse_query(sql: str, dialect: str = "sqlite") -> exp.Expression:
    """Return the tree of a query in one of sqlglot's dialects, the first of several; None when it does not parse."""
    return _without_index(sqlglot.parse_one(sql, read=dialect), sql)


@none_if_it_fails
def parse_statements(sql: str, dialect: str = "sqlite") -> list[exp.Expression]:
    """Return the trees of all statements of a text; None when it does not parse."""
    return [_without_index(tree, sql) for tree in sqlglot.parse(sql, read=dialect) if tree is not None]


def _without_index(tree: exp.Expression, sql: str) -> exp.Expression:
    """Take INDEXED BY and NOT INDEXED out of a tree: they change no result, and the index is a table to sqlglot."""
    for table in tree.find_all(exp.Table) if "indexed" in sql.lower() else ():
        table.args.pop("indexed", None)
    return tree


def tables_of(select: exp.Select) -> list[exp.Expression]:
    """Return what a SELECT reads from: tables and subqueries, those behind JOINs and commas last."""
    start = select.args.get("from_")
    found = [] if start is None else [start.this]
    return found + [join.this for join in select.args.get("joins") or []]
