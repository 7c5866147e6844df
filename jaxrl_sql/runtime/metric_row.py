"""The row of a metric: its name, unit, formula and reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

RULES = (
    "bird", "refined", "test_suite", "qatch", "paverl", "ex_b", "spider2", "soft_f1", "ehrsql", "ehrsql_2022", "defog",
    "suite", "r_ves", "r_ves_alternate",
)  # fmt: skip
"""The rules of comparison, for `<rule>` in a name."""


class Metric(NamedTuple):
    """A metric; `name` has placeholders such as `<set>`, and `when` names the lines or settings that have it."""

    name: str
    unit: str
    formula: str
    reading: str
    when: str

    def matches(self, name: str) -> bool:
        """Return whether a written name is this metric's."""
        parts = re.split(r"(<\w+>)", self.name)
        pattern = "".join(_pattern(part) if part.startswith("<") else re.escape(part) for part in parts)
        return re.fullmatch(pattern, name) is not None


class MetricTable(NamedTuple):
    """A table of metrics with a title and a sentence about them."""

    title: str
    about: str
    rows: tuple[Metric, ...]


def rows_of(parts: Iterable[MetricTable]) -> Iterator[Metric]:
    """Yield the rows of all parts."""
    for part in parts:
        yield from part.rows


def row_of(name: str, parts: Iterable[MetricTable]) -> Metric | None:
    """Return the row of a written name, one without placeholders first; None if there is no row."""
    matching = [row for row in rows_of(parts) if row.matches(name)]
    return min(matching, key=lambda row: row.name.count("<"), default=None)


def without_row(names: Iterable[str], parts: Iterable[MetricTable]) -> list[str]:
    """Return the names that have no row; the name of a set may precede the others."""
    parts = tuple(parts)
    return [name for name in names if row_of(name, parts) is None and row_of(name.partition("/")[2], parts) is None]


def _pattern(placeholder: str) -> str:
    """Return the pattern of a placeholder; `<metric>` is any row of the same table, which matches on its own."""
    return {"<rule>": f"(?:{'|'.join(RULES)})", "<metric>": "(?!)"}.get(placeholder, "[^/]+")
