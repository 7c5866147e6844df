"""What a loader makes of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxrl_sql.types import Example

Skipped = tuple[tuple[str, str], ...]
"""(uid, reason) of each question that was left out."""


class Benchmark(NamedTuple):
    """A set as it was published: its usable questions in file order and what to know before a number is believed.

    `rule` is the comparison of its own leaderboard (`bird`, `test_suite`, `spider2`, `ehrsql`, `ehrsql_2022`, `defog`),
    `submission` the form in which that one takes predictions. `notes` say in plain sentences what is missing or was
    read otherwise. `prepare` changes a predicted query before it runs, as the set's scorer does.
    `order` are the ids of all questions, including those left out, in the file's order; empty for a huge set.
    """

    name: str
    rule: str
    examples: tuple[Example, ...]
    skipped: Skipped = ()
    notes: tuple[str, ...] = ()
    submission: str = "jsonl"
    prepare: Callable[[str], str] | None = None
    order: tuple[str, ...] = ()


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Return how many questions were left out, a line a reason, each with one of them."""
    reasons: dict[str, list[str]] = {}
    for uid, reason in skipped:
        reasons.setdefault(reason, []).append(uid)
    return [f"skipped {len(uids)} ({reason}), such as {uids[0]}" for reason, uids in reasons.items()]
