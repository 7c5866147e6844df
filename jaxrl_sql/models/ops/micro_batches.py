"""Sizes of micro-batches, for the host, compiled programs and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_sql.types import InputError


class MicroBatches(NamedTuple):
    """The split of a batch: `parts` equal parts or, with `tokens` above 0, at most `tokens` at a time per shard.

    `num_shards`: number of shards over which a mesh splits the prompts.
    """

    parts: int = 1
    tokens: int = 0
    num_shards: int = 1

    def chunk_sizes(self, prompts: int, prompt: int, rows: int, answer: int) -> tuple[int, int]:
        """Return the number of prompts of a shard, and of rows of answers per prompt, that run at a time.

        The shard has `prompts` prompts of `prompt` tokens with `rows` rows of `answer` tokens each. The result is the
        largest divisor of `prompts` that fits the budget with all rows. Otherwise it is one prompt, with its rows in
        the fewest passes of about equal size. Raises InputError if no row fits.
        """
        if max_prompts := self.tokens // (prompt + rows * answer):
            return max(k for k in range(1, prompts + 1) if prompts % k == 0 and k <= max_prompts), rows
        fit = (self.tokens - prompt) // answer
        if fit < 1:
            raise InputError(
                f"grpo.max_tokens_per_device={self.tokens}: a prompt of {prompt} tokens and one answer of {answer}, "
                f"with padding, are {prompt + answer}: raise it, or shorten data.max_prompt_tokens or answers"
            )
        times = -(-rows // fit)
        return 1, -(-rows // times)

    def parts_of(self, prompts: int, prompt: int, rows: int, answer: int) -> int:
        """Return the number of equal parts of a batch of `prompts` with at least `rows` rows each."""
        if not self.tokens:
            return self.parts
        prompts_per_shard = prompts // self.num_shards
        return prompts_per_shard // self.chunk_sizes(prompts_per_shard, prompt, rows, answer)[0]


def row_counts(max_rows: int) -> tuple[int, ...]:
    """Return up to four numbers of rows, in increasing order, that a part of a packed batch of `max_rows` may run."""
    return tuple(sorted({-(-max_rows * eighths // 8) for eighths in (4, 5, 6, 8)}))


def order_for_parts(rows: Sequence[int], parts: int) -> list[int]:
    """Return an order of prompts, which need `rows` packed rows, in which each part has prompts of similar size.

    Prompt j of the batch is in part j modulo `parts` (`algo.parts`), so the prompts with the most rows are all in the
    first part. Raises ValueError when the parts do not divide the prompts.
    """
    size, rest = divmod(len(rows), parts)
    if rest:
        raise ValueError(f"{len(rows)} prompts are not divisible by {parts} parts")
    by_rows = np.argsort(-np.asarray(rows), kind="stable")
    order: list[int] = by_rows.reshape(parts, size).T.reshape(-1).tolist()
    return order
