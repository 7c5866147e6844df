"""The tables of an evaluation: shares by rule, statuses, disagreements between rules, votes and turns.

A rule compares a prediction's result with the gold's, the reference; a benchmark's own rule is that of its scorer. A
share is the part of the questions that are right by a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.files import cases
from jaxrl_sql.text2sql.evals.differences import REASONS
from jaxrl_sql.text2sql.evals.numbers import BenchmarkMetrics

# Widths in characters: of a terminal, and of the difficulty levels in the table of rules. Wider levels get separate
# tables.
_LEVELS_WIDTH = 38
_TERMINAL_WIDTH = 80
# Spider's and BIRD's levels from easy to hard; other levels follow in order of occurrence.
_LEVELS = ("easy", "simple", "medium", "moderate", "hard", "challenging", "extra")


class ReportTable(NamedTuple):
    """A table: title, column names and rows of texts; `text_columns` has the indices of columns without numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[int, ...] = (0,)


def tables(result: BenchmarkMetrics) -> list[ReportTable]:
    """Return the tables of a benchmark, without empty ones."""
    sections = (_rules(result), *_by_level(result), _statuses(result), _reasons(result), _votes(result), _turns(result))
    return [table for table in sections if table.rows]


def _rules(result: BenchmarkMetrics) -> ReportTable:
    """Return each rule's share with its interval (over several runs: deviation) and its shares by difficulty."""
    metrics, runs = result.numbers, len(result.summaries)
    levels = all_levels if _fit(all_levels := _levels(result)) else []
    spread = "±, of\nruns" if runs > 1 else "95 %\ninterval"
    rows = []
    for rule in result.summaries[0].scores:
        interval = "–".join(_percent(metrics[f"{rule}/{name}"]) for name in (("std",) if runs > 1 else ("low", "high")))
        name = f"{rule} *" if rule == result.own_rule else rule
        by_level = (_percent(metrics.get(f"{rule}/{level}")) for level in levels)
        rows.append((name, _percent(metrics[rule]), interval, f"{metrics[f'{rule}/count']:.0f}", *by_level))
    headers = (f"{level.partition('/')[2]}\n({metrics.get(f'count/{level}', 0):.0f})" for level in levels)
    count = quantity(round(metrics["count"]), "questions")
    first = result.summaries[0]
    failed = 0 if first.unjudged else len(first.failed_golds)  # the accuracy has no questions without a verdict
    failing = f", {quantity(failed, 'failing golds')} counted as wrong" if failed else ""
    title = f"{result.name}: accuracy {_percent(metrics.get('accuracy'))} % of {count}{failing}"
    note = "* by its own rule" + ("; suite: test-suite accuracy" if "suite" in result.summaries[0].scores else "")
    return ReportTable(f"{title} ({note})", ("rule", "%", spread, "of", *headers), tuple(rows))


def _by_level(result: BenchmarkMetrics) -> list[ReportTable]:
    """Return tables of shares by difficulty, with a row per level, if the levels do not fit into the table of rules.

    Each table has as many rules as fit the terminal.
    """
    levels = [] if _fit(all_levels := _levels(result)) else all_levels
    names = [level.partition("/")[2] for level in levels]
    counts = [f"{result.numbers.get(f'count/{level}', 0):.0f}" for level in levels]
    # A column takes three characters in addition to its cells, and the table's edge one.
    free_width = _TERMINAL_WIDTH - 1 - sum(3 + max(map(len, column)) for column in ((*names, "level"), (*counts, "of")))
    parts: list[list[str]] = []
    remaining = 0
    for rule in result.summaries[0].scores:
        column_width = 3 + max(len(rule), len("100.0"))
        if remaining < column_width:
            parts.append([])
            remaining = free_width
        parts[-1].append(rule)
        remaining -= column_width
    level_tables = []
    for rules in parts:
        shares = [[_percent(result.numbers.get(f"{rule}/{level}")) for rule in rules] for level in levels]
        rows = tuple((name, count, *row) for name, count, row in zip(names, counts, shares, strict=True))
        level_tables.append(ReportTable("by difficulty, in %", ("level", "of", *rules), rows))
    return level_tables


def _fit(levels: Sequence[str]) -> bool:
    """Return whether the levels fit into the table of rules."""
    return sum(2 + max(6, len(level.partition("/")[2])) for level in levels) <= _LEVELS_WIDTH


def _levels(result: BenchmarkMetrics) -> list[str]:
    """Return the groups by difficulty, from easy to hard."""
    names = [name for summary in result.summaries for name in summary.groups if name.startswith("hardness/")]
    order = [f"hardness/{level}" for level in _LEVELS]
    return sorted(dict.fromkeys(names), key=lambda name: order.index(name) if name in order else len(order))


