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


def all_metrics(tables: Iterable[MetricTable]) -> Iterator[Metric]:
    """Yield the rows of all parts."""
    for table in tables:
        yield from table.rows


def find_metric(name: str, tables: Iterable[MetricTable]) -> Metric | None:
    """Return the row of a written name, one without placeholders first; None if there is no row."""
    matching = [row for row in all_metrics(tables) if row.matches(name)]
    return min(matching, key=lambda row: row.name.count("<"), default=None)


def undocumented_names(names: Iterable[str], tables: Iterable[MetricTable]) -> list[str]:
    """Return the names that have no row; the name of a set may precede the others."""
    tables = tuple(tables)
    return [
        name
        for name in names
        if find_metric(name, tables) is None and find_metric(name.partition("/")[2], tables) is None
    ]


def _pattern(placeholder: str) -> str:
    """Return the pattern of a placeholder; `<metric>` is any row of the same table, which matches on its own."""
    return {"<rule>": f"(?:{'|'.join(RULES)})", "<metric>": "(?!)"}.get(placeholder, "[^/]+")
