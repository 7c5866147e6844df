"""The documentation of a metric as a row of a table: its name, unit, formula, reading and where it is written.

The rows are in `training_metrics` and `evaluation_metrics`; `docs/reference/metrics.md` is written from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

RULES = (
    "bird", "refined", "test_suite", "qatch", "paverl", "ex_b", "spider2", "soft_f1", "ehrsql", "ehrsql_2022", "defog",
    "suite", "r_ves", "r_ves_alternate",
)  # fmt: skip
"""The rules that compare a prediction's result with the gold's (docs/reference/rules.md), for `<rule>` in a name."""


class Metric(NamedTuple):
    """A metric; `name` may have placeholders such as `<set>`.

    `unit` is its unit; `formula` says how it is computed, `reading` how to interpret its values. `when` names the lines
    of `metrics.jsonl`, or the settings, with which it is written.
    """

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
    """A table of metrics (`rows`) with a title and a sentence about them (`about`, may be empty)."""

    title: str
    about: str
    rows: tuple[Metric, ...]


def all_metrics(tables: Iterable[MetricTable]) -> Iterator[Metric]:
    """Yield the rows of all tables."""
    for table in tables:
        yield from table.rows


def find_metric(name: str, tables: Iterable[MetricTable]) -> Metric | None:
    """Return the row of a written name, that with the fewest placeholders; None if there is no row."""
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
    """Return the regular expression of a placeholder.

    `<metric>` stands for other rows; it matches nothing here, because `undocumented_names` looks up those rows.
    """
    return {"<rule>": f"(?:{'|'.join(RULES)})", "<metric>": "(?!)"}.get(placeholder, "[^/]+")
