"""The sizes of an engine, and the shapes of the programs that follow from them.

The KV cache consists of blocks of a fixed number of tokens, in three pools: prompts, completions, and cached prefixes
of prompts. A decode slot decodes one completion at a time. A prompt slot holds one prompt whose blocks are filled. XLA
compiles a program per shape, so sizes are rounded up to a few values (`batch.bucket`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jax.typing import DTypeLike

from jaxrl_sql.batch import bucket
from jaxrl_sql.models.ops import rng
from jaxrl_sql.types import InputError

MAX_GROUP = 64
"""The most completions that share a prompt slot. Further samples use another slot, with its own copy of the prompt."""


class EngineSizes(NamedTuple):
    """The sizes of an engine's arrays for one call of `Engine.generate`.

    group_size: most completions that share a prompt slot.
    prompt_slots: number of prompt slots, E.
    prompt_columns: columns of the prompts' block table, which are the KV blocks of the longest prompt.
    completion_columns: columns of the completions' block table, which are the KV blocks of the longest completion.
    prompt_blocks, completion_blocks, prefix_blocks: KV blocks of the three pools.
    """

    group_size: int
    prompt_slots: int
    prompt_columns: int
    completion_columns: int
    prompt_blocks: int
    completion_blocks: int
    prefix_blocks: int


class KVBudget(NamedTuple):
    """The most KV blocks that an engine may hold: of prompts, of completions, and of cached prefixes."""

    prompt_blocks: int
    completion_blocks: int
    prefix_blocks: int


@dataclass(frozen=True)
class EngineConfig:
    """The sizes and options of an engine.

    max_num_seqs: number of decode slots, as in vLLM.
    purpose: separates the random numbers of training rollouts from those of evaluations.
    block_size, completion_block_size: tokens per KV block of a prompt, and of a completion.
    chunk_steps: decode steps of a chunk, which one program runs without the host.
    prefill_tokens: tokens that a program prefills, per shard of the batch; raised to one block if it is lower.
    prefix_cache_tokens: room of the prefix cache.
    compute_dtype: dtype of activations and of the KV cache; None: the dtype of the parameters.
    longest_prompt: most tokens of the prompts of later calls; 0: unknown.
    prompt_blocks: size of the prompts' pool in calls whose prompts have at most `longest_prompt` tokens. The calls then
        share programs. 0: as many as a call needs.
    pads_to_max: compile the fewest programs. Prompts are padded to one shape, and the completions' pool has its full
        size from the start. Otherwise the pool grows from a quarter to a half to all of it, with a program for each.
    budget: most KV blocks of a call; None: as many as the call may need. If the budget is too small, prompts wait, or
        completions lose their blocks and are computed again (`rollout.scheduler`).
    num_shards: shards into which the mesh splits a batch.
    attention: implementation for decode steps (setting `rollout.attention`).
    rounds_groups: round the samples per prompt up to a power of two, so that calls with different numbers share decode
        programs.
    end_tokens: ids that end a completion, in addition to those of the tokenizer.
    """

    max_num_seqs: int = 64
    purpose: rng.Purpose = rng.Purpose.ROLLOUT
    block_size: int = 64
    completion_block_size: int = 32
    chunk_steps: int = 16
    prefill_tokens: int = 1024
    prefix_cache_tokens: int = 32_768
    compute_dtype: DTypeLike | None = None
    longest_prompt: int = 0
    prompt_blocks: int = 0
    pads_to_max: bool = False
    budget: KVBudget | None = None
    num_shards: int = 1
    attention: str = "xla"
    rounds_groups: bool = False
    end_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        for name in ("max_num_seqs", "block_size", "completion_block_size", "chunk_steps", "num_shards"):
            if getattr(self, name) < 1:
                raise InputError(f"engine: {name} must be at least 1, not {getattr(self, name)}")
        object.__setattr__(self, "prefill_tokens", max(self.prefill_tokens, self.block_size))

    def group_size(self, samples: int) -> int:
        """Return how many completions share a prompt slot, if a prompt has up to `samples` samples."""
        if self.rounds_groups:
            samples = power_of_two(samples)
        return min(samples, self.max_num_seqs, MAX_GROUP)

    def sizes(self, lengths: Sequence[int], samples: int, completion: int) -> EngineSizes:
        """Return the sizes for a call.

        lengths: tokens of the prompt of each group; samples: most samples of a prompt; completion: most tokens of a
        completion.
        """
        group_size, longest = self.group_size(samples), max(lengths, default=1)
        prompt_columns = self._columns(max(longest, self.longest_prompt))
        active_prompts = self._active_prompts(group_size)
        if self.prompt_blocks and longest <= self.longest_prompt:
            prompt_blocks = self.prompt_blocks
        elif self.pads_to_max:
            prompt_blocks = prompt_columns * min(len(lengths), active_prompts)
        else:  # enough for the longest prompts together
            blocks_by_prompt = sorted((-(-length // self.block_size) for length in lengths), reverse=True)
            prompt_blocks = sum(blocks_by_prompt[:active_prompts])
        completion_columns = -(-bucket(completion, self.completion_block_size) // self.completion_block_size)
        needed_blocks = (
            prompt_blocks,
            self.max_num_seqs * completion_columns,
            self.prefix_cache_tokens // self.block_size,
        )
        pools = KVBudget(*(pool_size(blocks, self.num_shards) for blocks in needed_blocks))
        if self.budget is not None:
            pools = KVBudget(*map(min, pools, self.budget))
        return EngineSizes(group_size, 2 * self.max_num_seqs, prompt_columns, completion_columns, *pools)

    def for_calls(self, lengths: Sequence[int], groups: int, samples: int) -> EngineConfig:
        """Return the configuration for calls with random prompts of a data set.

        lengths: tokens of all prompts of the set; groups: most groups of a call; samples: most samples of a prompt.
        In about one of a thousand calls the prompts need more blocks than the pool has, and some of them wait. With
        `pads_to_max` the pool has room for prompts that all have the maximum length.
        """
        longest, prompts = max(lengths, default=1), min(groups, self._active_prompts(self.group_size(samples)))
        blocks = np.array([-(-length // self.block_size) for length in lengths] or [1])
        # The sum over random prompts is close to normal: 3 standard deviations above its mean.
        likely_blocks = prompts * blocks.mean() + 3 * math.sqrt(prompts) * blocks.std()
        prompt_blocks = (
            prompts * self._columns(longest) if self.pads_to_max else min(likely_blocks, prompts * blocks.max())
        )
        prompt_blocks = max(math.ceil(prompt_blocks), self._columns(longest))
        return replace(self, longest_prompt=longest, prompt_blocks=prompt_blocks)

    def _active_prompts(self, group_size: int) -> int:
        """Return the most prompts whose blocks a call needs at once.

        These are the prompts of the completions in the decode slots, and of up to twice as many completions that wait
        for a slot (`scheduler._admit`). There are at most as many as prompt slots.
        """
        return min(2 * self.max_num_seqs, 1 + -(-3 * self.max_num_seqs // group_size))

    def _columns(self, tokens: int) -> int:
        """Return the columns of the prompts' block table, for prompts of up to `tokens` tokens."""
        return -(-bucket(tokens) // self.block_size)

    def completion_pool_sizes(self, sizes: EngineSizes) -> list[tuple[int, int]]:
        """Return the sizes (blocks of the pool, columns of the block table) that completions grow through, in order.

        Some completion soon has the maximum length while most are shorter, so the second size has all columns.
        """
        full, columns = sizes.completion_blocks, sizes.completion_columns
        quarter, half = (pool_size(-(-full // divisor), self.num_shards) for divisor in (4, 2))
        smaller = [] if self.pads_to_max else [(quarter, -(-columns // 4)), (half, columns)]
        return [*(size for size in smaller if size[0] < full), (full, columns)]

    def prefix_pool_sizes(self, sizes: EngineSizes) -> list[int]:
        """Return the sizes that the pool of cached blocks grows through: a quarter, then all of it."""
        quarter = pool_size(-(-sizes.prefix_blocks // 4), self.num_shards)
        return sorted({min(quarter, sizes.prefix_blocks), sizes.prefix_blocks})

    @property
    def prefill_chunk(self) -> int:
        """Return the most tokens of a prompt or of an environment's observation that one program computes."""
        if not self.pads_to_max:
            return self.prefill_tokens
        return min(bucket(self.longest_prompt, self.block_size), self.prefill_tokens)

    def fits_prefill(self, rows: int, longest: int, smallest: int = 32) -> bool:
        """Return whether `rows` rows of up to `longest` tokens fit into one prefill; padding counts as tokens."""
        row_counts, tokens_per_row = self.prefill_shapes(rows, longest, smallest)
        if self.pads_to_max:
            return len(row_counts) == 1
        return sum(row_counts) * tokens_per_row <= self.prefill_tokens * self.num_shards

    def prefill_shapes(self, rows: int, tokens: int, smallest: int = 32) -> tuple[list[int], int]:
        """Return the number of rows of each program that prefills these rows, and the tokens per row.

        tokens: tokens of the longest row; smallest: least tokens per row.
        There are few shapes: 1, 4, 16, … rows, of a power of two of tokens. At most a quarter of the rows is padding.
        """
        if self.pads_to_max:
            max_rows = self.num_shards * max(self.prefill_tokens // self.prefill_chunk, 1)
            return [max_rows] * -(-rows // max_rows), self.prefill_chunk
        counts = list[int]()
        while rows > 0:
            count = 1
            while rows >= 3 * count:
                count *= 4
            counts.append(count)
            rows -= count
        tokens_per_row = smallest
        while tokens_per_row < min(tokens, self.prefill_chunk):
            tokens_per_row *= 2
        return counts, min(tokens_per_row, self.prefill_chunk)


def power_of_two(count: int) -> int:
    """Round a count of at least 1 up to a power of two."""
    return 1 << (count - 1).bit_length()


def pool_size(blocks: int, num_shards: int) -> int:
    """Return the size of a pool with room for `blocks` blocks: one of few sizes, all multiples of `num_shards`."""
    return bucket(blocks, 8 * num_shards)


def fit_budget(
    need: EngineSizes, prompt_block: int, completion_block: int, max_bytes: int, num_shards: int
) -> KVBudget:
    """Return the largest pools of at most `max_bytes` bytes in total.

    prompt_block, completion_block: bytes of a KV block of a prompt or cached prefix, and of a completion.
    The pools are those of `need`, if they fit. Otherwise the prefix cache shrinks first, and then prompts and
    completions in proportion. Raises InputError if the longest prompt and the longest completion do not fit.
    """
    prompt_bytes, completion_bytes = need.prompt_blocks * prompt_block, need.completion_blocks * completion_block
    excess_bytes = prompt_bytes + completion_bytes + need.prefix_blocks * prompt_block - max_bytes
    if excess_bytes <= 0:
        return KVBudget(need.prompt_blocks, need.completion_blocks, need.prefix_blocks)
    multiple = 8 * num_shards  # pools are split evenly among shards (`pool_size`)
    prefix_blocks = max((need.prefix_blocks - -(-excess_bytes // prompt_block)) // multiple * multiple, 0)
    share = min((max_bytes - prefix_blocks * prompt_block) / (prompt_bytes + completion_bytes), 1.0)
    pools = (need.prompt_blocks, need.completion_blocks)
    prompt, completion = (n if share == 1.0 else int(n * share) // multiple * multiple for n in pools)
    budget = KVBudget(prompt, completion, prefix_blocks)
    if budget.prompt_blocks < need.prompt_columns or budget.completion_blocks < need.completion_columns:
        least_bytes = need.prompt_columns * prompt_block + need.completion_columns * completion_block
        raise InputError(
            f"rollout.memory: {max_bytes:,} bytes of KV cache are too few for the longest prompt and completion, "
            f"which need {least_bytes:,} bytes; the pools share the memory in proportion to their needs"
        )
    return budget
