"""Find SQL that SQLite runs but MySQL refuses, which must not be rewarded when SQLite replaces MySQL.

The check uses tokens, before parsing, because the parser merges `IIF` and `IF` and drops surplus arguments. The lists
cover SQL that models write; MySQL refuses more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sqlglot.dialects.mysql import MySQL
from sqlglot.tokens import Token, TokenType

# Functions of SQLite that MySQL lacks.
_SQLITE_FUNCTIONS = frozenset(
    "STRFTIME JULIANDAY UNIXEPOCH DATETIME PRINTF TOTAL GLOB IIF TYPEOF RANDOM RANDOMBLOB ZEROBLOB UNICODE UNISTR "
    "LIKELY UNLIKELY LIKELIHOOD CHANGES TOTAL_CHANGES LAST_INSERT_ROWID LOAD_EXTENSION STRING_AGG MEDIAN "
    "GENERATE_SERIES JSON_EACH JSON_TREE JSON_GROUP_ARRAY JSON_GROUP_OBJECT JSON_PATCH JSONB".split()
)
# Functions with one argument in MySQL and more in SQLite.
_ONE_ARGUMENT = frozenset(
    "DATE TIME YEAR MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY QUARTER HOUR MINUTE SECOND DAYNAME MONTHNAME "
    "LAST_DAY MAX MIN LTRIM RTRIM".split()
)
# Types of a CAST in MySQL, without `BINARY`, which compares bytes and is not translated.
_CAST_TYPES = frozenset(
    "CHAR NCHAR CHARACTER NATIONAL DATE DATETIME TIME YEAR DECIMAL SIGNED UNSIGNED FLOAT DOUBLE REAL JSON".split()
)
# SQLite's hidden columns with row numbers, and the prefixes of its internal tables and table functions.
_ROW_IDS = frozenset({"ROWID", "_ROWID_"})
_INTERNAL_PREFIXES = ("SQLITE_", "PRAGMA_")
# Refused pairs of consecutive tokens.
_REFUSED_PAIRS = frozenset(
    {("FULL", "JOIN"), ("FULL", "OUTER"), ("NULLS", "FIRST"), ("NULLS", "LAST"), ("COLLATE", "NOCASE"), ("FILTER", "(")}
)
_REFUSED_TOKENS = frozenset({"GLOB", "==", "BINARY"})


def find_refused_part(sql: str) -> str:
    """Return a part of a query that MySQL refuses, or that is not translated correctly; "" if there is no such part.

    Raises sqlglot's errors for a text that cannot be tokenized.
    """
    tokens = MySQL().tokenize(sql)
    if any(comment.startswith("!") for token in tokens for comment in token.comments):
        return "a comment that MySQL runs"  # /*! … */
    tokens = [token for token in tokens if token.token_type != TokenType.STRING]
    tokens_upper = [_upper_text(token) for token in tokens]
    refused = [*tokens_upper[:1]] if tokens_upper[:1] == ["PRAGMA"] else []
    refused += [word for word in tokens_upper if word in _REFUSED_TOKENS]
    refused += [" ".join(pair) for pair in pairwise(tokens_upper) if pair in _REFUSED_PAIRS]
    refused += [token.text for token in tokens if _is_internal_name(token.text.upper())]
    calls = (index for index, (_, after) in enumerate(pairwise(tokens_upper)) if after == "(")
    refused += [f"{tokens_upper[index]}()" for index in calls if _is_refused_call(tokens_upper, index)]
    return refused[0] if refused else ""


def _upper_text(token: Token) -> str:
    """Return a token in upper case; a quoted name becomes "`", as it is never a keyword."""
    return "`" if token.token_type == TokenType.IDENTIFIER else token.text.upper()


def _is_internal_name(name: str) -> bool:
    return name in _ROW_IDS or name.startswith(_INTERNAL_PREFIXES)


def _is_refused_call(texts: Sequence[str], index: int) -> bool:
    """Return whether MySQL refuses the call whose name is at an index; its parenthesis is the next token."""
    name = texts[index]
    if name == "CAST":
        inside = list(_tokens_inside(texts, index + 1))
        # A token may have several words, such as CHARACTER SET.
        return not any(word == "AS" and after.split()[0] in _CAST_TYPES for word, after in pairwise(inside))
    return name in _SQLITE_FUNCTIONS or (name in _ONE_ARGUMENT and "," in _tokens_inside(texts, index + 1))


def _tokens_inside(texts: Sequence[str], opening: int) -> Iterator[str]:
    """Yield the tokens between a parenthesis and its counterpart, without those in nested parentheses."""
    depth = 0
    for text in texts[opening:]:
        depth += (text == "(") - (text == ")")
        if depth == 0:
            return
        if depth == 1 and text not in "()":
            yield text
