"""Sizes of micro-batches, used by the host, compiled programs and the memory estimate (`planning`).

A packed batch stores a prompt's answers in fewer rows, several answers per row; otherwise each answer is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_sql.types import InputError


class MicroBatches(NamedTuple):
    """The split of a batch into micro-batches, which run one after the other.

    parts: number of equal micro-batches, if `tokens` is 0
    tokens: token budget, with padding, of a micro-batch on each shard; 0: none, `parts` decides
    num_shards: number of shards over which a mesh splits the prompts
    """

    parts: int = 1
    tokens: int = 0
    num_shards: int = 1

    def chunk_sizes(self, prompts: int, prompt_tokens: int, rows: int, row_tokens: int) -> tuple[int, int]:
        """Return the number of prompts of a shard, and of rows of answers per prompt, that run at a time.

        The shard has `prompts` prompts of `prompt_tokens` tokens with `rows` rows of `row_tokens` tokens each. The
        number of prompts is the largest divisor of `prompts` that fits the budget with all rows. If one prompt with all
        rows does not fit, one prompt runs with some of its rows, in the fewest passes of about equal size. Raises
        InputError if no row fits.
        """
        if max_prompts := self.tokens // (prompt_tokens + rows * row_tokens):
            return max(k for k in range(1, prompts + 1) if prompts % k == 0 and k <= max_prompts), rows
        max_rows = (self.tokens - prompt_tokens) // row_tokens
        if max_rows < 1:
            raise InputError(
                f"grpo.max_tokens_per_device={self.tokens}: a prompt of {prompt_tokens} tokens and one answer of "
                f"{row_tokens}, with padding, are {prompt_tokens + row_tokens}: raise it, or shorten "
                "data.max_prompt_tokens or answers"
            )
        passes = -(-rows // max_rows)
        return 1, -(-rows // passes)

    def parts_of(self, prompts: int, prompt_tokens: int, rows: int, row_tokens: int) -> int:
        """Return the number of equal micro-batches of a batch of `prompts` prompts with at least `rows` rows each.

        The other arguments are those of `chunk_sizes`.
        """
        if not self.tokens:
            return self.parts
        prompts_per_shard = prompts // self.num_shards
        return prompts_per_shard // self.chunk_sizes(prompts_per_shard, prompt_tokens, rows, row_tokens)[0]


def row_counts(max_rows: int) -> tuple[int, ...]:
    """Return the numbers of rows per prompt that a micro-batch of a packed batch may run, in increasing order.

    They are 4/8, 5/8, 6/8 and 8/8 of `max_rows`, rounded up, without duplicates. Each is a branch of the compiled
    program, so there are only four.
    """
    return tuple(sorted({-(-max_rows * eighths // 8) for eighths in (4, 5, 6, 8)}))


def order_for_parts(rows: Sequence[int], parts: int) -> list[int]:
    """Return an order of prompts, as indices, in which each micro-batch has prompts with similar numbers of rows.

    `rows`: packed rows that each prompt needs. Prompt j of the ordered batch is in micro-batch j modulo `parts`
    (`algo.parts`). The order puts the prompts with the most rows into the first micro-batch, so the others run fewer
    rows. Raises ValueError when the number of prompts is not a multiple of `parts`.
    """
    size, rest = divmod(len(rows), parts)
    if rest:
        raise ValueError(f"{len(rows)} prompts are not divisible by {parts} parts")
    by_rows = np.argsort(-np.asarray(rows), kind="stable")
    order: list[int] = by_rows.reshape(parts, size).T.reshape(-1).tolist()
    return order
