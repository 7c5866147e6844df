"""The sizes of an engine, and the shapes of the programs that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxrl_sql.batch import bucket
from jaxrl_sql.ops import rng
from jaxrl_sql.types import InputError


@dataclass(frozen=True)
class EngineConfig:
    """What an engine is made for.

    `max_num_seqs` completions are decoded at a time, each in a slot. KV blocks hold `block_size` tokens of a prompt, or
    `completion_block_size` of a completion; a decode chunk is `chunk_steps` steps; `prefill_tokens` are prefilled at a
    time (one block at least); the prefix cache has room for `prefix_cache_tokens`. `compute_dtype` is that of
    activations and of the KV cache (None: the parameters' own).

    KV pools begin small and grow with what is asked, and each new size compiles new programs. `max_prompt_bucket`, the
    tokens of the longest prompt to come, makes the pools for all that may be asked at once, and all prefills of one
    size (0: as needed).
    """

    max_num_seqs: int = 64
    purpose: rng.Purpose = rng.Purpose.ROLLOUT
    block_size: int = 64
    completion_block_size: int = 32
    chunk_steps: int = 16
    prefill_tokens: int = 1024
    prefix_cache_tokens: int = 32_768
    compute_dtype: Any = None
    max_prompt_bucket: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes of nothing."""
        for name in ("max_num_seqs", "block_size", "completion_block_size", "chunk_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"engine: {name} must be at least 1, not {getattr(self, name)}")
        object.__setattr__(self, "prefill_tokens", max(self.prefill_tokens, self.block_size))

    @property
    def prefill_chunk(self) -> int:
        """Return how many tokens of a prompt or an observation are run at a time, at most."""
        if not self.max_prompt_bucket:
            return self.prefill_tokens
        return min(bucket(self.max_prompt_bucket, self.block_size), self.prefill_tokens)

    def fits_prefill(self, rows: int, tokens: int) -> bool:
        """Return whether so many rows, of so many tokens in all, are run at a time."""
        return rows <= self.prefill_shape(1, 1)[0] if self.max_prompt_bucket else tokens <= self.prefill_tokens

    def prefill_shape(self, rows: int, tokens: int, smallest: int = 32) -> tuple[int, int]:
        """Return (rows, tokens a row) of the smallest program that runs so many."""
        if self.max_prompt_bucket:
            return max(self.prefill_tokens // self.prefill_chunk, 1), self.prefill_chunk
        return 1 << (rows - 1).bit_length(), min(bucket(tokens, smallest), self.prefill_chunk)
