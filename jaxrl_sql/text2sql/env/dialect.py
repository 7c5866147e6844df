"""SQL of other dialects: run by its own engine, or MySQL's by SQLite, translated by sqlglot and what `mysql` adds.

Only the list in `docs/reference/engines.md` is translated. For the rest `to_sqlite` returns None, and the answer is a
syntax error. `why_refused` gives its name: parts that MySQL lacks and SQLite would run (`refused`), and parts without a
translation (`mysql`). Not emulated: MySQL compares text without regard to case and trailing blanks; SQLite does not.
Quantities that depend on the session (time zone, sql_mode, the character set) are those of a server in UTC with its
defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial

from sqlglot import ErrorLevel, exp

from jaxrl_sql.text2sql.env.mysql import for_sqlite
from jaxrl_sql.text2sql.env.mysql_columns import numeric_columns
from jaxrl_sql.text2sql.env.mysql_parts import Refused
from jaxrl_sql.text2sql.env.parse import none_if_it_fails, parse_statements
from jaxrl_sql.text2sql.env.refused import refused_by_mysql
from jaxrl_sql.types import DIALECTS, Example, InputError

_KEPT = 65_536


SQLGLOT: Mapping[str, str] = {"postgresql": "postgres", "mysql": "mysql", "duckdb": "duckdb"}
"""What sqlglot calls the dialect of each engine."""


def as_run(sql: str, example: Example) -> str | None:
    """Return an answer to a question as its database runs it; None where SQLite has to and it cannot be translated."""
    return sql if example.engine_url else to_sqlite(sql, example.dialect, example.db_path)


def to_sqlite(sql: str, dialect: str, database: str = "") -> str | None:
    """Translate a query into SQLite's dialect; None when it is refused or not exactly one statement.

    `database` is the file that runs it: comparisons with its columns of numbers can use their indexes.
    Raises InputError for a dialect other than MySQL's: those are run by their engines alone.
    """
    if dialect == "sqlite":
        return sql
    if dialect != "mysql":
        raise InputError(f"dialect {dialect!r}: SQLite runs its own SQL, and MySQL's translated; others need an engine")
    return _translated(sql, numeric_columns(database) if database else frozenset())[0]


def why_refused(sql: str, dialect: str, database: str = "") -> str:
    """Return the name of the part of a query that `to_sqlite` does not translate; empty for text that is no query."""
    if dialect != "mysql":
        return ""
    return _translated(sql, numeric_columns(database) if database else frozenset())[1]


@lru_cache(_KEPT)
def _translated(sql: str, numeric: frozenset[str]) -> tuple[str | None, str]:
    """Return MySQL's query as SQLite's, or None and what of it is not translated."""
    try:
        refusal = refused_by_mysql(sql)
        rewrite = partial(for_sqlite, numeric=numeric)
        return (None, refusal) if refusal else (_rewritten(sql, "mysql", "sqlite", rewrite), "")
    except Refused as refused:
        return None, str(refused)
    except Exception:  # noqa: BLE001 - noise makes sqlglot raise errors of many kinds
        return None, ""


def from_sqlite(sql: str, dialect: str, names: Collection[str] = ()) -> str | None:
    """Write SQLite's query in another dialect, as a demonstration; None when it does not parse.

    `names` are the columns of the database: SQLite takes a double-quoted word that is none of them for text, and so
    does this, where they are given. Division of whole numbers, the case of texts, and texts compared with numbers
    are not carried over: whoever needs the same result runs `to_sqlite` of what is returned and compares.
    """
    _check(dialect)
    if dialect == "sqlite":
        return sql
    return rewritten(sql, "sqlite", SQLGLOT[dialect], lambda tree: _unquote_text(tree, names) if names else tree)


def normal_form(sql: str) -> str:
    """Return SQLite's query without comments, with one spelling of key words, numbers and blanks: copies are equal.

    What does not parse is only stripped of blanks at its ends, and of a last semicolon.
    """
    return rewritten(sql, "sqlite", "sqlite", _one_spelling) or sql.strip().rstrip(";").rstrip()


def _check(dialect: str) -> None:
    if dialect not in DIALECTS:
        raise InputError(f"dialect {dialect!r}: there are {', '.join(DIALECTS)}")


def _rewritten(sql: str, read: str, write: str, rewrite: Callable[[exp.Expression], exp.Expression]) -> str | None:
    """Parse a text in one dialect, rewrite its one statement and write it in another; None if it is not one."""
    # A lone semicolon with a comment after it is a statement of its own to sqlglot.
    trees = [tree for tree in parse_statements(sql, read) or () if not isinstance(tree, exp.Semicolon)]
    if len(trees) != 1:
        return None
    options = {"comments": False, "normalize_functions": "upper", "unsupported_level": ErrorLevel.IGNORE}
    return rewrite(trees[0]).sql(write, **options) or None


rewritten = none_if_it_fails(_rewritten)


def _one_spelling(tree: exp.Expression) -> exp.Expression:
    """Write names, exponents and blobs in lower case; quoted words may be text, which has its case."""
    for node in tree.find_all(exp.Identifier, exp.Literal, exp.HexString):
        if not (node.args.get("quoted") or node.is_string):
            node.set("this", node.this.lower())
    return tree


def _unquote_text(tree: exp.Expression, names: Collection[str]) -> exp.Expression:
    """Make text of double-quoted words that name no column of the database or of the query."""
    known = {name.lower() for name in names} | {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    for column in list(tree.find_all(exp.Column)):
        name = column.this
        is_quoted = isinstance(name, exp.Identifier) and name.args.get("quoted")
        if is_quoted and not column.table and name.name.lower() not in known:
            column.replace(exp.Literal.string(name.name))
    return tree
