"""SQL of other dialects: executed by its own engine, or MySQL's translated to SQLite by sqlglot and `mysql`.

Only the list in `docs/reference/engines.md` is translated. For other SQL, `to_sqlite` returns None, so the answer is a
syntax error, and `find_untranslated_part` returns the refused part. Refused are parts that MySQL lacks but SQLite runs
(`refused`), and parts without a translation (`mysql`). MySQL's text comparison, which ignores case and trailing blanks,
is not emulated. Session settings (time zone, sql_mode, character set) are the defaults of a server in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial

from sqlglot import ErrorLevel, exp

from jaxrl_sql.text2sql.env.mysql import for_sqlite
from jaxrl_sql.text2sql.env.mysql_columns import numeric_columns
from jaxrl_sql.text2sql.env.mysql_parts import Refused
from jaxrl_sql.text2sql.env.parse import none_if_it_fails, parse_statements
from jaxrl_sql.text2sql.env.refused import find_refused_part
from jaxrl_sql.types import DIALECTS, Example, InputError

_KEPT = 65_536


SQLGLOT: Mapping[str, str] = {"postgresql": "postgres", "mysql": "mysql", "duckdb": "duckdb"}
"""sqlglot's dialect name of each engine."""


def runnable_sql(sql: str, example: Example) -> str | None:
    """Return an answer's SQL in its database's dialect; None if it has no translation to SQLite."""
    return sql if example.engine_url else to_sqlite(sql, example.dialect, example.db_path)


def to_sqlite(sql: str, dialect: str, database: str = "") -> str | None:
    """Translate a query to SQLite's dialect; None if it is refused or not exactly one statement.

    `database` is the file that runs it, so that comparisons with its numeric columns can use indexes. Raises InputError
    for a dialect other than MySQL's, which only its own engine runs.
    """
    if dialect == "sqlite":
        return sql
    if dialect != "mysql":
        raise InputError(f"dialect {dialect!r}: SQLite runs its own SQL, and MySQL's translated; others need an engine")
    return _translate(sql, numeric_columns(database) if database else frozenset())[0]


def find_untranslated_part(sql: str, dialect: str, database: str = "") -> str:
    """Return the name of the part of a query that `to_sqlite` does not translate; "" for text that is not a query."""
    if dialect != "mysql":
        return ""
    return _translate(sql, numeric_columns(database) if database else frozenset())[1]


@lru_cache(_KEPT)
def _translate(sql: str, numeric: frozenset[str]) -> tuple[str | None, str]:
    """Return (translation to SQLite, ""), or (None, the part without a translation)."""
    try:
        refusal = find_refused_part(sql)
        rewrite = partial(for_sqlite, numeric=numeric)
        return (None, refusal) if refusal else (_transpile(sql, "mysql", "sqlite", rewrite), "")
    except Refused as refused:
        return None, str(refused)
    except Exception:  # noqa: BLE001 - noise makes sqlglot raise errors of many kinds
        return None, ""


def from_sqlite(sql: str, dialect: str, names: Collection[str] = ()) -> str | None:
    """Translate SQLite's query to another dialect, for demonstrations; None if it does not parse.

    `names` are the columns of the database. If given, any other double-quoted word is text, as in SQLite. Integer
    division, case of texts, and comparisons of texts with numbers are not preserved. To verify equality, run
    `to_sqlite` of the result and compare.
    """
    _check(dialect)
    if dialect == "sqlite":
        return sql
    return transpile_or_none(
        sql, "sqlite", SQLGLOT[dialect], lambda tree: _unquote_text(tree, names) if names else tree
    )


def normal_form(sql: str) -> str:
    """Return SQLite's query without comments, with normalized keywords, numbers and blanks, to find duplicates.

    A query that does not parse is only stripped of outer blanks and a final semicolon.
    """
    return transpile_or_none(sql, "sqlite", "sqlite", _normalize_case) or sql.strip().rstrip(";").rstrip()


def _check(dialect: str) -> None:
    if dialect not in DIALECTS:
        raise InputError(f"dialect {dialect!r}: there are {', '.join(DIALECTS)}")


def _transpile(sql: str, read: str, write: str, rewrite: Callable[[exp.Expression], exp.Expression]) -> str | None:
    """Parse one statement in a dialect, rewrite it and write it in another; None if it is not one statement."""
    # sqlglot parses a semicolon with a comment after it as a separate statement.
    trees = [tree for tree in parse_statements(sql, read) or () if not isinstance(tree, exp.Semicolon)]
    if len(trees) != 1:
        return None
    options = {"comments": False, "normalize_functions": "upper", "unsupported_level": ErrorLevel.IGNORE}
    return rewrite(trees[0]).sql(write, **options) or None


transpile_or_none = none_if_it_fails(_transpile)


def _normalize_case(tree: exp.Expression) -> exp.Expression:
    """Write names, exponents and blobs in lower case; quoted words keep their case, as they may be text."""
    for node in tree.find_all(exp.Identifier, exp.Literal, exp.HexString):
        if not (node.args.get("quoted") or node.is_string):
            node.set("this", node.this.lower())
    return tree


def _unquote_text(tree: exp.Expression, names: Collection[str]) -> exp.Expression:
    """Convert double-quoted words that name no column of the database or the query to text."""
    column_names = {name.lower() for name in names} | {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    for column in list(tree.find_all(exp.Column)):
        name = column.this
        is_quoted = isinstance(name, exp.Identifier) and name.args.get("quoted")
        if is_quoted and not column.table and name.name.lower() not in column_names:
            column.replace(exp.Literal.string(name.name))
    return tree
