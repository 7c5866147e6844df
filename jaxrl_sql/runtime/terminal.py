"""Print lines to a terminal without control characters: no name, value or answer moves the cursor or hides text."""

from __future__ import annotations

import re
import sys
from typing import TextIO

# Control characters except tab and line ends, bidirectional and line-separator characters, and lone surrogates.
_HIDING = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)


def printable(text: str) -> str:
    r"""Return a text with escapes such as `\x1b` in place of control characters."""
    return _HIDING.sub(lambda hiding: hiding[0].encode("unicode_escape").decode(), text)


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print lines of a command; the default stream is standard output."""
    (stream or sys.stdout).write(f"{printable(text)}\n")
