"""Letting prompts in: which are prefilled when, in which pages, and the ring of answers that wait for a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import bucket, pad_tokens
from jaxrl_sql.models.paged import Pages
from jaxrl_sql.ops import rng
from jaxrl_sql.ops.token_distribution import Drawing
from jaxrl_sql.rollout.decode import Lanes, Request, copy_pages, empty_lanes, empty_request, mark_seen, prefill_lanes
from jaxrl_sql.rollout.kv_blocks import Opened, OutOfPagesError, block_owner
from jaxrl_sql.rollout.sampling import SamplingParams
from jaxrl_sql.types import Prompt

if TYPE_CHECKING:
    from jaxrl_sql.rollout.engine import Engine

MAX_READERS = 64
NONE = np.iinfo(np.int32).max


class Ticket(NamedTuple):
    """A prompt and those of its answers, first to last, that one lane serves."""

    prompt: int
    first: int
    last: int


@dataclass
class Lane:
    """An open lane: the ticket, its pages, and how many answers are not finished."""

    ticket: Ticket
    opened: Opened
    open_answers: int


class Place(NamedTuple):
    """Where an answer stands: the sample of a prompt, and the lane that it reads."""

    prompt: int
    sample: int
    lane: int


class Intake:
    """The prompts of a call, from the queue to their lanes, and their answers, from there into the ring.

    Answers are numbered in the order in which they are let in. The ring holds those that wait for a row, at their
    number modulo its size; the device takes them in order and says how many it took (`taken`).
    """

    def __init__(
        self,
        engine: Engine,
        params: Any,
        prompts: Sequence[Prompt],
        hows: Sequence[SamplingParams],
        served: Collection[int],
        first_state: Mapping[tuple[str, ...], int],
        step: int,
        pauses: bool,
    ) -> None:
        self.engine, self.params, self.prompts, self.hows = engine, params, prompts, hows
        self.first_state, self.pauses = first_state, pauses
        self.keeps_prompts = True
        n, size = engine.slots, engine.limits.page_size
        self.readers = min(max((hows[i].n for i in served), default=1), n, MAX_READERS)
        # Prompts that begin alike stand together, so that what they share is there when it is asked for.
        order = sorted(served, key=lambda i: prompts[i].token_ids)
        self.queue = deque(
            Ticket(i, first, min(first + self.readers, hows[i].n))
            for i in order
            for first in range(0, hows[i].n, self.readers)
        )
        longest = max((len(prompts[i].token_ids) for i in served), default=1)
        self.columns = -(-bucket(max(longest, engine.max_prompt_bucket)) // size)
        lanes = 2 * n
        self.lanes: dict[int, Lane] = {}
        self.free_lanes = list(range(lanes - 1, -1, -1))
        self.table = np.full((lanes, self.columns), NONE, np.int32)
        self.lengths = np.zeros(lanes, np.int32)
        self.places: list[Place] = []
        # Enough for all answers that can be let in and are not known to have been taken.
        self.ring: Request = jax.tree.map(np.array, empty_request(2 * n + self.readers))
        self.taken = 0
        seeds = np.zeros(bucket(len(prompts)), np.int32)
        seeds[: len(prompts)] = [how.seed for how in hows]
        self.keys = np.asarray(_keys(seeds, np.int32(step), engine.purpose, max((how.n for how in hows), default=1)))
        # Those that rows read, and where the pool is to last, those that are let in ahead of them.
        most = min(lanes, len(self.queue), 1 + -(-3 * n // self.readers))
        shared = engine.shared_pool(
            most * self.columns if engine.max_prompt_bucket else n * self.columns // self.readers
        )
        penalizes = any(how.repetition_penalty != 1 for how in hows)
        self.hidden, self.seen = empty_lanes(engine.config, lanes, shared.k[0].dtype, penalizes)

    @property
    def waiting(self) -> int:
        """Return how many answers wait for a row, as far as is known."""
        return len(self.places) - self.taken

    def device_lanes(self) -> Lanes:
        """Return the lanes as the device needs them."""
        total = self.engine.prompts.total
        table: Any = np.minimum(self.table, total)
        pages = Pages(table, *block_owner(table, total, self.engine.limits.page_size))
        lengths: Any = self.lengths.copy()
        return Lanes(pages, lengths, self.hidden, self.seen)

    def finish(self, lane: int) -> None:
        """Take note that an answer of a lane is complete; the last one closes it."""
        held = self.lanes[lane]
        held.open_answers -= 1
        if not held.open_answers:
            self._close(lane)

    def _close(self, lane: int) -> None:
        self.engine.prompts.close(self.lanes.pop(lane).opened.pages)
        self.table[lane] = NONE
        self.free_lanes.append(lane)

    def close(self) -> None:
        """Close all lanes."""
        for lane in list(self.lanes):
            self._close(lane)

    def admit(self, want: int) -> bool:
        """Let in prompts until `want` answers wait for a row; say whether any was."""
        before = len(self.places)
        while self.queue and self.free_lanes and self.waiting < want:
            batch = self._next_batch(want - self.waiting)
            if not batch:
                break
            try:
                self._prefill(batch)
            except BaseException:
                # What is known to be kept may not have been written.
                self.engine.prompts.forget()
                for lane, _, opened in batch:
                    if lane not in self.lanes:
                        self.engine.prompts.close(opened.pages)
                raise
        return len(self.places) > before

    def _next_batch(self, answers: int) -> list[tuple[int, Ticket, Opened]]:
        """Open lanes for the next prompts, as many as are wanted and run at once.

        A prompt that lacks the same page as one of this batch waits for it to be there.
        """
        engine = self.engine
        batch: list[tuple[int, Ticket, Opened]] = []
        coming: set[object] = set()
        tokens = 0
        room = self.ring.number.shape[0] - self.waiting
        while self.queue and self.free_lanes and answers > 0:
            ticket = self.queue[0]
            ids = self.prompts[ticket.prompt].token_ids
            lacks = engine.prompts.next_key(ids) if self.keeps_prompts else None
            count = ticket.last - ticket.first
            new = len(ids) - (engine.prompts.reusable(ids) if self.keeps_prompts else 0)
            is_full = bool(batch) and not engine.has_room(len(batch) + 1, tokens + new)
            if is_full or lacks in coming or count > room:
                break
            try:
                opened = engine.prompts.open(ids)
            except OutOfPagesError as full:
                engine.grow_shared(full.missing)
                continue
            if lacks is not None:
                coming.add(lacks)
            batch.append((self.free_lanes.pop(), self.queue.popleft(), opened))
            tokens += len(ids) - opened.reused
            answers -= count
            room -= count
        return batch

    def _prefill(self, batch: list[tuple[int, Ticket, Opened]]) -> None:
        """Run what is new of a batch of prompts, in stretches of whole pages, and put their answers into the ring."""
        engine, size = self.engine, self.engine.limits.page_size
        self._reuse([pair for _, _, opened in batch for pair in opened.copies])
        new = [len(self.prompts[ticket.prompt].token_ids) - opened.reused for _, ticket, opened in batch]
        x, longest = engine.shape_of(len(batch), max(new), size)
        start, length = np.zeros(x, np.int32), np.zeros(x, np.int32)
        table = np.full((x, self.columns), engine.prompts.total, np.int32)
        for row, (lane, ticket, opened) in enumerate(batch):
            start[row], length[row] = opened.reused, len(self.prompts[ticket.prompt].token_ids)
            table[row, : len(opened.pages)] = opened.pages
            self.table[lane] = NONE
            self.table[lane, : len(opened.pages)] = opened.pages
            self.lengths[lane] = length[row]
            engine.stats.prompt_tokens += int(length[row])
            engine.stats.reused_tokens += opened.reused
        width = -(-longest // size) * size
        while (start < length).any():
            stretch = np.clip(length - start, 0, width)
            ids = [self.prompts[t.prompt].token_ids[start[r] : start[r] + width] for r, (_, t, _) in enumerate(batch)]
            tokens, _ = pad_tokens([*ids, *[()] * (x - len(batch))], width)
            ends = np.full(x, len(self.lengths), np.int32)
            for row, (lane, _, _) in enumerate(batch):
                if start[row] < length[row] <= start[row] + width:
                    ends[row] = lane
            engine.shared, self.hidden = prefill_lanes(
                self.params, engine.config, engine.shared, self.hidden, tokens, stretch, start, table, ends,
                bool(engine.max_prompt_bucket or ((start > 0) & (stretch > 0)).any()), engine.compute_dtype,
            )  # fmt: skip
            engine.stats.padded_tokens += tokens.size
            start = np.minimum(start + width, length)
        if self.seen is not None:
            self._mark(batch)
        written: list[tuple[int, int]] = []
        for lane, ticket, opened in batch:
            if self.keeps_prompts:
                written.extend(engine.prompts.keep(self.prompts[ticket.prompt].token_ids, opened.pages))
            self.lanes[lane] = Lane(ticket, opened, ticket.last - ticket.first)
            self._enqueue(lane, ticket)
        self._keep(written)

    def _reuse(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy kept pages to those of prompts."""
        engine = self.engine
        if copies and engine.kept is not None and engine.shared is not None:
            kept, pages = _columns(copies, self._copied(copies), engine.shared.pages)
            engine.shared = copy_pages(engine.kept, kept, engine.shared, pages)

    def _copied(self, copies: Sequence[tuple[int, int]]) -> int:
        """Return how many pages the program copies that is to copy these."""
        all_of_a_batch = self.engine.shape_of(1, 1)[0] * self.columns if self.engine.max_prompt_bucket else 0
        return bucket(max(len(copies), all_of_a_batch), 8)

    def _keep(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy pages of prompts to where they are kept."""
        engine = self.engine
        # Where room is small a place may be taken twice in a batch: the last one is what is known.
        copies = [(page, place) for place, page in {place: page for page, place in copies}.items()]
        if copies and engine.shared is not None:
            kept = engine.grow_kept(1 + max(place for _, place in copies))
            pages, places = _columns(copies, self._copied(copies), kept.pages)
            engine.kept = copy_pages(engine.shared, pages, kept, places)

    def _mark(self, batch: list[tuple[int, Ticket, Opened]]) -> None:
        """Note which tokens stand in the prompts, for repetition penalties."""
        x = self.engine.shape_of(len(batch), 1)[0]
        lane = np.full(x, len(self.lengths), np.int32)
        lane[: len(batch)] = [lane for lane, _, _ in batch]
        ids = [self.prompts[ticket.prompt].token_ids for _, ticket, _ in batch]
        tokens, length = pad_tokens([*ids, *[()] * (x - len(ids))], self.columns * self.engine.limits.page_size)
        self.seen = mark_seen(self.seen, lane, tokens, length)

    def _enqueue(self, lane: int, ticket: Ticket) -> None:
        """Put the answers of a lane into the ring."""
        how = self.hows[ticket.prompt]
        count = ticket.last - ticket.first
        first = len(self.places)
        place = np.arange(first, first + count) % self.ring.number.shape[0]
        draws = Drawing(how.temperature, how.top_k, how.top_p, how.min_p, how.repetition_penalty)
        ring: Any = self.ring
        ring.number[place] = np.arange(first, first + count)
        ring.lane[place] = lane
        ring.reader[place] = np.arange(count)
        ring.limit[place] = how.max_new_tokens
        ring.first[place] = self.first_state[how.stops]
        ring.pause[place] = self.pauses
        ring.key[place] = self.keys[ticket.prompt, ticket.first : ticket.last]
        for array, value in zip(ring.how, draws, strict=True):
            array[place] = value
        self.places.extend(Place(ticket.prompt, index, lane) for index in range(ticket.first, ticket.last))


def _columns(pairs: Sequence[tuple[int, int]], width: int, none: int) -> np.ndarray:
    """Return pairs as two rows of `width`; `none` is the second of those that fill it."""
    columns = np.full((2, width), none, np.int32)
    columns[:, : len(pairs)] = np.array(pairs).T
    return columns


@partial(jax.jit, static_argnames=("purpose", "samples"))
def _keys(seed: jax.Array, step: jax.Array, purpose: rng.Purpose, samples: int) -> jax.Array:
    """Derive the keys of so many samples of prompts 0, 1, … with seeds [X] -> [X,samples,2] uint32."""

    def one(seed: jax.Array, prompt: jax.Array, sample: jax.Array) -> jax.Array:
        return jax.random.key_data(rng.fold(rng.base_key(seed, purpose), step, prompt, sample))

    over_samples = jax.vmap(one, in_axes=(None, None, 0))
    over_prompts = jax.vmap(over_samples, in_axes=(0, 0, None))
    return over_prompts(seed, jnp.arange(seed.shape[0]), jnp.arange(samples))
