"""Lengths of prompts over the limit, and what other settings would give, measured on a sample of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from jaxrl_sql.config import DataConfig
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.prompts.prompts import Encoder, PromptSet, Pruning
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import Example, InputError, Tokenizer

MAX_MEASURED = 32
"""Number of prompts that are tokenized again with each setting."""
# Number of settings that are suggested, and of schemas that are in memory while prompts are measured.
_MAX_SUGGESTIONS = 4
_CACHED_SCHEMAS = 4


class PromptShortener(NamedTuple):
    """The settings of prompts, and what measuring the prompts of other settings needs.

    `style_of` returns the prompt style of other settings. `seed` is that of pruning: `data.prune` removes columns that
    the gold (the reference query) does not use from training prompts. It is None if the golds may not be used.
    """

    data: DataConfig
    style_of: Callable[[DataConfig], PromptStyle]
    tokenizer: Tokenizer
    seed: int | None = None


class SettingLengths(NamedTuple):
    """The lengths, in tokens, of a sample's prompts with a setting (as text, such as `data.shots=0`)."""

    setting: str
    lengths: Sequence[int]

    def fitting(self, max_tokens: int) -> int:
        """Return the number of prompts of up to `max_tokens` tokens."""
        return sum(length <= max_tokens for length in self.lengths)

    def text(self, max_tokens: int) -> str:
        """Return the setting with its lengths."""
        return (
            f"{self.setting} → median {round(statistics.median(self.lengths)):,}, maximum {max(self.lengths):,} "
            f"({self.fitting(max_tokens)} fit)"
        )


def length_lines(
    prompts: PromptSet, max_tokens: int, examples: Sequence[Example], shortening: PromptShortener | None
) -> list[str]:
    """Return lines with the lengths of a set's prompts, and with settings that would shorten the skipped ones.

    Skipped prompts exceed `max_tokens`; there are no lines if none is skipped.
    """
    if not prompts.skipped or prompts.measured is None:
        return []
    uids = {uid for uid, _ in prompts.skipped}
    sample = sample_evenly([example for example in examples if example.uid in uids])
    return _describe_lengths("prompts", prompts.measured, max_tokens, sample, len(uids), shortening)


def streamed_lines(lengths: Counter[int], sample: Sequence[Example], shortening: PromptShortener) -> list[str]:
    """Return lines with the lengths of a streamed set's prompts so far, and with settings that would shorten them.

    `lengths` has the number of prompts by length. `sample` has questions whose prompts are too long.
    """
    measured = round(statistics.median(lengths.elements())), max(lengths)
    subject = f"the first {quantity(lengths.total(), 'prompts')}"
    limit = shortening.data.max_prompt_tokens
    too_long = sum(count for length, count in lengths.items() if length > limit)
    return _describe_lengths(subject, measured, limit, sample, too_long, shortening)


def question_line(example: Example, max_tokens: int, shortening: PromptShortener) -> str:
    """Return a line with the length of one question's prompt, and the lengths that other settings would give."""
    (length,) = _lengths([example], shortening.style_of(shortening.data), shortening.tokenizer)
    measured = measure_settings([example], max_tokens, shortening)
    choices = [f"{setting} → {lengths[0]:,}" for setting, lengths in measured]
    choices.append(f"data.max_prompt_tokens={length} → fits")
    return (
        f"the prompt has {length:,} tokens, and the limit is data.max_prompt_tokens={max_tokens}: {'; '.join(choices)}"
    )


def positions_line(example: Example, positions: int, answer_tokens: int, shortening: PromptShortener) -> str:
    """Return why a prompt leaves too few of a model's positions for an answer, and the settings that shorten it.

    `answer_tokens` is the number of tokens that an answer may have.
    """
    (length,) = _lengths([example], shortening.style_of(shortening.data), shortening.tokenizer)
    measured = measure_settings([example], positions - answer_tokens, shortening)
    choices = [f"{setting} → {lengths[0]:,}" for setting, lengths in measured]
    advice = (
        f"shorten the prompt ({'; '.join(choices)})"
        if choices
        else "shorten the question, or use a model with more positions"
    )
    return (
        f"the prompt has {length:,} tokens, the answer may have {answer_tokens:,}, and the model has {positions:,} "
        f"positions (max_positions) for both: {advice}"
    )


