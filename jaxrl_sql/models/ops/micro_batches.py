"""In what micro-batches an update takes its batch: numbers alone, for the host, the programs and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_sql.types import InputError


class MicroBatches(NamedTuple):
    """How an update takes its batch: in `parts` equal ones or, with `tokens` above 0, so many at a time on a shard.

    `ways` is into how many shards a mesh cuts the batch's prompts.
    """

    parts: int = 1
    tokens: int = 0
    ways: int = 1

    def at_once(self, prompts: int, prompt: int, rows: int, answer: int) -> tuple[int, int]:
        """Return how many prompts of a shard, and rows of answers of each, run at a time within the budget.

        prompts: there are, of `prompt` tokens and `rows` rows of `answer` tokens each. As many prompts as divide them;
        where one is too much with all its rows, one with as many rows as fit, about equally many each time. Raises
        InputError where no row fits.
        """
        if most := self.tokens // (prompt + rows * answer):
            return max(k for k in range(1, prompts + 1) if prompts % k == 0 and k <= most), rows
        fit = (self.tokens - prompt) // answer
        if fit < 1:
            raise InputError(
                f"grpo.max_tokens_per_device={self.tokens}: a prompt of {prompt} tokens and one answer of {answer}, "
                f"with padding, are {prompt + answer}: allow as many, or shorten data.max_prompt_tokens or answers"
            )
        times = -(-rows // fit)
        return 1, -(-rows // times)

    def parts_of(self, prompts: int, prompt: int, rows: int, answer: int) -> int:
        """Return into how many equal parts a batch of `prompts` is cut that runs at least `rows` rows for each."""
        if not self.tokens:
            return self.parts
        here = prompts // self.ways
        return here // self.at_once(here, prompt, rows, answer)[0]


def row_counts(most: int) -> tuple[int, ...]:
    """Return how many rows a prompt of a part may run, in order, of a packed batch of `most`: four numbers at most."""
    return tuple(sorted({-(-most * eighths // 8) for eighths in (4, 5, 6, 8)}))


def order_for_parts(rows: Sequence[int], parts: int) -> list[int]:
    """Return the order of a batch's prompts, which need so many packed rows, in which its parts are most alike.

    Prompt j of the batch is in part j modulo `parts` (`algo.parts`), so those that need the most rows come to the first
    part together. Raises ValueError when the parts do not divide the prompts.
    """
    size, rest = divmod(len(rows), parts)
    if rest:
        raise ValueError(f"{len(rows)} prompts are not divided by {parts} parts")
    by_rows = np.argsort(-np.asarray(rows), kind="stable")
    order: list[int] = by_rows.reshape(parts, size).T.reshape(-1).tolist()
    return order
