"""Escape text for a terminal, because names, values and errors may contain control characters."""

from __future__ import annotations

import re

# Control characters except tab and line ends, characters that change a line's direction or end it, and surrogates.
_HIDING = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)


def printable(text: str) -> str:
    r"""Return a text with escapes such as `\x1b` for characters that a terminal interprets instead of showing."""
    return _HIDING.sub(lambda hiding: hiding[0].encode("unicode_escape").decode(), text)
