"""From a completion to its SQL: pure functions of text, one a system, None when there is none.

The rules are those of the papers, as far as they are written down; where a system leaves a case open, the function
says what it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

Extract = Callable[[str], str | None]

_SQL_FENCE = re.compile(r"```sql(?![A-Za-z0-9_])")
_LANGUAGE_WORD = re.compile(r"(?!(?:select|with|values|explain)\b)[A-Za-z][\w+#-]*(?=\s)", re.IGNORECASE)
_SELECT = re.compile(r"\bselect\b", re.IGNORECASE)
_RAW_END = re.compile(r"\n[ \t\r]*\n|</answer>")
_MIN_BLOCK = 6


def extract_plain(text: str) -> str | None:
    """Return the whole text as SQL: for models that were taught to answer with a query and nothing else."""
    return text.strip() or None


def extract_arctic(text: str) -> str | None:
    """Find the SQL of a response in Arctic-Text2SQL-R1's way.

    Only what follows the first `</think>` counts, or everything when there is none (so it does not matter whether the
    opening tag stood in the prompt). The first of these that is there: the last closed ```sql block of more than 6
    characters; the last other closed fence that contains SELECT, without its language word; the `sql` of the last JSON
    object that has one; raw text from the first SELECT to a blank line or `</answer>`.

    Left open by the paper, decided here: SELECT is found in any case; a fence that holds a JSON object is read as one;
    raw text begins at SELECT even inside WITH, so a common table expression needs a fence.
    """
    head, tag, tail = text.partition("</think>")
    answer = tail if tag else head
    return _last_sql_block(answer) or _last_bare_fence(answer) or _last_json_sql(answer) or _raw_select(answer)


def _last_sql_block(text: str) -> str | None:
    for opening in reversed(list(_SQL_FENCE.finditer(text))):
        closing = text.find("```", opening.end())
        block = text[opening.end() : closing].strip() if closing >= 0 else ""
        if len(block) > _MIN_BLOCK:
            return block
    return None


def _last_bare_fence(text: str) -> str | None:
    # Pieces 1, 3, 5, … lie inside fences; the last piece has no fence after it.
    for piece in reversed(text.split("```")[1:-1:2]):
        word = _LANGUAGE_WORD.match(piece)
        block = piece[word.end() if word else 0 :].strip()
        if _SELECT.search(block) and not block.startswith("{"):
            return block
    return None


def _last_json_sql(text: str) -> str | None:
    decoder = json.JSONDecoder()
    found = None
    start = text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            end = start + 1
        else:
            sql = value.get("sql")
            if isinstance(sql, str) and sql.strip():
                found = sql.strip()
        start = text.find("{", end)
    return found


def _raw_select(text: str) -> str | None:
    start = _SELECT.search(text)
    if start is None:
        return None
    return _RAW_END.split(text[start.start() :], maxsplit=1)[0].strip()