def _describe_lengths(
    subject: str,
    measured: tuple[int, int],
    max_tokens: int,
    sample: Sequence[Example],
    too_long: int,
    shortening: PromptShortener | None,
) -> list[str]:
    """Return lines with the lengths of prompts, and the lengths that other settings give for a sample of long prompts.

    `measured` is (median, maximum) of all prompts, and `sample` has questions of the `too_long` prompts over the limit.
    """
    median, maximum = measured
    lengths = f"a median of {median:,} and a maximum of {maximum:,} tokens"
    lines = [f"{subject} have {lengths}; the limit is data.max_prompt_tokens={max_tokens}"]
    if shortening is not None:
        choices = [setting.text(max_tokens) for setting in measure_settings(sample, max_tokens, shortening)]
        choices.append(f"data.max_prompt_tokens={maximum} → all fit")
        sampled = f"a sample of {len(sample)} of the " if len(sample) < too_long else ""
        lines.append(f"of {sampled}{quantity(too_long, 'prompts')} over it: {'; '.join(choices)}")
    return lines


def sample_evenly(examples: Sequence[Example], max_examples: int = MAX_MEASURED) -> list[Example]:
    """Return an evenly spread sample of at most `max_examples` examples, by database."""
    chosen = examples[:: -(-len(examples) // max_examples)] if examples else []
    return sorted(chosen, key=lambda example: example.db_path)


def measure_settings(sample: Sequence[Example], max_tokens: int, shortening: PromptShortener) -> list[SettingLengths]:
    """Return up to four settings that shorten the prompts of a sample, those with the most fitting prompts first."""
    data = shortening.data
    tokenizer, seed = shortening.tokenizer, shortening.seed
    current_lengths = _lengths(sample, shortening.style_of(data), tokenizer)
    results = []
    for setting, changed in _alternatives(sample, max_tokens, shortening):
        pruning = Pruning(max_tokens, seed) if changed.prune and seed is not None else None
        with suppress(InputError):  # a setting that the recipe does not have
            lengths = _lengths(sample, shortening.style_of(changed), tokenizer, pruning)
            results.append(SettingLengths(setting, lengths))
    shorter = [measured for measured in results if sum(measured.lengths) < sum(current_lengths)]
    return sorted(shorter, key=lambda measured: (-measured.fitting(max_tokens), sum(measured.lengths)))[
        :_MAX_SUGGESTIONS
    ]


def _alternatives(
    sample: Sequence[Example], max_tokens: int, shortening: PromptShortener
) -> Iterator[tuple[str, DataConfig]]:
    """Yield settings that may shorten prompts, as text and as a configuration."""
    data = shortening.data
    changes: list[tuple[str, Mapping[str, object]]] = [
        (f"data.schema={name}", {"schema": name}) for name in ("compact", "ddl") if data.schema != name
    ]
    if data.prompt != "compact":
        changes.append(("data.prompt=compact", {"prompt": "compact"}))
    if data.shots:
        changes.append(("data.shots=0", {"shots": 0}))
    if data.retrieval.top_k:
        changes.append(("data.retrieval.top_k=0", {"retrieval": dataclasses.replace(data.retrieval, top_k=0)}))
    if shortening.seed is not None and not data.prune:
        changes.append(("data.prune=true", {"prune": True}))
    budget = max_tokens - _most_outside_schema(sample, shortening)
    budget -= budget % 10
    if budget > 0 and not 0 < data.schema_budget <= budget:
        changes.append((f"data.schema_budget={budget}", {"schema_budget": budget}))
    for setting, values in changes:
        yield setting, dataclasses.replace(data, **values)  # type: ignore[arg-type]


def _most_outside_schema(sample: Sequence[Example], shortening: PromptShortener) -> int:
    """Return the most tokens of a prompt of the sample that do not belong to its schema."""
    style, tokenizer = shortening.style_of(shortening.data), shortening.tokenizer
    lengths = _lengths(sample, style, tokenizer)
    schemas = [style.show(example, read_schema(example.db_path, example.hide)) for example in sample]
    tokens = [len(tokenizer.encode(schema, add_special_tokens=False)) for schema in schemas]
    return max((length - schema for length, schema in zip(lengths, tokens, strict=True)), default=0)


def _lengths(
    sample: Sequence[Example], style: PromptStyle, tokenizer: Tokenizer, pruning: Pruning | None = None
) -> list[int]:
    encoder = Encoder(style, tokenizer, pruning, _CACHED_SCHEMAS)
    return [encoder.encode(example).length for example in sample]
