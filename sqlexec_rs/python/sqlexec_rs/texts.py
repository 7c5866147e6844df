"""What a text in a file of predictions may be: SQL, a line of a longer query, or a header."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# SQL may begin behind blanks, a mark without width, a bracket, a semicolon, a comment or a code fence.
_BEFORE = r"(?:[\s(;\ufeff\u200b-\u200f\u2060]|(?:--|[#])[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/|```\w*)*"
# DuckDB's queries may begin with FROM.
_QUERY = re.compile(_BEFORE + r"(?:(?:select|with|from)\b|values\s*\()", re.IGNORECASE)
_MADE = r"(?:table|view|index|schema|database|sequence|function|trigger|macro|type)"
# Where prose may begin with the same word, more of the statement is required.
_STATEMENT = re.compile(
    _BEFORE
    + rf"""(?:(?:explain|pragma|pivot|unpivot|summarize)\b
    |values\s*(?:\(|row\b) |table\s+[\w."`\[\]]+\s*(?:;|\Z|(?:where|order|limit|union|except|intersect)\b)
    |create\s+(?:or\s+replace\s+)?(?:\w+\s+){{0,2}}{_MADE}\s+(?:if\s+not\s+exists\s+)?[\w."`\[\]]+
        \s*(?:\bas\b|\bon\b|\(|;|\Z)
    |(?:drop|alter)\s+(?:\w+\s+)?{_MADE}\b |update\s+.{{1,200}}?\sset\s+[\w."`\[\]]+\s*=
    |(?:insert|replace)\s+(?:or\s+\w+\s+|overwrite\s+|ignore\s+)?into\b |delete\s+from\b |merge\s+into\b
    |(?:describe|desc)\s+[\w."`\[\]]+\s*(?:;|\Z) |describe\s+(?:select|table)\b
    |show\s+(?:\w+\s+){{0,2}}(?:tables|columns|databases|schemas|indexes|index|keys|status|variables|views)\b
    |show\s+create\b |(?:set|declare)\s+\S+(?:\s+\S+)?\s*(?:=|\bto\b)
    |(?:call|exec|execute)\s+[\w."`\[\]]+\s*(?:\(|;|\Z)
    |truncate\s+(?:table\s+)?\w+\s*(?:;|\Z) |(?:begin|commit|rollback)\s*(?:transaction\s*)?(?:;|\Z)
    |(?:attach|detach|use|copy)\s+['"`\w(][^\s]*\s*(?:;|\Z|\bto\b|\bas\b))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# A line that continues a query of the line before it, or ends a code fence.
_PART = re.compile(
    r"(?:from|where|having|union|intersect|except|limit|offset|and|or|on|group\s+by|order"
    r"|(?:(?:natural|inner|left|right|full|cross)\s+)?(?:outer\s+)?join)\b"
    r"|\)|```\w*\Z",
    re.IGNORECASE,
)
# FROM with its SELECT behind it is a whole query.
_FROM = re.compile(r"from\b", re.IGNORECASE)
_FROM_SELECT = re.compile(r"from\b[^()]*\bselect\b", re.IGNORECASE)
_IN_BRACKETS = re.compile(r"\([^()]*\)")
# More lines than this are no answers that happen to begin as a part of a query.
_PARTS_SHARE = 0.1
# A name, perhaps a database's, behind the last tab of a line.
_NAME = re.compile(r" *[\w./:#-]+ *")
# SQL that is open at its end: what follows a tab is no database.
_OPEN = re.compile(
    r".*(?:\b(?:select|distinct|from|where|join|on|and|or|not|by|having|limit|offset|as|in|like|between|union|all|except"
    r"|intersect|set|into|update|table|with)|[,=<>(+*/|.-])\s*",
    re.IGNORECASE | re.DOTALL,
)
# Names of columns of predictions; answers such as `no_sql` and `invalid query` are none.
_SQL_COLUMN = re.compile(
    r"(?!(?:no|not|non|none|null|un|in|can|could|wrong|error|err|fail\w*|bad|empty|missing)"
    r"(?:[ _.-]|not|valid|know|answer|able|suff))"
    r"(?:(?:[^\W\d][\w.-]*[ _.-])?(?:sql|query|queries)"
    r"|(?:[^\W\d][\w.-]*[_.-])?(?:pred\w*|generat(?:ed|ion|ions)(?:_\w+)?|outputs?|responses?|completions?|answers?))\d*",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d][\w.-]*")
_FENCE = re.compile(r"\A\s*```(?:(?:\w*sql\w*|duckdb)\b)?|```\s*\Z", re.IGNORECASE)


def is_query(text: str) -> bool:
    """Return whether a text begins as a query."""
    return bool(_QUERY.match(text))


def is_sql(text: str) -> bool:
    """Return whether a text begins as a statement of any kind."""
    return is_query(text) or bool(_STATEMENT.match(text))


def names_sql(text: str) -> bool:
    """Return whether a text is a usual name of a column of predictions."""
    return bool(_SQL_COLUMN.fullmatch(text))


def is_word(text: str) -> bool:
    """Return whether a text is a word, which may be a column's name or an answer."""
    return bool(_WORD.fullmatch(text))


def database_of(text: str, known: Collection[str] = ()) -> tuple[str, str]:
    """Return (SQL, name) of a line whose SQL ends before a tab and a name, as in Spider's files; or (text, "").

    Names that are `known` may have any form.
    """
    before, tab, last = text.rpartition("\t")
    is_name = tab and (_NAME.fullmatch(last) or last.strip() in known)
    return (before, last.strip()) if is_name and not _OPEN.fullmatch(before) else (text, "")


def parts_of_queries(texts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the places of the lines that continue a query; none where they are few enough to be answers.

    Spider's lines, each with its database, are whole, and so are lines that mostly begin with FROM.
    """
    if all(database_of(sql)[1] for _, sql in texts):
        return []
    may_begin_with_from = 2 * sum(bool(_FROM.match(sql)) for _, sql in texts) > len(texts)
    parts = []
    for place, sql in texts:
        is_whole = _FROM.match(sql) and (may_begin_with_from or _begins_with_from(sql))
        if _PART.match(sql) and not is_whole:
            parts.append(place)
    return parts if len(parts) > _PARTS_SHARE * len(texts) else []


def _begins_with_from(sql: str) -> bool:
    count = 1
    while count:
        sql, count = _IN_BRACKETS.subn(" ", sql)
    return bool(_FROM_SELECT.match(sql))


def same_sql(text: str, other: str) -> bool:
    """Return whether two texts differ in blanks, a last semicolon and a code fence at most."""
    first, second = (_FENCE.sub("", sql).rstrip("; \t\r\n").split() for sql in (text, other))
    return first == second
