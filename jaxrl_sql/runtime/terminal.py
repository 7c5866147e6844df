"""Lines on the terminal: no name, value or answer in them moves its cursor, colours it or hides other text."""

from __future__ import annotations

import re
import sys
from typing import TextIO

# Control characters except tab and line ends, those that turn a line's direction or end it, and halves of characters.
_HIDING = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)


def printable(text: str) -> str:
    r"""Return a text with escapes such as `\x1b` for characters that a terminal obeys and does not show."""
    return _HIDING.sub(lambda hiding: hiding[0].encode("unicode_escape").decode(), text)


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Write lines of a command, to standard output where no stream is named."""
    (stream or sys.stdout).write(f"{printable(text)}\n")
