"""What SQLite runs and MySQL does not: an answer that uses it must not be rewarded because SQLite stands in for MySQL.

A text is judged by its words, before it is parsed: the parser makes one of `IIF` and `IF`, and cuts what is surplus.
The lists are of what models write; MySQL refuses more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sqlglot.dialects.mysql import MySQL
from sqlglot.tokens import Token, TokenType

# Functions of SQLite that MySQL has not.
_FUNCTIONS = frozenset(
    "STRFTIME JULIANDAY UNIXEPOCH DATETIME PRINTF TOTAL GLOB IIF TYPEOF RANDOM RANDOMBLOB ZEROBLOB UNICODE UNISTR "
    "LIKELY UNLIKELY LIKELIHOOD CHANGES TOTAL_CHANGES LAST_INSERT_ROWID LOAD_EXTENSION STRING_AGG MEDIAN "
    "GENERATE_SERIES JSON_EACH JSON_TREE JSON_GROUP_ARRAY JSON_GROUP_OBJECT JSON_PATCH JSONB".split()
)
# Functions of one argument in MySQL, of which SQLite takes more.
_OF_ONE = frozenset(
    "DATE TIME YEAR MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY QUARTER HOUR MINUTE SECOND DAYNAME MONTHNAME "
    "LAST_DAY MAX MIN LTRIM RTRIM".split()
)
# Types of a CAST in MySQL. `BINARY` is one too, and compares bytes, which is not translated.
_TYPES = frozenset(
    "CHAR NCHAR CHARACTER NATIONAL DATE DATETIME TIME YEAR DECIMAL SIGNED UNSIGNED FLOAT DOUBLE REAL JSON".split()
)
_ROW_IDS = frozenset({"ROWID", "_ROWID_"})
_TABLES = ("SQLITE_", "PRAGMA_")
# Pairs of words next to each other.
_PAIRS = frozenset(
    {("FULL", "JOIN"), ("FULL", "OUTER"), ("NULLS", "FIRST"), ("NULLS", "LAST"), ("COLLATE", "NOCASE"), ("FILTER", "(")}
)
_WORDS = frozenset({"GLOB", "==", "BINARY"})


def refused_by_mysql(sql: str) -> str:
    """Return a part of a text that MySQL refuses and SQLite may run, or that is not translated rightly; empty: none.

    Raises sqlglot's errors for a text that has no words.
    """
    tokens = MySQL().tokenize(sql)
    if any(comment.startswith("!") for token in tokens for comment in token.comments):
        return "a comment that MySQL runs"
    tokens = [token for token in tokens if token.token_type != TokenType.STRING]
    words = [_word(token) for token in tokens]
    refused = [*words[:1]] if words[:1] == ["PRAGMA"] else []
    refused += [word for word in words if word in _WORDS]
    refused += [" ".join(pair) for pair in pairwise(words) if pair in _PAIRS]
    refused += [token.text for token in tokens if _is_hidden(token.text.upper())]
    calls = (at for at, (_, after) in enumerate(pairwise(words)) if after == "(")
    refused += [f"{words[at]}()" for at in calls if _is_refused(words, at)]
    return refused[0] if refused else ""


def _word(token: Token) -> str:
    """Return a word in upper case; a quoted name is a name and never a key word."""
    return "`" if token.token_type == TokenType.IDENTIFIER else token.text.upper()


def _is_hidden(name: str) -> bool:
    return name in _ROW_IDS or name.startswith(_TABLES)


def _is_refused(words: Sequence[str], at: int) -> bool:
    """Return whether MySQL refuses the call whose name stands at a place, with its bracket behind."""
    name = words[at]
    if name == "CAST":
        inside = list(_inside(words, at + 1))
        return not any(word == "AS" and after.split()[0] in _TYPES for word, after in pairwise(inside))
    return name in _FUNCTIONS or (name in _OF_ONE and "," in _inside(words, at + 1))


def _inside(words: Sequence[str], opening: int) -> Iterator[str]:
    """Yield the words between a bracket and its closing, without those in brackets inside."""
    depth = 0
    for word in words[opening:]:
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return
        if depth == 1 and word not in "()":
            yield word
