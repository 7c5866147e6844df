"""Tables on the terminal, and in a log as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxrl_sql.runtime.terminal import printable

_LOG_WIDTH = 160


def shown_text(text: str, style: str = "") -> Text:
    """Return a text as rich shows it: no markup, and nothing that a terminal obeys."""
    return Text(printable(text), style=style)


def show_table(
    stream: TextIO, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)
) -> None:
    """Write a table, columns at the places of `words` as words and the others as numbers; a log gets it wide.

    Only words behind the first column may go on in another line.
    """
    console = Console(file=stream, width=None if stream.isatty() else _LOG_WIDTH)
    table = Table(
        title=shown_text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold"
    )
    for at, name in enumerate(columns):
        is_prose = at > 0 and at in words
        table.add_column(
            shown_text(name), justify="left" if at in words else "right", overflow="fold", no_wrap=not is_prose
        )
    for row in rows:
        table.add_row(*map(shown_text, row))
    console.print(table)


def show_counts(stream: TextIO, counts: Mapping[str, float]) -> None:
    """Write names and their numbers as a table."""
    show_table(stream, "", ("", "count"), [(name, f"{count:,}") for name, count in counts.items()])
