"""Which questions to teach: those whose gold can teach something, and for `data filter` a choice by more than that.

Each filter takes examples and returns those to keep, in order, and the others with a reason and the numbers behind it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import FilterSettings
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.text2sql.files.jsonl import read_ids
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.types import Example, InputError

# Outcomes hold rows until they are let go, so golds run a few at a time.
_CHUNK = 256


class Dropped(NamedTuple):
    """A question that is left out, why, and the numbers that say so."""

    uid: str
    reason: str
    numbers: Mapping[str, float] = {}


Filtered = tuple[list[Example], list[Dropped]]

Fault = tuple[str, Mapping[str, float]]
"""Why a question is left out, or an empty text, and the numbers that say so."""


def usable_golds(
    executor: SqlExecutor,
    examples: Sequence[Example],
    drop_empty: bool = True,
    tick: Callable[[int], None] | None = None,
) -> tuple[list[Example], list[tuple[str, str]]]:
    """Run every gold; return the examples to keep and (uid, reason) of the others, in order.

    Reasons are `gold fails: <status>`, with `, over vm_steps` where that limit stopped it, and, with `drop_empty`,
    `gold empty`. `tick` is told how many have run.
    """
    kept, dropped = by_gold(executor, examples, FilterSettings(empty_gold=drop_empty), tick)
    return kept, [(one.uid, one.reason) for one in dropped]


def keep_only(examples: Iterable[Example], path: str | Path, limit: int = 0) -> list[Example]:
    """Return the examples whose ids a file holds, at most `limit` of them (0: all); InputError when there are none."""
    ids = read_ids(path)
    kept_examples = [example for example in examples if example.uid in ids]
    if not kept_examples:
        raise InputError(f"{path}: none of its {len(ids)} ids is a question of this set")
    return kept_examples[:limit] if limit > 0 else kept_examples


def by_gold(
    executor: SqlExecutor,
    examples: Sequence[Example],
    cfg: FilterSettings,
    tick: Callable[[int], None] | None = None,
) -> Filtered:
    """Run every gold and leave out those that fail, take too long, or return no rows.

    `tick` is told how many have run.
    """

    def fault(outcome: SqlOutcome) -> Fault:
        numbers = {"rows": outcome.row_count, "vm_steps": outcome.vm_steps, "ms": round(outcome.elapsed_ms, 3)}
        return _gold_fault(outcome, cfg), numbers

    return _part((example, fault(outcome)) for example, outcome in _run_golds(executor, examples, tick))


def _part(found: Iterable[tuple[Example, Fault]]) -> Filtered:
    """Part examples into those without a fault and the others."""
    kept: list[Example] = []
    dropped: list[Dropped] = []
    for example, (reason, numbers) in found:
        if reason:
            dropped.append(Dropped(example.uid, reason, numbers))
        else:
            kept.append(example)
    return kept, dropped


def _run_golds(
    executor: SqlExecutor, examples: Sequence[Example], tick: Callable[[int], None] | None
) -> Iterator[tuple[Example, SqlOutcome]]:
    for start in range(0, len(examples), _CHUNK):
        if tick:
            tick(start)
        chunk = examples[start : start + _CHUNK]
        outcomes = execute_all(executor, [(example.database, example.gold_sql) for example in chunk])
        yield from zip(chunk, outcomes, strict=True)


def _gold_fault(outcome: SqlOutcome, cfg: FilterSettings) -> str:
    if outcome.status != "ok":
        over = ", over vm_steps" if outcome.stopped_by == "vm_steps" else ""
        return f"gold fails: {outcome.status}{over}" if cfg.failing_gold else ""
    if cfg.max_gold_steps and outcome.vm_steps > cfg.max_gold_steps:
        return f"gold over {cfg.max_gold_steps} VM steps"
    if cfg.max_gold_ms and outcome.elapsed_ms > cfg.max_gold_ms:
        return f"gold over {cfg.max_gold_ms} ms"
    return "gold empty" if cfg.empty_gold and outcome.row_count == 0 else ""


def by_text(examples: Sequence[Example], cfg: FilterSettings) -> Filtered:
    """Leave out golds that a list calls wrong, and those that are too short or too long."""
    noisy = read_ids(cfg.noisy) if cfg.noisy else frozenset()

    def fault(example: Example) -> Fault:
        characters = len(example.gold_sql)
        return (
            ("noisy gold", {}) if example.uid in noisy else (_length_fault(characters, cfg), {"characters": characters})
        )

    return _part((example, fault(example)) for example in examples)


def _length_fault(characters: int, cfg: FilterSettings) -> str:
    if characters < cfg.min_sql_characters:
        return f"gold under {cfg.min_sql_characters} characters"
    is_long = 0 < cfg.max_sql_characters < characters
    return f"gold over {cfg.max_sql_characters} characters" if is_long else ""


def without_repeats(examples: Sequence[Example]) -> Filtered:
    """Leave out a question that was asked before on the same database, in the same words but for case and marks."""
    seen: set[tuple[str, str]] = set()

    def fault(example: Example) -> Fault:
        asked = example.db_path, plain_words(example.question)
        reason = "asked before" if asked in seen else ""
        seen.add(asked)
        return reason, {}

    return _part((example, fault(example)) for example in examples)


def is_trivial(rows: Sequence[Sequence[object]]) -> bool:
    """Return whether a result is one row of 0 or NULL alone, which answers without the question's rows."""
    return len(rows) == 1 and all(value is None or value == 0 for value in rows[0])


def plain_words(text: str) -> str:
    """Return a text without punctuation, in one case and one Unicode form, words parted by single spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PZC" else c for c in folded).split())


def by_prompt(questions: PromptSet, max_tokens: int) -> Filtered:
    """Leave out prompts of more tokens than `max_tokens`."""

    def fault(tokens: int) -> Fault:
        return f"prompt over {max_tokens} tokens" if tokens > max_tokens else "", {"tokens": tokens}

    pairs = zip(questions.examples, questions.prompts, strict=True)
    return _part((example, fault(len(prompt.token_ids))) for example, prompt in pairs)


def by_rate(examples: Sequence[Example], rates: Mapping[str, tuple[int, int]], low: float, high: float) -> Filtered:
    """Keep questions of which a share in [low, high] of the sampled answers is right; `rates`: id -> (right, of)."""

    def fault(right: int, of: int) -> Fault:
        if not of:
            return "no verdict on its answers", {"right": right, "of": of}
        # Counts are compared, not quotients: 3 of 10 is not below a bound of 0.3.
        reason = "seldom right" if right < low * of - 1e-9 else "often right" if right > high * of + 1e-9 else ""
        return reason, {"right": right, "of": of}

    return _part((example, fault(*rates[example.uid])) for example in examples)


def by_choice(examples: Sequence[Example], chosen: frozenset[str], reason: str) -> Filtered:
    """Keep the examples whose ids were chosen."""
    return _part((example, ("" if example.uid in chosen else reason, {})) for example in examples)
