"""Mask tags and fences inside a query's literals, quoted names and comments, as they are not part of the dialogue.

Tags (`<think>`, `<reasoning>`, `<sql>`, `<solution>`) and fences (three backticks) structure an answer. In a query such
as `SELECT '</sql>'` they are data, and must not end the query. `hide_tags` replaces each `<` and backtick by another
character, so all other text keeps its position; `show_tags` restores them.
"""

from __future__ import annotations

import re

# The replacements are two characters of the private use area, which texts rarely contain.
_MARKS, _REPLACEMENTS = "<`", "\ue0f0\ue0f1"
_HIDDEN, _SHOWN = str.maketrans(_MARKS, _REPLACEMENTS), str.maketrans(_REPLACEMENTS, _MARKS)
_OPENING = re.compile(r"<(think|reasoning|sql|solution)>|```sql(?![A-Za-z0-9_])", re.IGNORECASE)
OPENING_THOUGHT = re.compile(r"<(think|reasoning)>")
"""The opening tag of a thought."""
OPENED = re.compile(rf"{OPENING_THOUGHT.pattern}(?=\s*$)")
"""The opening tag of a thought at the end of a prompt: the template opens the thought that the answer continues."""
# A literal that spans several lines does not count: its quote is likely a lone apostrophe. A comment of /* */ has at
# most 1,000 characters. In a comment after --, tags are not masked, because the end of the query's block also ends it.
_QUOTE = re.compile(r"""['"]|/\*|--""")
_QUOTED = re.compile(r"""'(?:[^'\n]|'')*'|"(?:[^"\n]|"")*"|/\*(?s:.{0,1000}?)\*/|--[^\n]*""")


def hide_tags(text: str) -> str:
    """Return a text of the same length with tags and fences in queries' literals, quoted names and comments masked."""
    # A text that already has a replacement stays unchanged, because `show_tags` could not restore it.
    has_quotes = "'" in text or '"' in text or "/*" in text
    if not has_quotes or any(mark in text for mark in _REPLACEMENTS):
        return text
    pieces, copied, position = [], 0, 0
    last_positions: dict[str, int] = {}
    while opening := _OPENING.search(text, position):
        position, name = opening.end(), opening[1] or ""
        closing = f"</{name}>" if name else "```"
        if closing not in last_positions:
            last_positions[closing] = text.rfind(closing)
        if last_positions[closing] < position:
            continue
        if name.lower() in ("think", "reasoning"):
            position = text.find(closing, position)
            continue
        position, quoted = _end_of_block(text, position, closing)
        for start, stop in quoted:
            pieces += [text[copied:start], text[start:stop].translate(_HIDDEN)]
            copied = stop
    return "".join([*pieces, text[copied:]])


def open_thought(turn: str) -> str:
    """Return the tag of a thought that a turn opens but does not close, `<think>` or `<reasoning>`; else ""."""
    opening = next(reversed([*OPENING_THOUGHT.finditer(turn)]), None)
    return opening[0] if opening and f"</{opening[1]}>" not in turn[opening.end() :] else ""


def with_opened_thought(answer: str) -> str:
    """Return an answer with `<think>` prepended if it closes a thought that the server's prompt opened."""
    before, closing, _ = answer.partition("</think>")
    return f"<think>{answer}" if closing and "<think>" not in before else answer


def show_tags(text: str) -> str:
    """Undo `hide_tags`."""
    return text.translate(_SHOWN)


def _end_of_block(text: str, start: int, closing: str) -> tuple[int, list[tuple[int, int]]]:
    """Return the end of the query that begins at `start`, and the spans of its literals, quoted names and comments.

    The end is the first `closing` outside of these spans, otherwise the first `closing`, which must exist.
    """
    first = end = text.find(closing, start)
    quoted: list[tuple[int, int]] = []
    position = start
    while quote := _QUOTE.search(text, position, end):
        token = _QUOTED.match(text, quote.start())
        position = token.end() if token else quote.end()
        if token is None or quote[0] == "--":
            continue
        if position > end and (end := text.find(closing, position)) < 0:
            return first, quoted
        quoted.append(token.span())
    return end, quoted
