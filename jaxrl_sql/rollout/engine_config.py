"""The sizes of an engine, and the shapes of the programs that follow from them."""

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


class EngineSizes(NamedTuple):
    """The most that an engine holds for a call, when all prompts and completions are of the longest.

    group_size: completions that read one copy of a prompt; prompt_slots E; prompt_columns and completion_columns: KV
    blocks of a longest prompt and of a longest completion; and the blocks of the three pools.
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

    `max_num_seqs` completions are decoded at a time, each in a slot. KV blocks hold `block_size` tokens of a prompt, or
    `completion_block_size` of a completion. A decode chunk is `chunk_steps` steps. `prefill_tokens` are prefilled at a
    time (one block at least) in each of the `num_shards` that the mesh splits a batch. The prefix cache has room for
    `prefix_cache_tokens`. `compute_dtype` is that of activations and of the KV cache (None: the parameters' own).

    A call has room for all that it may hold at once, and no more than `budget` (None: no bound): the rest waits, or is
    computed again (`rollout.scheduler`). `longest_prompt` is the most tokens of a prompt to come (0: unknown). Calls up
    to it have `prompt_blocks` blocks for prompts (0: as needed), and share programs. The pool of completions begins
    with a quarter of its room and grows to a half and to all of it, each a program of its own. With `pads_to_max` it is
    whole from the start, and prompts have one shape: the fewest programs. `attention` is the implementation for decode
    steps, as in `rollout.attention`. `rounds_groups`: calls differ in the samples per prompt, and share the decode
    programs of the next power of two. `end_tokens` end a completion in addition to those of the tokenizer.
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
        """Return how many completions read one copy of a prompt, for prompts of up to `samples` samples."""
        if self.rounds_groups:
            samples = power_of_two(samples)
        return min(samples, self.max_num_seqs, MAX_GROUP)

    def sizes(self, lengths: Sequence[int], samples: int, completion: int) -> EngineSizes:
        """Return the sizes for groups of prompts of these `lengths`, and completions of up to `completion` tokens.

        `samples` are the most that a prompt has.
        """
        n, size, longest = self.max_num_seqs, self.group_size(samples), max(lengths, default=1)
        columns, prompts = self._columns(max(longest, self.longest_prompt)), self._active_prompts(size)
        if self.prompt_blocks and longest <= self.longest_prompt:
            blocks = self.prompt_blocks
        elif self.pads_to_max:
            blocks = columns * min(len(lengths), prompts)
        else:
            blocks = sum(sorted((-(-length // self.block_size) for length in lengths), reverse=True)[:prompts])
        completion_columns = -(-bucket(completion, self.completion_block_size) // self.completion_block_size)
        need = (blocks, n * completion_columns, self.prefix_cache_tokens // self.block_size)
        pools = KVBudget(*(pool_size(blocks, self.num_shards) for blocks in need))
        if self.budget is not None:
            pools = KVBudget(*map(min, pools, self.budget))
        return EngineSizes(size, 2 * n, columns, completion_columns, *pools)

    def for_calls(self, lengths: Sequence[int], groups: int, samples: int) -> EngineConfig:
        """Return the configuration for calls of up to `groups` groups of prompts that have these lengths.

        The blocks are enough for a random draw of prompts in all but one of about a thousand calls, in which a prompt
        waits; with `pads_to_max` for prompts that are all of the longest.
        """
        longest, prompts = max(lengths, default=1), min(groups, self._active_prompts(self.group_size(samples)))
        blocks = np.array([-(-length // self.block_size) for length in lengths] or [1])
        need = prompts * blocks.mean() + 3 * math.sqrt(prompts) * blocks.std()
        most = prompts * self._columns(longest) if self.pads_to_max else min(need, prompts * blocks.max())
        return replace(self, longest_prompt=longest, prompt_blocks=max(math.ceil(most), self._columns(longest)))

    def _active_prompts(self, group_size: int) -> int:
        """Return the most prompts that slots read, or that are prefilled ahead of them."""
        return min(2 * self.max_num_seqs, 1 + -(-3 * self.max_num_seqs // group_size))

    def _columns(self, tokens: int) -> int:
        """Return the blocks of a prompt's row in a table."""
        return -(-bucket(tokens) // self.block_size)

    def completion_pool_sizes(self, sizes: EngineSizes) -> list[tuple[int, int]]:
        """Return the (blocks, columns) that the pool of completions and their table grow through, the last for all.

        Some completion soon has the maximum length while most are shorter, so the second size has all columns.
        """
        full, columns = sizes.completion_blocks, sizes.completion_columns
        quarter, half = (pool_size(-(-full // share), self.num_shards) for share in (4, 2))
        smaller = [] if self.pads_to_max else [(quarter, -(-columns // 4)), (half, columns)]
        return [*(size for size in smaller if size[0] < full), (full, columns)]

    def prefix_pool_sizes(self, sizes: EngineSizes) -> list[int]:
        """Return the sizes that the pool of cached blocks grows through: a quarter, then all of it."""
        quarter = pool_size(-(-sizes.prefix_blocks // 4), self.num_shards)
        return sorted({min(quarter, sizes.prefix_blocks), sizes.prefix_blocks})

    @property
    def prefill_chunk(self) -> int:
        """Return how many tokens of a prompt or an observation are run at a time, at most."""
        if not self.pads_to_max:
            return self.prefill_tokens
        return min(bucket(self.longest_prompt, self.block_size), self.prefill_tokens)

    def fits_prefill(self, rows: int, longest: int, smallest: int = 32) -> bool:
        """Return whether `rows` rows of up to `longest` tokens are run at a time; padding counts as tokens."""
        row_counts, width = self.prefill_shapes(rows, longest, smallest)
        if self.pads_to_max:
            return len(row_counts) == 1
        return sum(row_counts) * width <= self.prefill_tokens * self.num_shards

    def prefill_shapes(self, rows: int, tokens: int, smallest: int = 32) -> tuple[list[int], int]:
        """Return the rows of the programs that run these rows one after the other, and the tokens per row.

        There are few shapes: 1, 4, 16, … rows, of a power of two of tokens. At most a quarter of the rows is padding.
        """
        if self.pads_to_max:
            most = self.num_shards * max(self.prefill_tokens // self.prefill_chunk, 1)
            return [most] * -(-rows // most), self.prefill_chunk
        counts = list[int]()
        while rows > 0:
            count = 1
            while rows >= 3 * count:
                count *= 4
            counts.append(count)
            rows -= count
        width = smallest
        while width < min(tokens, self.prefill_chunk):
            width *= 2
        return counts, min(width, self.prefill_chunk)


def power_of_two(count: int) -> int:
    """Round a count of at least 1 up to a power of two."""
    return 1 << (count - 1).bit_length()


def pool_size(blocks: int, num_shards: int) -> int:
    """Return the size of a pool with room for `blocks` blocks: one of few sizes, all multiples of `num_shards`."""
    return bucket(blocks, 8 * num_shards)


def fit_budget(
    need: EngineSizes, prompt_block: int, completion_block: int, max_bytes: int, num_shards: int
) -> KVBudget:
    """Return the largest pools of `max_bytes` bytes, for blocks of `prompt_block` and `completion_block` bytes.

    These are the pools of `need`, if they fit. Otherwise the prefix cache shrinks first, then prompts and completions
    alike. Raises InputError if one longest prompt and one longest completion do not fit.
    """
    prompts, completions = need.prompt_blocks * prompt_block, need.completion_blocks * completion_block
    over = prompts + completions + need.prefix_blocks * prompt_block - max_bytes
    if over <= 0:
        return KVBudget(need.prompt_blocks, need.completion_blocks, need.prefix_blocks)
    unit = 8 * num_shards
    prefix = max((need.prefix_blocks - -(-over // prompt_block)) // unit * unit, 0)
    share = min((max_bytes - prefix * prompt_block) / (prompts + completions), 1.0)
    pools = (need.prompt_blocks, need.completion_blocks)
    prompt, completion = (n if share == 1.0 else int(n * share) // unit * unit for n in pools)
    budget = KVBudget(prompt, completion, prefix)
    if budget.prompt_blocks < need.prompt_columns or budget.completion_blocks < need.completion_columns:
        least = need.prompt_columns * prompt_block + need.completion_columns * completion_block
        raise InputError(
            f"rollout.memory: {max_bytes:,} bytes of KV cache are too few for the longest prompt and completion, "
            f"which need {least:,} bytes; the pools share the memory in proportion to their needs"
        )
    return budget
