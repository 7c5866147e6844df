"""From a response to what stands in it: pure functions of text, shared by the systems, each of which has a file.

A `Read` finds the SQL of a response and says whether the response has the form that its system asks for. Rules are
those of the papers, as far as they are written down; where a system leaves a case open, its function says what it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

from jaxrl_sql.text2sql.env.tags import OPENED, hide_tags, show_tags
from jaxrl_sql.types import Response


class ParsedResponse(NamedTuple):
    """What is found in a response: its SQL (None: it has none), whether the form is right, and the texts of its parts.

    `queries` are those that a dialogue asked the environment to run, in order.
    """

    sql: str | None
    well_formed: bool = True
    think: str = ""
    answer: str = ""
    queries: tuple[str, ...] = ()


Read = Callable[[Response], ParsedResponse]

_SQL_FENCE = re.compile(r"```sql(?![A-Za-z0-9_])")
_ANY_CASE_FENCE = re.compile(_SQL_FENCE.pattern, re.IGNORECASE)
_LANGUAGE_WORD = re.compile(r"(?!(?:select|with|values|explain|pragma)\b)[A-Za-z][\w+#-]*(?=\s)", re.IGNORECASE)


def said(response: Response) -> str:
    """Return what the policy wrote in all its turns; what the environment answered is left out."""
    if isinstance(response, str):
        return response
    return "".join(text for role, text in response if role == "assistant")


def begun_by(prompt: str) -> str:
    """Return the tag that a prompt's text ends with, `<think>` or `<reasoning>`: it is the response's own. Else ""."""
    found = OPENED.search(prompt)
    return found[0] if found else ""


def with_beginning(response: Response, begun: str) -> Response:
    """Return a response with the tag before it that its prompt ended with."""
    if not begun:
        return response
    if isinstance(response, str):
        return begun + response
    (role, text), *rest = response
    return [(role, begun + text), *rest]


def hiding_tags(read: Read) -> Read:
    """Let a reader take tags and fences inside of a query's literals, quoted names and comments for text."""

    @wraps(read)
    def read_hidden(response: Response) -> ParsedResponse:
        turns = [("assistant", response)] if isinstance(response, str) else response
        hidden = [(role, hide_tags(text) if role == "assistant" else text) for role, text in turns]
        if all(text == before for (_, text), (_, before) in zip(hidden, turns, strict=True)):
            return read(response)
        sql, well_formed, think, answer, queries = read(hidden[0][1] if isinstance(response, str) else hidden)
        shown = None if sql is None else show_tags(sql)
        return ParsedResponse(shown, well_formed, show_tags(think), show_tags(answer), tuple(map(show_tags, queries)))

    return read_hidden


def read_plain(response: Response) -> ParsedResponse:
    """Take the whole text as SQL: for models that were taught to answer with a query and nothing else."""
    text = said(response).strip()
    return ParsedResponse(text or None, answer=text)


def sql_blocks(text: str, any_case: bool = False) -> list[str]:
    """Return what stands in each closed ```sql fence, stripped; `any_case` also finds ```SQL."""
    blocks = []
    for opening in (_ANY_CASE_FENCE if any_case else _SQL_FENCE).finditer(text):
        closing = text.find("```", opening.end())
        if closing < 0:
            break
        blocks.append(text[opening.end() : closing].strip())
    return blocks


def bare_blocks(text: str) -> list[str]:
    """Return what stands in each closed fence of any kind, stripped, without its language word."""
    blocks = []
    # Pieces 1, 3, 5, … lie inside fences; the last piece has no fence after it.
    for piece in text.split("```")[1:-1:2]:
        word = _LANGUAGE_WORD.match(piece)
        blocks.append(piece[word.end() if word else 0 :].strip())
    return blocks


def enclosed(text: str, opening: str, closing: str) -> list[str]:
    """Return what stands in each pair of tags, as it stands; a tag inside of a pair is text. Linear in the text."""
    found = []
    start = text.find(opening)
    while start >= 0:
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            break
        found.append(text[start:end])
        start = text.find(opening, end + len(closing))
    return found


def last_enclosed(text: str, opening: str, closing: str) -> str:
    """Return what stands in the last pair of tags, stripped; "" where there is none."""
    found = enclosed(text, opening, closing)
    return found[-1].strip() if found else ""
