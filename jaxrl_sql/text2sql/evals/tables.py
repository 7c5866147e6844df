"""The tables that an evaluation shows: shares by rule, statuses, why rules differ, votes and turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.text2sql.env.files import cases
from jaxrl_sql.text2sql.evals.differences import REASONS
from jaxrl_sql.text2sql.evals.numbers import Judged

# Columns that levels may take beside the rules, on a terminal of 80; wider ones have tables of their own, of so many.
_BESIDE = 38
_WIDE = 80
# From easy to hard, as Spider and BIRD call them; others follow in the order in which they occur.
_LEVELS = ("easy", "simple", "medium", "moderate", "hard", "challenging", "extra")


class Table(NamedTuple):
    """A table to show: a title, names of columns, and rows of texts; those at the places of `words` are no numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)


def tables(one: Judged) -> list[Table]:
    """Return the tables of a benchmark, those without rows left out."""
    made = (_rules(one), *_by_level(one), _statuses(one), _reasons(one), _votes(one), _turns(one))
    return [table for table in made if table.rows]


def _rules(one: Judged) -> Table:
    """Return each rule's share with its interval (of several runs: its spread) and its shares by hardness."""
    numbers, runs = one.numbers, len(one.summaries)
    levels = found if _fit(found := _levels(one)) else []
    spread = "±, of\nruns" if runs > 1 else "95 %\ninterval"
    rows = []
    for rule in one.summaries[0].scores:
        around = "–".join(_percent(numbers[f"{rule}/{name}"]) for name in (("std",) if runs > 1 else ("low", "high")))
        name = f"{rule} *" if rule == one.own else rule
        by_level = (_percent(numbers.get(f"{rule}/{level}")) for level in levels)
        rows.append((name, _percent(numbers[rule]), around, f"{numbers[f'{rule}/count']:.0f}", *by_level))
    headers = (f"{level.partition('/')[2]}\n({numbers.get(f'count/{level}', 0):.0f})" for level in levels)
    title = f"{one.name}: accuracy {_percent(numbers.get('accuracy'))} % of {numbers['count']:.0f} questions"
    return Table(f"{title} (* by its own rule)", ("rule", "%", spread, "of", *headers), tuple(rows))


def _by_level(one: Judged) -> list[Table]:
    """Return the shares by hardness, a level a row, where there are too many to stand beside the rules.

    A table has the rules that a terminal is wide enough for.
    """
    levels = [] if _fit(found := _levels(one)) else found
    names = [level.partition("/")[2] for level in levels]
    counts = [f"{one.numbers.get(f'count/{level}', 0):.0f}" for level in levels]
    # A column takes three characters more than its cells, and the table's edge one.
    room = _WIDE - 1 - sum(3 + max(map(len, column)) for column in ((*names, "level"), (*counts, "of")))
    parts: list[list[str]] = []
    left = 0
    for rule in one.summaries[0].scores:
        wide = 3 + max(len(rule), len("100.0"))
        if left < wide:
            parts.append([])
            left = room
        parts[-1].append(rule)
        left -= wide
    made = []
    for rules in parts:
        shares = [[_percent(one.numbers.get(f"{rule}/{level}")) for rule in rules] for level in levels]
        rows = tuple((name, count, *row) for name, count, row in zip(names, counts, shares, strict=True))
        made.append(Table("by hardness, in %", ("level", "of", *rules), rows))
    return made


def _fit(levels: Sequence[str]) -> bool:
    """Return whether levels leave room for the rules and their shares beside them."""
    return sum(2 + max(6, len(level.partition("/")[2])) for level in levels) <= _BESIDE


def _levels(one: Judged) -> list[str]:
    """Return the groups by hardness, the easy ones first."""
    found = [name for summary in one.summaries for name in summary.groups if name.startswith("hardness/")]
    known = [f"hardness/{level}" for level in _LEVELS]
    return sorted(dict.fromkeys(found), key=lambda name: known.index(name) if name in known else len(known))


