"""Format a query's outcome as text for the model: column names, rows in order, and SQLite's error messages."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.text2sql.env.ports import SqlOutcome
from jaxrl_sql.types import Cell

MAX_CHARACTERS = 9_000
"""Characters of a complete result."""
MAX_ROWS = 50
"""Rows that are shown of a longer result."""
MAX_CELL = 200
"""Characters of a cell in a result that is not complete."""


def observe(outcome: SqlOutcome, max_characters: int = MAX_CHARACTERS, max_rows: int = MAX_ROWS) -> str:
    """Format a complete result up to `max_characters`, else its first `max_rows` rows with a note.

    In the second case, long cells are truncated first. If the text is still too long, it is truncated, too.
    """
    if outcome.status != "ok":
        return f"{outcome.status}: {outcome.error}" if outcome.error else outcome.status
    rows = outcome.rows
    if not rows:
        return f"{' | '.join(outcome.columns)}\n(no rows)"
    lines = [_format_row(outcome.columns), *(_format_row(row) for row in rows)]
    text = "\n".join(lines)
    if len(text) <= max_characters:
        return text
    first_rows = rows[:max_rows]
    text = "\n".join([_format_row(outcome.columns), *(_format_row(row, MAX_CELL) for row in first_rows)])
    if len(text) > max_characters:
        text = text[:max_characters] + " …"
    return f"{text}\n(the first {len(first_rows)} of {len(rows)} rows, cut to fit)"


def _format_row(cells: Sequence[Cell], longest: int = 0) -> str:
    """Format a row, with cells of at most `longest` characters (0: complete cells)."""
    return " | ".join(_format_cell(cell, longest) for cell in cells)


def _format_cell(cell: Cell, longest: int) -> str:
    """Format a value in SQL's notation, on one line."""
    if cell is None:
        return "NULL"
    text = f"x'{cell.hex()}'" if isinstance(cell, bytes) else str(cell)
    text = text.replace("\n", "\\n")
    return f"{text[:longest]}…" if longest and len(text) > longest else text
