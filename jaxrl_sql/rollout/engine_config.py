"""The sizes of an engine, and the shapes of the programs that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    time (one block at least) in each of the `ways` that the mesh splits a batch. The prefix cache has room for
    `prefix_cache_tokens`. `compute_dtype` is that of activations and of the KV cache (None: the parameters' own).

    A call has room for all that it may hold at once, and no more than `budget` (None: no bound): the rest waits, or is
    computed again (`rollout.scheduler`). The pool of completions begins with a quarter of its room and
    grows to a half and to all of it, each a program of its own. `max_prompt_bucket`, the tokens of the longest prompt
    to come, makes one program for all calls: their pools are for prompts of that length, and whole from the start (0:
    as needed). `attention` is the implementation for decode steps, as in `rollout.attention`. `rounds_groups`:
    calls differ in the samples per prompt, and share the decode programs of the next power of two. `end_tokens` end a
    completion in addition to those of the tokenizer.
    """

    max_num_seqs: int = 64
    purpose: rng.Purpose = rng.Purpose.ROLLOUT
    block_size: int = 64
    completion_block_size: int = 32
    chunk_steps: int = 16
    prefill_tokens: int = 1024
    prefix_cache_tokens: int = 32_768
    compute_dtype: DTypeLike | None = None
    max_prompt_bucket: int = 0
    budget: KVBudget | None = None
    ways: int = 1
    attention: str = "xla"
    rounds_groups: bool = False
    end_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        for name in ("max_num_seqs", "block_size", "completion_block_size", "chunk_steps", "ways"):
            if getattr(self, name) < 1:
                raise InputError(f"engine: {name} must be at least 1, not {getattr(self, name)}")
        object.__setattr__(self, "prefill_tokens", max(self.prefill_tokens, self.block_size))

    def group_size(self, samples: int) -> int:
        """Return how many completions read one copy of a prompt, for prompts of up to `samples` samples."""
        if self.rounds_groups:
            samples = power_of_two(samples)
        return min(samples, self.max_num_seqs, MAX_GROUP)

    def sizes(self, groups: int, samples: int, prompt: int, completion: int) -> EngineSizes:
        """Return the sizes for a number of groups, where `prompt` and `completion` are the most tokens of each.

        `samples` are the most that a prompt has.
        """
        n, size = self.max_num_seqs, self.group_size(samples)
        # Prompts that slots read, and those that are prefilled ahead of them.
        prompts = min(2 * n, groups, 1 + -(-3 * n // size))
        columns = -(-bucket(prompt) // self.block_size)
        completion_columns = -(-bucket(completion, self.completion_block_size) // self.completion_block_size)
        need = (prompts * columns, n * completion_columns, self.prefix_cache_tokens // self.block_size)
        pools = KVBudget(*(pool_size(blocks, self.ways) for blocks in need))
        if self.budget is not None:
            pools = KVBudget(*map(min, pools, self.budget))
        return EngineSizes(size, 2 * n, columns, completion_columns, *pools)

    def tiers(self, sizes: EngineSizes) -> list[tuple[int, int]]:
        """Return the (blocks, columns) that the pool of completions and their table grow through, the last for all.

        Some completion soon has the maximum length while most are shorter, so the second tier has all columns.
        """
        full, columns = sizes.completion_blocks, sizes.completion_columns
        quarter, half = (pool_size(-(-full // share), self.ways) for share in (4, 2))
        smaller = [] if self.max_prompt_bucket else [(quarter, -(-columns // 4)), (half, columns)]
        return [*(tier for tier in smaller if tier[0] < full), (full, columns)]

    @property
    def prefill_chunk(self) -> int:
        """Return how many tokens of a prompt or an observation are run at a time, at most."""
        if not self.max_prompt_bucket:
            return self.prefill_tokens
        return min(bucket(self.max_prompt_bucket, self.block_size), self.prefill_tokens)

    def fits_prefill(self, rows: int, longest: int, smallest: int = 32) -> bool:
        """Return whether `rows` rows of up to `longest` tokens are run at a time; padding counts as tokens."""
        if self.max_prompt_bucket:
            return rows <= self.prefill_shape(1, 1)[0]
        x, width = self.prefill_shape(rows, longest, smallest)
        return x * width <= self.prefill_tokens * self.ways

    def prefill_shape(self, rows: int, tokens: int, smallest: int = 32) -> tuple[int, int]:
        """Return (rows, tokens per row) of the smallest program that runs these rows."""
        if self.max_prompt_bucket:
            return self.ways * max(self.prefill_tokens // self.prefill_chunk, 1), self.prefill_chunk
        return power_of_two(rows), min(bucket(tokens, smallest), self.prefill_chunk)


def power_of_two(count: int) -> int:
    """Round a count of at least 1 up to a power of two."""
    return 1 << (count - 1).bit_length()


def pool_size(blocks: int, ways: int) -> int:
    """Return the size of a pool with room for `blocks` blocks: one of few sizes, all multiples of `ways`."""
    return bucket(blocks, 8 * ways)


def fit_budget(need: EngineSizes, prompt_block: int, completion_block: int, most: int, ways: int) -> KVBudget:
    """Return the largest pools of `most` bytes, for blocks of `prompt_block` and `completion_block` bytes.

    These are the pools of `need`, if they fit. Otherwise the prefix cache shrinks first, then prompts and completions
    alike. Raises InputError if one longest prompt and one longest completion do not fit.
    """
    prompts, completions = need.prompt_blocks * prompt_block, need.completion_blocks * completion_block
    over = prompts + completions + need.prefix_blocks * prompt_block - most
    if over <= 0:
        return KVBudget(need.prompt_blocks, need.completion_blocks, need.prefix_blocks)
    unit = 8 * ways
    prefix = max((need.prefix_blocks - -(-over // prompt_block)) // unit * unit, 0)
    share = min((most - prefix * prompt_block) / (prompts + completions), 1.0)
    pools = (need.prompt_blocks, need.completion_blocks)
    prompt, completion = (n if share == 1.0 else int(n * share) // unit * unit for n in pools)
    budget = KVBudget(prompt, completion, prefix)
    if budget.prompt_blocks < need.prompt_columns or budget.completion_blocks < need.completion_columns:
        least = need.prompt_columns * prompt_block + need.completion_columns * completion_block
        raise InputError(
            f"rollout.memory: {most:,} bytes of KV cache cannot hold the longest prompt and completion, which "
            f"need {least:,} bytes; each pool gets its share of the total need"
        )
    return budget
