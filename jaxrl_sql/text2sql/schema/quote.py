"""Quote names and texts for SQL, by SQLite's rules or as OmniSQL (Li et al. 2025) does in its prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from jaxrl_sql.text2sql.env.reserved import POSTGRESQL_RESERVED

# Words that SQLite does not accept unquoted everywhere (as a table, as a column, after a dot). Most of its keywords are
# valid names. Join keywords are not always ambiguous, but are quoted for readability.
RESERVED = frozenset(
    """
    add all alter and as autoincrement between case cast check collate commit constraint create cross current_date
    current_time current_timestamp default deferrable delete distinct drop else escape except exists false foreign
    from full group having if in index indexed inner insert intersect into is isnull join left limit natural not
    nothing notnull null on or order outer primary raise references returning right select set table then to
    transaction true union unique update using values when where
    """.split()
)

# Other SQL keywords that occur as names, which OmniSQL's prompts have in backticks.
_KEYWORDS = frozenset(
    """
    access after asc avg before begin binary bit boolean both break by call char character column comment condition
    continue count current cursor database date day dec decimal desc describe do double each end execute explain
    external filter float for function generated global hour identified if ignore int integer interval key language
    leading leave like local lock loop match max merge min minute module month new no numeric of offset old only open
    over partition percent position precision procedure range real recursive regexp release rename repeat replace
    restrict role row rows savepoint schema sensitive signal smallint some specific sql start sum time timestamp top
    trailing trigger unknown usage user value varchar view while with within year zone
    """.split()
)
# Further keywords that OmniSQL's released code quotes, and SQLite's that it does not.
_RELEASED_KEYWORDS = frozenset(
    """
    analyze bigint blob cascade clob connect convert declare elseif exec exit extend fetch grant hold ilike inout
    insensitive iterate localtime localtimestamp modifies nchar out placing reads resignal return revoke rlike rollback
    rownum session sqlexception sqlstate sqlwarning static substring sysdate terminated undo unlock varying
    """.split()
)
_UNQUOTED_KEYWORDS = frozenset(
    "autoincrement deferrable indexed isnull nothing notnull raise returning transaction".split()
)
_UNQUOTED_NAME = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")


def quote_name(name: str, *, always: bool = False, mark: str = '"') -> str:
    """Return a name for use in SQL, in quotes (`mark`, doubled inside) if SQLite requires them, or `always`."""
    if not always and _UNQUOTED_NAME.fullmatch(name) and name.lower() not in RESERVED:
        return name
    return mark + name.replace(mark, 2 * mark) + mark


def quote_postgresql(name: str, quote: Callable[[str], str] = quote_name) -> str:
    """Return a name on a PostgreSQL server: in quotes if it is reserved or not in lower case, else by `quote`."""
    return quote_name(name, always=True) if name != name.lower() or name in POSTGRESQL_RESERVED else quote(name)


def quote_names(names: Iterable[str], *, always: bool = False, mark: str = '"') -> str:
    """Return comma-separated names for use in SQL, each quoted as by `quote_name`."""
    return ", ".join(quote_name(name, always=always, mark=mark) for name in names)


def as_omnisql(name: str, mark: str = "`") -> str:
    """Return a name as in OmniSQL's prompts: quoted if it is a keyword or not an ASCII word.

    Names that begin with a digit are quoted, too; OmniSQL leaves them unquoted, which SQLite does not parse.
    """
    is_word = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
    is_plain = is_word and name.lower() not in RESERVED and name.lower() not in _KEYWORDS
    return name if is_plain else mark + name.replace(mark, 2 * mark) + mark


def as_released_omnisql(name: str) -> str:
    """Return a name as OmniSQL's released code writes it, which may not be valid SQL."""
    word = name.lower()
    is_keyword = word in (RESERVED | _KEYWORDS | _RELEASED_KEYWORDS) - _UNQUOTED_KEYWORDS
    return f"`{name}`" if is_keyword or not re.fullmatch(r"\w*", name, re.ASCII) else name


def quote_text(text: str) -> str:
    """Return a text as an SQL literal, in single quotes (doubled inside)."""
    return "'" + text.replace("'", "''") + "'"
