"""SQL of dialects other than SQLite's: its own engine runs it, or MySQL's is translated to SQLite.

sqlglot and the module `mysql` translate the functions and clauses that `docs/reference/engines.md` lists. For other
SQL, `to_sqlite` returns None, so that the answer counts as a syntax error. `find_untranslated_part` returns the refused
part. There are two kinds: parts that SQLite runs but MySQL does not (module `refused`), and parts without a translation
(module `mysql`). MySQL's text comparison, which ignores case and trailing blanks, is not emulated. Session settings
(time zone, sql_mode, character set) are the defaults of a server in UTC.
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

_CACHE_SIZE = 65_536


SQLGLOT: Mapping[str, str] = {"postgresql": "postgres", "mysql": "mysql", "duckdb": "duckdb"}
"""sqlglot's dialect name of each engine."""


def runnable_sql(sql: str, example: Example) -> str | None:
    """Return an answer's SQL in the dialect of the database that runs it; None if it has no translation to SQLite.

    SQL for an engine is returned unchanged, and so is SQLite's own.
    """
    return sql if example.engine_url else to_sqlite(sql, example.dialect, example.db_path)


def to_sqlite(sql: str, dialect: str, database: str = "") -> str | None:
    """Translate a query to SQLite's dialect; None if it is refused or not exactly one statement.

    `database` is the SQLite file that runs it. Its numeric columns are compared without a conversion, so that the
    comparisons can use indexes. Raises InputError for PostgreSQL's and DuckDB's dialects, which only their engines run.
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


@lru_cache(_CACHE_SIZE)
def _translate(sql: str, numeric: frozenset[str]) -> tuple[str | None, str]:
    """Return (translation to SQLite, ""), or (None, the part without a translation).

    `numeric` are the names of numeric columns, in lower case.
    """
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

    `names` are the columns of the database. With them, any other double-quoted word is text, as in SQLite. The meaning
    of integer division, of the case of texts, and of comparisons between texts and numbers may change. To verify a
    translation, run both queries (the new one by `to_sqlite`) and compare the results.
    """
    _check_dialect(dialect)
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


def _check_dialect(dialect: str) -> None:
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
"""As `_transpile`, but None if sqlglot or `rewrite` raises an error."""


def _normalize_case(tree: exp.Expression) -> exp.Expression:
    """Write names, exponents (1E5) and blobs (X'FF') in lower case; quoted words keep their case: they may be text."""
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