def _statuses(one: Judged) -> Table:
    """Return how predictions and golds ended, apart, and what is in no share."""
    numbers = one.numbers

    def counted(prefix: str) -> dict[str, float]:
        return {key.removeprefix(prefix): value for key, value in numbers.items() if key.startswith(prefix)}

    predictions, golds, endings = counted("status/"), counted("gold_status/"), counted("finish_reason/")
    failed = {name: [uid for uid, status in one.summaries[0].failed_golds if status == name] for name in golds}
    beside = {
        "answers truncated at the token limit, in %": 100 * numbers.get("truncated", 0.0),
        "questions without a prediction, in no share": numbers["missing"],
        "accuracy with these as wrong, in %": 100 * numbers.get("accuracy/with_missing", 0.0),
        "predictions for no question, left out": numbers["extra"],
        "questions that cannot be judged, left out": numbers["left_out"],
        "golds that fail on other databases of their suite": numbers["suite_gold_failures"],
        "stopped by the clock, even alone": numbers["stopped_by_clock"],
    }
    beside |= {f"reliability, an error costs {cost}, in %": 100 * v for cost, v in counted("reliability/").items()}
    beside |= {f"{name}, in %": 100 * share for name, share in counted("abstention/").items()}
    rows = [
        *((f"prediction: {name}", _count(value), "") for name, value in predictions.items()),
        *((f"gold: {name}, in no share", _count(golds[name]), cases(uids)) for name, uids in failed.items() if uids),
        *((f"answer: {name}", _count(value), "") for name, value in endings.items() if value and name != "stop"),
        *((name, _count(value), "") for name, value in beside.items() if value),
    ]
    return Table("what became of them", ("", "questions", "such as"), tuple(rows), (0, 2))


def _reasons(one: Judged) -> Table:
    """Return why rules say different things, with the first questions of which they do."""
    found = one.summaries[0].reasons
    rows = tuple((name, REASONS[name], str(len(uids)), cases(uids)) for name, uids in found.items() if uids)
    title = "why the rules differ" + (" (first run)" if len(one.summaries) > 1 else "")
    return Table(title, ("reason", "what it means", "questions", "such as"), rows, (0, 1, 3))


def _votes(one: Judged) -> Table:
    sizes = [key.partition("/")[2] for key in one.numbers if key.startswith("vote/")]
    rows = tuple((size, _percent(one.numbers[f"vote/{size}"]), _percent(one.numbers[f"pass/{size}"])) for size in sizes)
    return Table(f"votes by their size, {one.own}", ("samples", "% by vote", "% one is right"), rows)


def _turns(one: Judged) -> Table:
    """Return accuracy by number of turns, and how the database was asked."""
    prefix = f"{one.own}/turns/"
    counts = [key.removeprefix(prefix) for key in one.numbers if key.startswith(prefix)]
    rows = [
        (f"{n} turns", f"{one.numbers[f'count/turns/{n}']:.0f}", _percent(one.numbers[f"{prefix}{n}"])) for n in counts
    ]
    behaviour = {key: value for key, value in one.numbers.items() if key.startswith("dialogue/")}
    rows += [(f"{key.partition('/')[2]} a dialogue", f"{value:.2f}", "") for key, value in behaviour.items()]
    return Table("dialogues", ("", "number", f"% {one.own}"), tuple(rows))


def overview(sets: Sequence[Judged], numbers: Mapping[str, float]) -> Table:
    """Return the accuracies of several benchmarks, and their means: by size, and with each counting as much."""
    rows = [
        (set_.name, f"{set_.numbers['count']:.0f}", _percent(set_.numbers.get("accuracy")), set_.own) for set_ in sets
    ]
    rows.append(("mean, weighted by size", f"{numbers['count']:.0f}", _percent(numbers.get("accuracy")), ""))
    rows.append(("mean of the benchmarks", "", _percent(numbers.get("macro/accuracy")), ""))
    return Table("all benchmarks", ("benchmark", "questions", "accuracy %", "by"), tuple(rows))


def as_markdown(made: Iterable[Table]) -> str:
    """Write tables for a Markdown file."""
    return "\n".join(_markdown(table) for table in made)


def _markdown(table: Table) -> str:
    marks = ["---" if at in table.words else "---:" for at in range(len(table.columns))]
    lines = [tuple(name.replace("\n", " ") for name in table.columns), tuple(marks), *table.rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"## {table.title}\n\n{body}\n"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _count(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
