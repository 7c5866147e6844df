"""The engine: prompts in, finished samples out, in the order they finish.

A prompt is prefilled once and read by all of its samples; rows decode side by side, and a row whose answer has ended
goes on with the next one in the following step. The host works one chunk of steps behind: it asks for the next chunk
before it reads the last one, so the device never waits for the host to decode text or to hand SQL on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import bucket
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.paged import Pool
from jaxrl_sql.ops import rng
from jaxrl_sql.parallel.rules import batch_ways
from jaxrl_sql.rollout.decode import grow_pool, new_pool
from jaxrl_sql.rollout.kv_blocks import PrefixCache
from jaxrl_sql.rollout.sampling import Sample, SamplingParams
from jaxrl_sql.rollout.scheduler import Call, Limits
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.rollout.stop_strings import end_tokens, token_bytes
from jaxrl_sql.sqlenv.turns import Turns
from jaxrl_sql.types import InputError, Prompt


class Engine:
    """Draw answers to prompts from a policy.

    `params` may be replaced between calls of `generate` (the trainer's own arrays are read in place); up to
    `kept_tokens` of what prompts begin with are kept from call to call until then. `slots` is the number of rows
    decoded side by side; pages hold `page_size` tokens of a prompt or `row_page_size` of an answer; a chunk is `chunk`
    steps; `prefill_tokens` are run at once. Where observations are awaited, `is_exact` lets no row go on before all of
    those that were asked for with it: what is computed beside what then never depends on how fast SQL ran.
    Pools of pages begin small and grow with what is asked, and a new size is a new program; `max_prompt_bucket`, the
    tokens of the longest prompt to come, makes them at once for all that may be asked, and all prefills of one size (0:
    as needed).
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        tokenizer: Any,
        slots: int = 64,
        purpose: rng.Purpose = rng.Purpose.ROLLOUT,
        page_size: int = 64,
        row_page_size: int = 32,
        chunk: int = 16,
        prefill_tokens: int = 1024,
        kept_tokens: int = 32_768,
        compute_dtype: Any = None,
        is_exact: bool = False,
        max_prompt_bucket: int = 0,
    ) -> None:
        for name, value in (("slot", slots), ("token a page", min(page_size, row_page_size)), ("step", chunk)):
            if value < 1:
                raise InputError(f"an engine needs at least one {name}, not {value}")
        self.config = config
        self.tokenizer = tokenizer
        self.slots = slots
        self.purpose = purpose
        self.limits = Limits(page_size, row_page_size, chunk, max(prefill_tokens, page_size))
        self.compute_dtype = compute_dtype
        self.is_exact = is_exact
        self.max_prompt_bucket = max_prompt_bucket
        self.stats = RolloutStats()
        self.stop_ids = end_tokens(tokenizer)
        self.prompts = PrefixCache(page_size, kept_tokens // page_size)
        self.shared: Pool | None = None
        self.kept: Pool | None = None
        self.own: Pool | None = None
        self._params = params
        self._pieces: list[bytes] | None = None
        self._call: Call | None = None

    @property
    def params(self) -> Any:
        """Return the parameters that the next call draws from."""
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        self.update(params)

    def update(self, params: Any, in_flight: str = "finish") -> None:
        """Draw from other parameters, read where they are; what is kept of prompts is forgotten.

        A call in flight goes on with the parameters that it began with (`finish`), or ends after the samples that have
        been yielded (`drop`). Whoever donates the old parameters has to drop.
        """
        if in_flight not in {"finish", "drop"}:
            raise InputError(f"in_flight must be finish or drop, not {in_flight!r}")
        if params is self._params:
            return
        self._params = params
        self.prompts.forget()
        if self._call is not None:
            self._call.intake.keeps_prompts = False
            self._call.is_dropped |= in_flight == "drop"

    @property
    def pieces(self) -> list[bytes]:
        """Return what each token writes, as bytes."""
        if self._pieces is None:
            self._pieces = token_bytes(self.tokenizer)
        return self._pieces

    def generate(
        self,
        prompts: Sequence[Prompt | str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        step: int = 0,
        turns: Turns | None = None,
    ) -> Iterator[Sample]:
        """Yield `sampling.n` samples a prompt as they finish; `sampling` is one for all prompts, or one for each.

        A request that cannot be served is a sample of its own, first of all, with finish reason `refused`. A sample's
        random numbers depend on (seed, step, prompt index, sample index, position) alone. `turns` makes the
        environment's side of an answer where it has several turns (`sqlenv.turns`). One call at a time: raises
        InputError while another is being read.
        """
        if isinstance(prompts, str | Prompt):
            raise InputError("prompts is a list: put a single prompt into one")
        hows = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(hows) != len(prompts):
            raise InputError(f"{len(hows)} samplings for {len(prompts)} prompts: one for all, or one for each")
        if turns is not None and jax.process_count() > 1:
            raise InputError("several turns are for one process: observations would arrive at different times")
        if self._call is not None:
            raise InputError("the engine is generating: read the other call to its end, or close it")
        self.stats = RolloutStats(slots=self.slots)
        began = time.perf_counter()
        self._call = Call(self, [self._encoded(i, prompt) for i, prompt in enumerate(prompts)], hows, step, turns)
        try:
            yield from self._call.run()
        finally:
            self._call.end()
            self._call = None
            self.stats.seconds = time.perf_counter() - began

    def _encoded(self, index: int, prompt: Prompt | str | Sequence[int]) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return Prompt(str(index), tuple(ids), prompt if isinstance(prompt, str) else "")

    def drop_pools(self) -> None:
        """Let all pages go; the next call makes new ones."""
        self.shared = self.own = self.kept = None
        self.prompts = PrefixCache(self.limits.page_size, self.prompts.room)

    @property
    def stretch(self) -> int:
        """Return how many tokens of a row are run at once, at most."""
        most = self.limits.prefill_tokens
        return min(bucket(self.max_prompt_bucket, self.limits.page_size), most) if self.max_prompt_bucket else most

    def has_room(self, rows: int, tokens: int) -> bool:
        """Tell whether so many rows, of so many tokens in all, are run at once."""
        return rows <= self.shape_of(1, 1)[0] if self.max_prompt_bucket else tokens <= self.limits.prefill_tokens

    def shape_of(self, rows: int, tokens: int, smallest: int = 32) -> tuple[int, int]:
        """Return (rows, tokens a row) of the smallest program that runs so many."""
        if self.max_prompt_bucket:
            return max(self.limits.prefill_tokens // self.stretch, 1), self.stretch
        return 1 << (rows - 1).bit_length(), min(bucket(tokens, smallest), self.stretch)

    def shared_pool(self, pages: int) -> Pool:
        """Return the pool of prompts' pages, made first where there is none, with room for `pages` or more."""
        return self._at_first(self.shared, pages, self.grow_shared)

    def own_pool(self, pages: int) -> Pool:
        """Return the pool of rows' pages, made first where there is none, with room for `pages` or more."""
        return self._at_first(self.own, pages, self.grow_own)

    def _at_first(self, pool: Pool | None, pages: int, grow: Callable[[int], Pool]) -> Pool:
        missing = pages - (0 if pool is None else pool.pages)
        return grow(missing) if pool is None or (self.max_prompt_bucket and missing > 0) else pool

    def grow_shared(self, missing: int) -> Pool:
        """Make room for `missing` more pages of prompts."""
        self.shared = self._grown(self.shared, self.limits.page_size, missing)
        self.prompts.grow(self.shared.pages)
        return self.shared

    def grow_kept(self, pages: int) -> Pool:
        """Make room for `pages` kept pages in all."""
        have = 0 if self.kept is None else self.kept.pages
        pages = self.prompts.room if self.max_prompt_bucket else pages
        self.kept = self._grown(self.kept, self.limits.page_size, max(pages - have, 0))
        return self.kept

    def grow_own(self, missing: int) -> Pool:
        """Make room for `missing` more pages of rows."""
        self.own = self._grown(self.own, self.limits.row_page_size, missing)
        return self.own

    def _grown(self, pool: Pool | None, size: int, missing: int) -> Pool:
        """Return a pool of one of few sizes, so that few programs are compiled; a mesh divides each of them."""
        have, unit = 0 if pool is None else pool.pages, 8 * batch_ways()
        pages = have if not missing else bucket(have + missing, unit)
        if pool is not None and pages == have:
            return pool
        if pool is not None:
            return grow_pool(pool, pages)
        return new_pool(self.config, pages, size, jnp.dtype(self.compute_dtype or self._dtype()))

    def _dtype(self) -> Any:
        """Return the dtype of the parameters."""
        return jax.tree.leaves(self._params)[0].dtype
