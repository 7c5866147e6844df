"""The type of a loaded benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.address import public_name
from jaxrl_sql.types import Example

_SHOWN = 3

Skipped = tuple[tuple[str, str], ...]
"""(uid, reason) of each skipped question."""


class Benchmark(NamedTuple):
    """A published set: its usable questions in file order, and its scoring.

    `rule` is the comparison of its leaderboard (`bird`, `test_suite`, `spider2`, `ehrsql`, `ehrsql_2022`, `defog`), and
    `submission` the leaderboard's format of predictions. `notes` are messages about missing data and repairs.
    `prepare` is the scorer's preprocessing of a predicted query. `order` has the ids of all questions, including
    skipped ones, in the file's order; `lines` has the place of each question in a user's file (`file:line`). Both are
    empty for a huge set.
    """

    name: str
    rule: str
    examples: tuple[Example, ...]
    skipped: Skipped = ()
    notes: tuple[str, ...] = ()
    submission: str = "jsonl"
    prepare: Callable[[str], str] | None = None
    order: tuple[str, ...] = ()
    lines: Mapping[str, str] = {}


def describe_databases(examples: Iterable[Example]) -> str:
    """Return the databases of questions with their numbers, without users and passwords."""
    counts = Counter(public_name(example.database) for example in examples)
    shown = [f"{name} ({quantity(count, 'questions')})" for name, count in counts.most_common(_SHOWN)]
    more = [f"and {len(counts) - _SHOWN} more databases"] if len(counts) > _SHOWN else []
    return ", ".join([*shown, *more])


def label_notes(notes: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the notes of sets as lines with the set's name; a note that several sets have is one line."""
    names_by_note: dict[str, list[str]] = {}
    for name, lines in notes:
        for line in lines:
            names_by_note.setdefault(line, []).append(name)
    return [f"{', '.join(dict.fromkeys(names))}: {line}" for line, names in names_by_note.items()]


def summarize_skipped(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line per reason, with the number of skipped questions and an example."""
    reasons: dict[str, list[str]] = {}
    for uid, reason in skipped:
        reasons.setdefault(reason, []).append(uid)
    return [f"skipped {len(uids)} ({reason}), such as {uids[0]}" for reason, uids in reasons.items()]
