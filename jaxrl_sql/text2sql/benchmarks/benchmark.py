"""The type of a loaded benchmark, and lines about it for the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.address import public_name
from jaxrl_sql.types import Example

_MAX_SHOWN_DATABASES = 3

Skipped = tuple[tuple[str, str], ...]
"""(uid, reason) of each skipped question."""


class Benchmark(NamedTuple):
    """A published set: its usable questions in file order, and its scoring.

    - `rule` names the leaderboard's comparison of results (docs/reference/rules.md): `bird` (rows as sets),
      `test_suite` (Spider: rows as multisets, columns in any order), `spider2`, `ehrsql`, `ehrsql_2022` or `defog`.
    - `skipped` has (uid, reason) of each unusable question, `notes` has messages about missing data and repairs.
    - `submission` is the leaderboard's file format of predictions: `spider`, `bird`, `ehrsql` or `spider2`
      (`evals.submission`); `jsonl` if there is no leaderboard.
    - `prepare` is the scorer's preprocessing of a predicted query, if it has any.
    - `order` has the ids of all questions, including skipped ones, in the file's order. `lines` maps the id of a
      question in a user's file to its position (`file:line`). Both are empty for a huge set, which is read lazily.
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
    """Return the databases with the most questions, and their numbers of questions, as a text without passwords."""
    counts = Counter(public_name(example.database) for example in examples)
    shown = [f"{name} ({quantity(count, 'questions')})" for name, count in counts.most_common(_MAX_SHOWN_DATABASES)]
    num_others = len(counts) - _MAX_SHOWN_DATABASES
    more = [f"and {num_others} more databases"] if num_others > 0 else []
    return ", ".join([*shown, *more])


def label_notes(notes: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return a line per note, with the set's name; `notes` are (set, its notes).

    A note that several sets have is a single line with all of their names.
    """
    names_by_note: dict[str, list[str]] = {}
    for name, lines in notes:
        for line in lines:
            names_by_note.setdefault(line, []).append(name)
    return [f"{', '.join(dict.fromkeys(names))}: {line}" for line, names in names_by_note.items()]


def summarize_skipped(skipped: Iterable[tuple[str, str]], lines: Mapping[str, str] = {}) -> list[str]:
    """Return a line per reason, with the number of skipped questions and an example.

    `lines` has the place (`file:line`) of questions by uid; other questions are named by their uid.
    """
    reasons: dict[str, list[str]] = {}
    for uid, reason in skipped:
        reasons.setdefault(reason, []).append(lines.get(uid, uid))
    return [f"skipped {len(uids)} ({reason}), such as {uids[0]}" for reason, uids in reasons.items()]
