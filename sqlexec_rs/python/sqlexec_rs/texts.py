"""Classify the texts in a file of predictions: SQL, a line of a longer query, or a header."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# SQL may follow blanks, a zero-width mark, a parenthesis, a semicolon, a comment or a code fence.
_BEFORE = r"(?:[\s(;\ufeff\u200b-\u200f\u2060]|(?:--|[#])[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/|```\w*)*"
# DuckDB's queries may start with FROM.
_QUERY = re.compile(_BEFORE + r"(?:(?:select|with|from)\b|values\s*\()", re.IGNORECASE)
_OBJECTS = r"(?:table|view|index|schema|database|sequence|function|trigger|macro|type)"
# For keywords that may start prose, more of the statement is required.
_STATEMENT = re.compile(
    _BEFORE
    + rf"""(?:(?:explain|pragma|pivot|unpivot|summarize)\b
    |values\s*(?:\(|row\b) |table\s+[\w."`\[\]]+\s*(?:;|\Z|(?:where|order|limit|union|except|intersect)\b)
    |create\s+(?:or\s+replace\s+)?(?:\w+\s+){{0,2}}{_OBJECTS}\s+(?:if\s+not\s+exists\s+)?[\w."`\[\]]+
        \s*(?:\bas\b|\bon\b|\(|;|\Z)
    |(?:drop|alter)\s+(?:\w+\s+)?{_OBJECTS}\b |update\s+.{{1,200}}?\sset\s+[\w."`\[\]]+\s*=
    |(?:insert|replace)\s+(?:or\s+\w+\s+|overwrite\s+|ignore\s+)?into\b |delete\s+from\b |merge\s+into\b
    |(?:describe|desc)\s+[\w."`\[\]]+\s*(?:;|\Z) |describe\s+(?:select|table)\b
    |show\s+(?:\w+\s+){{0,2}}(?:tables|columns|databases|schemas|indexes|index|keys|status|variables|views)\b
    |show\s+create\b |(?:set|declare)\s+\S+(?:\s+\S+)?\s*(?:=|\bto\b)
    |(?:call|exec|execute)\s+[\w."`\[\]]+\s*(?:\(|;|\Z)
    |truncate\s+(?:table\s+)?\w+\s*(?:;|\Z) |(?:begin|commit|rollback)\s*(?:transaction\s*)?(?:;|\Z)
    |(?:attach|detach|use|copy)\s+['"`\w(][^\s]*\s*(?:;|\Z|\bto\b|\bas\b))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# A line that continues the query of the previous line, or ends a code fence.
_PART = re.compile(
    r"(?:from|where|having|union|intersect|except|limit|offset|and|or|on|group\s+by|order"
    r"|(?:(?:natural|inner|left|right|full|cross)\s+)?(?:outer\s+)?join)\b"
    r"|\)|```\w*\Z",
    re.IGNORECASE,
)
# FROM followed by SELECT is a complete query.
_FROM = re.compile(r"from\b", re.IGNORECASE)
_FROM_SELECT = re.compile(r"from\b[^()]*\bselect\b", re.IGNORECASE)
_IN_BRACKETS = re.compile(r"\([^()]*\)")
# Above this share, lines that look like parts of queries are not answers by chance.
_PARTS_SHARE = 0.1
# A name, possibly of a database, after the last tab of a line.
_NAME = re.compile(r" *[\w./:#-]+ *")
# Incomplete SQL: the text after its tab is not a database.
_OPEN = re.compile(
    r".*(?:\b(?:select|distinct|from|where|join|on|and|or|not|by|having|limit|offset|as|in|like|between|union|all|except"
    r"|intersect|set|into|update|table|with)|[,=<>(+*/|.-])\s*",
    re.IGNORECASE | re.DOTALL,
)
# Usual names of prediction columns; excludes answers such as `no_sql` and `invalid query`.
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
    """Return whether a text starts like a query."""
    return bool(_QUERY.match(text))


def is_sql(text: str) -> bool:
    """Return whether a text starts like any statement."""
    return is_query(text) or bool(_STATEMENT.match(text))


def names_sql(text: str) -> bool:
    """Return whether a text is a usual name of a prediction column."""
    return bool(_SQL_COLUMN.fullmatch(text))


def is_word(text: str) -> bool:
    """Return whether a text is a word, and so may be a column name or an answer."""
    return bool(_WORD.fullmatch(text))


def split_database(text: str, known: Collection[str] = ()) -> tuple[str, str]:
    """Return (SQL, name) of a line with a tab and a name after the SQL, as in Spider's files; otherwise (text, "").

    `known` names may have any form.
    """
    before, tab, last = text.rpartition("\t")
    is_name = tab and (_NAME.fullmatch(last) or last.strip() in known)
    return (before, last.strip()) if is_name and not _OPEN.fullmatch(before) else (text, "")


def parts_of_queries(texts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the locations of lines that continue a query; empty if they are few enough to be answers.

    Spider's lines, each with its database, are complete, and so are lines that mostly start with FROM.
    """
    if all(split_database(sql)[1] for _, sql in texts):
        return []
    may_begin_with_from = 2 * sum(bool(_FROM.match(sql)) for _, sql in texts) > len(texts)
    parts = []
    for location, sql in texts:
        is_whole = _FROM.match(sql) and (may_begin_with_from or _begins_with_from(sql))
        if _PART.match(sql) and not is_whole:
            parts.append(location)
    return parts if len(parts) > _PARTS_SHARE * len(texts) else []


def _begins_with_from(sql: str) -> bool:
    count = 1
    while count:
        sql, count = _IN_BRACKETS.subn(" ", sql)
    return bool(_FROM_SELECT.match(sql))


def same_sql(text: str, other: str) -> bool:
    """Return whether two texts are equal except for blanks, a final semicolon and a code fence."""
    first, second = (_FENCE.sub("", sql).rstrip("; \t\r\n").split() for sql in (text, other))
    return first == second
