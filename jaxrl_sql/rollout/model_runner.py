"""The model on the device: its parameters, its pools of KV blocks, and the programs that read and write them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import PyTree, bucket
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.attention.paged_kernel import kernel_for
from jaxrl_sql.models.paged import BlockMap, KVPool, PagedModel
from jaxrl_sql.models.stacked_layers import split_layers
from jaxrl_sql.rollout import decode
from jaxrl_sql.rollout.decode import (
    ChunkConfig,
    DecodeSlots,
    DecodeState,
    ObservationBatch,
    PrefillChunk,
    PromptSlots,
    RequestRing,
    StepLog,
    StopCriteria,
)
from jaxrl_sql.rollout.engine_config import EngineConfig, EngineSizes, pool_size
from jaxrl_sql.rollout.kv_blocks import PrefixCache


class ModelRunner:
    """A model with its KV cache, kept from one call of the engine to the next.

    `params` are those of the next call. Programs take the weights of the call that runs them, which may be older; the
    pools they write are donated to them, and held here alone.
    """

    def __init__(self, model: ModelConfig, params: PyTree, config: EngineConfig) -> None:
        sizes = (config.block_size, config.completion_block_size)
        kernel = kernel_for(config.attention, model, sizes, jax.default_backend(), config.ways)
        self.model = PagedModel(model, config.compute_dtype, kernel)
        self.params = params
        self.config = config
        self._split: tuple[PyTree, PyTree] | None = None
        self.release()

    def weights(self) -> PyTree:
        """Return the parameters as programs take them, layer by layer; they are split once for all calls."""
        if self._split is None or self._split[0] is not self.params:
            self._split = None
            self._split = (self.params, split_layers(self.params))
        return self._split[1]

    def release(self) -> None:
        """Drop all KV blocks, and the weights by layer; the next call makes new ones."""
        self._split = None
        size = self.config.block_size
        self.prefix_cache = PrefixCache(size, self.config.prefix_cache_tokens // size)
        self.prompt_pool: KVPool | None = None
        self.prefix_pool: KVPool | None = None
        self.completion_pool: KVPool | None = None
        self.max_prefix_blocks = 0

    # --- the sizes of the pools

    def at_least_open(self, sizes: EngineSizes) -> EngineSizes:
        """Return the sizes for a call: where one program is to serve all, no fewer blocks of prompts than there are."""
        have = _num_blocks(self.prompt_pool) if self.config.max_prompt_bucket else 0
        return sizes._replace(prompt_blocks=max(sizes.prompt_blocks, have))

    def open_pools(self, sizes: EngineSizes, completion_blocks: int) -> None:
        """Make the pools of a call, those of prompts and of completions, where the last call's are of another size."""
        self.prefix_cache.capacity = min(self.config.prefix_cache_tokens // self.config.block_size, sizes.prefix_blocks)
        self.max_prefix_blocks = sizes.prefix_blocks
        if _num_blocks(self.prompt_pool) != sizes.prompt_blocks:
            self.prompt_pool = None
            self.prompt_pool = self._new_pool(sizes.prompt_blocks, self.config.block_size)
            self.prefix_cache.open(sizes.prompt_blocks)
        if _num_blocks(self.completion_pool) != completion_blocks:
            self.completion_pool = None
            self.completion_pool = self._new_pool(completion_blocks, self.config.completion_block_size)

    def resize_completions(self, blocks: int) -> None:
        """Give the pool of completions so many blocks, a layer at a time: no more than one is there twice."""
        if _num_blocks(self.completion_pool) == blocks:
            return
        pool, self.completion_pool = self.completion_pool, None
        assert pool is not None, "open_pools comes first"
        keys, values = list(pool.k), list(pool.v)
        del pool
        for half in (keys, values):
            for i in range(len(half)):
                half[i] = decode.grow_keys(half[i], blocks)
        self.completion_pool = KVPool(tuple(keys), tuple(values))

    def _new_pool(self, blocks: int, block_size: int) -> KVPool:
        return decode.new_pool(self.model.config, blocks, block_size, self.cache_dtype)

    @property
    def cache_dtype(self) -> np.dtype:
        """Return the dtype of keys and values, and of the states that are kept beside them."""
        if self.prompt_pool is not None:
            return self.prompt_pool.k[0].dtype
        return jnp.dtype(self.model.compute_dtype or jax.tree.leaves(self.params)[0].dtype)

    # --- the prefix cache

    def load_prefixes(self, copies: Sequence[tuple[int, int]], at_least: int) -> None:
        """Copy cached blocks to those of prompts: (cached block, block) each, `at_least` in one program."""
        if copies and self.prefix_pool is not None and self.prompt_pool is not None:
            cached, blocks = _columns(copies, at_least, self.prompt_pool.num_blocks)
            self.prompt_pool = decode.copy_blocks(self.prefix_pool, cached, self.prompt_pool, blocks)

    def save_prefixes(self, copies: Sequence[tuple[int, int]], at_least: int) -> None:
        """Copy blocks of prompts to where they are cached: (block, cached block) each, `at_least` in one program."""
        # Where room is small a cached block may be written twice in a batch: the last one is what is known.
        copies = [(block, place) for place, block in {place: block for block, place in copies}.items()]
        if copies and self.prompt_pool is not None:
            self._reserve_prefixes(1 + max(place for _, place in copies))
            assert self.prefix_pool is not None
            blocks, places = _columns(copies, at_least, self.prefix_pool.num_blocks)
            self.prefix_pool = decode.copy_blocks(self.prompt_pool, blocks, self.prefix_pool, places)

    def _reserve_prefixes(self, blocks: int) -> None:
        """Have room for so many cached blocks; nothing computes with them where they lie, so this pool grows."""
        most = self.max_prefix_blocks
        wanted = most if self.config.max_prompt_bucket else min(pool_size(blocks, self.config.ways), most)
        if self.prefix_pool is None:
            self.prefix_pool = self._new_pool(wanted, self.config.block_size)
        elif wanted > self.prefix_pool.num_blocks:
            halves = (self.prefix_pool.k, self.prefix_pool.v)
            self.prefix_pool = KVPool(*(tuple(decode.grow_keys(keys, wanted) for keys in half) for half in halves))

    # --- programs

    def prefill(self, weights: PyTree, hidden: jax.Array, chunk: PrefillChunk, has_past: bool) -> jax.Array:
        """Prefill a chunk of prompts -> the prompt slots' states (`decode.prefill_chunk`)."""
        self.prompt_pool, hidden = decode.prefill_chunk(weights, self.model, self.prompt_pool, hidden, chunk, has_past)
        return hidden

    def decode(
        self,
        weights: PyTree,
        config: ChunkConfig,
        prompts: PromptSlots,
        slots: DecodeSlots,
        blocks: BlockMap,
        ring: RequestRing,
        stops: StopCriteria,
    ) -> tuple[DecodeSlots, StepLog]:
        """Launch a chunk of decode steps -> the slots after it, and its log (`decode.decode_chunk`)."""
        (self.completion_pool, slots), log = decode.decode_chunk(
            weights, config, self.prompt_pool, prompts, self._state(slots), blocks, ring, stops
        )
        return slots, log

    def append_observation(
        self,
        weights: PyTree,
        prompts: PromptSlots,
        slots: DecodeSlots,
        table: np.ndarray,
        observation: ObservationBatch,
    ) -> DecodeSlots:
        """Append observations to paused slots -> the slots after it (`decode.append_observation`)."""
        self.completion_pool, slots = decode.append_observation(
            weights, self.model, self.prompt_pool, prompts, self._state(slots), table, observation
        )
        return slots

    def _state(self, slots: DecodeSlots) -> DecodeState:
        assert self.completion_pool is not None, "open_pools comes first"
        return DecodeState(self.completion_pool, slots)


def _num_blocks(pool: KVPool | None) -> int:
    return 0 if pool is None else pool.num_blocks


def _columns(pairs: Sequence[tuple[int, int]], at_least: int, none: int) -> np.ndarray:
    """Return pairs as two rows of one of few widths; `none` is the second of those that fill it."""
    columns = np.full((2, bucket(max(len(pairs), at_least), 8)), none, np.int32)
    columns[:, : len(pairs)] = np.array(pairs).T
    return columns
