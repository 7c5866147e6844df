"""Print tables to a terminal or, as text, to a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxrl_sql.runtime.terminal import printable

_LOG_WIDTH = 160


def to_rich_text(text: str, style: str = "") -> Text:
    """Return a text for rich, without markup and terminal control characters."""
    return Text(printable(text), style=style)


def show_table(
    stream: TextIO,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    text_columns: Sequence[int] = (0,),
) -> None:
    """Print a table; `text_columns` are the indices of left-aligned columns, the others are right-aligned.

    Only text columns after the first may wrap. A log, a stream that is no terminal, is 160 characters wide, and its
    lines have no trailing blanks.
    """
    is_terminal = stream.isatty()
    console = Console(file=stream, width=None if is_terminal else _LOG_WIDTH)
    table = Table(
        title=to_rich_text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold"
    )
    for index, name in enumerate(columns):
        is_prose = index > 0 and index in text_columns
        table.add_column(
            to_rich_text(name),
            justify="left" if index in text_columns else "right",
            overflow="fold",
            no_wrap=not is_prose,
        )
    for row in rows:
        table.add_row(*map(to_rich_text, row))
    if is_terminal:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    stream.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def show_counts(stream: TextIO, counts: Mapping[str, float]) -> None:
    """Write names and their numbers as a table."""
    show_table(stream, "", ("", "count"), [(name, f"{count:,}") for name, count in counts.items()])
