"""Parse responses: pure functions of text that the parsers of all recipes share.

Each file of this package belongs to a published system, such as Arctic-Text2SQL-R1, and has the parser of its answer
format (a `Read`). A parser extracts the SQL of a response and checks its format. The rules follow the system's paper;
the functions document their choices for cases that a paper leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

from jaxrl_sql.text2sql.env.tags import OPENED, hide_tags, show_tags
from jaxrl_sql.types import Response


class ParsedResponse(NamedTuple):
    """A parsed response: its SQL (None: no SQL), whether the format is right, and the texts of its parts.

    `think` is the text of the thought and `answer` that of the answer, both stripped and without their tags; "" without
    one. `queries` are the queries that a dialogue sent to the environment before its answer, in order.
    """

    sql: str | None
    well_formed: bool = True
    think: str = ""
    answer: str = ""
    queries: tuple[str, ...] = ()


Read = Callable[[Response], ParsedResponse]
"""A parser of responses."""

# A fence of ```sql, not of a longer language name such as ```sqlite.
_SQL_FENCE = re.compile(r"```sql(?![A-Za-z0-9_])")
_ANY_CASE_FENCE = re.compile(_SQL_FENCE.pattern, re.IGNORECASE)
# The language name after an opening fence; a word that begins a query is no language name.
_LANGUAGE_WORD = re.compile(r"(?!(?:select|with|values|explain|pragma)\b)[A-Za-z][\w+#-]*(?=\s)", re.IGNORECASE)


def policy_text(response: Response) -> str:
    """Return the policy's text of all turns, without the environment's observations."""
    if isinstance(response, str):
        return response
    return "".join(text for role, text in response if role == "assistant")


def opening_tag_of(prompt: str) -> str:
    """Return the tag `<think>` or `<reasoning>` at the end of a prompt; else "".

    A chat template or a prefill may write this opening tag of the thought. Parsers need it in the response.
    """
    match = OPENED.search(prompt)
    return match[0] if match else ""


def with_opening_tag(response: Response, opening_tag: str) -> Response:
    """Return a response with the tag from the end of its prompt prepended."""
    if not opening_tag:
        return response
    if isinstance(response, str):
        return opening_tag + response
    (role, text), *rest = response
    return [(role, opening_tag + text), *rest]


def ignore_tags_in_sql(read: Read) -> Read:
    """Decorate a parser so that it ignores tags and fences inside a query's literals, quoted names and comments.

    For example, the `</answer>` of `SELECT '</answer>'` does not end the answer. `hide_tags` replaces their characters
    before the parser reads the text, and `show_tags` restores them in its result.
    """

    @wraps(read)
    def read_with_hidden_tags(response: Response) -> ParsedResponse:
        turns = [("assistant", response)] if isinstance(response, str) else response
        hidden = [(role, hide_tags(text) if role == "assistant" else text) for role, text in turns]
        if all(text == before for (_, text), (_, before) in zip(hidden, turns, strict=True)):
            return read(response)
        sql, well_formed, think, answer, queries = read(hidden[0][1] if isinstance(response, str) else hidden)
        restored = None if sql is None else show_tags(sql)
        return ParsedResponse(
            restored, well_formed, show_tags(think), show_tags(answer), tuple(map(show_tags, queries))
        )

    return read_with_hidden_tags


def read_plain(response: Response) -> ParsedResponse:
    """Parse the whole text as SQL, for models trained to answer with only a query."""
    text = policy_text(response).strip()
    return ParsedResponse(text or None, answer=text)


def sql_blocks(text: str, any_case: bool = False) -> list[str]:
    """Return the stripped content of each closed ```sql fence; `any_case` also finds ```SQL."""
    blocks = []
    for opening in (_ANY_CASE_FENCE if any_case else _SQL_FENCE).finditer(text):
        closing = text.find("```", opening.end())
        if closing < 0:
            break
        blocks.append(text[opening.end() : closing].strip())
    return blocks


def fenced_blocks(text: str) -> list[str]:
    """Return the stripped content of each closed fence of any language, without the language name."""
    blocks = []
    # Pieces 1, 3, 5, … are inside fences; no fence follows the last piece.
    for piece in text.split("```")[1:-1:2]:
        word = _LANGUAGE_WORD.match(piece)
        blocks.append(piece[word.end() if word else 0 :].strip())
    return blocks


def find_enclosed(text: str, opening: str, closing: str) -> list[str]:
    """Return the unmodified content of each pair of `opening` and `closing` tags, in order.

    A pair ends at the first closing tag, so opening tags inside it are text. The time is linear in the text's length.
    """
    texts = []
    start = text.find(opening)
    while start >= 0:
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            break
        texts.append(text[start:end])
        start = text.find(opening, end + len(closing))
    return texts


def find_last_enclosed(text: str, opening: str, closing: str) -> str:
    """Return the stripped content of the last pair of tags; "" without one."""
    texts = find_enclosed(text, opening, closing)
    return texts[-1].strip() if texts else ""