def _statuses(result: BenchmarkMetrics) -> ReportTable:
    """Return the statuses of predictions and golds, and the counts outside of every share."""
    metrics = result.numbers

    def counts_of(prefix: str) -> dict[str, float]:
        return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}

    predictions, golds, endings = counts_of("status/"), counts_of("gold_status/"), counts_of("finish_reason/")
    failed = {name: [uid for uid, status in result.summaries[0].failed_golds if status == name] for name in golds}
    extra_rows = {
        "answers truncated at the token limit, in %": 100 * metrics.get("truncated", 0.0),
        "questions without a prediction, excluded from shares": metrics["missing"],
        "accuracy with these as wrong, in %": 100 * metrics.get("accuracy/with_missing", 0.0),
        "predictions without a question, skipped": metrics["extra"],
        "questions that cannot be judged, skipped": metrics["left_out"],
        "golds that fail on other databases of their suite": metrics["suite_gold_failures"],
        "stopped at the time limit, also in a retry without load": metrics["stopped_by_clock"],
    }
    extra_rows |= {
        f"reliability with error cost {cost}, in %": 100 * v for cost, v in counts_of("reliability/").items()
    }
    extra_rows |= {f"{name}, in %": 100 * share for name, share in counts_of("abstention/").items()}
    rows = [
        *((f"prediction: {name}", _count(value), "") for name, value in predictions.items()),
        *(
            (f"gold: {name}, excluded from shares", _count(golds[name]), cases(uids))
            for name, uids in failed.items()
            if uids
        ),
        *((f"answer: {name}", _count(value), "") for name, value in endings.items() if value and name != "stop"),
        *((name, _count(value), "") for name, value in extra_rows.items() if value),
    ]
    if not any(examples for _, _, examples in rows):
        return ReportTable("statuses", ("", "questions"), tuple((name, count) for name, count, _ in rows), (0,))
    return ReportTable("statuses", ("", "questions", "examples"), tuple(rows), (0, 2))


def _reasons(result: BenchmarkMetrics) -> ReportTable:
    """Return the reasons for disagreement between rules, with examples of questions."""
    reasons = result.summaries[0].reasons
    rows = tuple((name, REASONS[name], str(len(uids)), cases(uids)) for name, uids in reasons.items() if uids)
    title = "disagreements between rules" + (" (first run)" if len(result.summaries) > 1 else "")
    return ReportTable(title, ("reason", "description", "questions", "examples"), rows, (0, 1, 3))


def _votes(result: BenchmarkMetrics) -> ReportTable:
    """Return the accuracy of the vote, and pass@k, by number of samples."""
    sizes = [key.partition("/")[2] for key in result.numbers if key.startswith("vote/")]
    rows = tuple(
        (size, _percent(result.numbers[f"vote/{size}"]), _percent(result.numbers[f"pass/{size}"])) for size in sizes
    )
    return ReportTable(f"votes by number of samples, {result.own_rule}", ("samples", "vote %", "pass@k %"), rows)


def _turns(result: BenchmarkMetrics) -> ReportTable:
    """Return the accuracy by number of turns, and the use of database queries."""
    prefix = f"{result.own_rule}/turns/"
    counts = [key.removeprefix(prefix) for key in result.numbers if key.startswith(prefix)]
    rows = [
        (f"{n} turns", f"{result.numbers[f'count/turns/{n}']:.0f}", _percent(result.numbers[f"{prefix}{n}"]))
        for n in counts
    ]
    behaviour = {key: value for key, value in result.numbers.items() if key.startswith("dialogue/")}
    rows += [(f"{key.partition('/')[2]} per dialogue", f"{value:.2f}", "") for key, value in behaviour.items()]
    return ReportTable("dialogues", ("", "number", f"% {result.own_rule}"), tuple(rows))


def overview(sets: Sequence[BenchmarkMetrics], metrics: Mapping[str, float]) -> ReportTable:
    """Return the accuracies of several benchmarks, and their means from `metrics`, weighted by size and unweighted."""
    rows = [
        (set_.name, f"{set_.numbers['count']:.0f}", _percent(set_.numbers.get("accuracy")), set_.own_rule)
        for set_ in sets
    ]
    rows.append(("mean, weighted by size", f"{metrics['count']:.0f}", _percent(metrics.get("accuracy")), ""))
    rows.append(("mean of the benchmarks", "", _percent(metrics.get("macro/accuracy")), ""))
    return ReportTable("all benchmarks", ("benchmark", "questions", "accuracy %", "by"), tuple(rows))


def as_markdown(tables: Iterable[ReportTable]) -> str:
    """Write tables for a Markdown file."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: ReportTable) -> str:
    marks = ["---" if at in table.text_columns else "---:" for at in range(len(table.columns))]
    lines = [tuple(name.replace("\n", " ") for name in table.columns), tuple(marks), *table.rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"## {table.title}\n\n{body}\n"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _count(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
