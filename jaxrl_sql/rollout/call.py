"""One call of the engine: which prompts are prefilled when, which answers wait for a row, what came of each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql import rng
from jaxrl_sql.batch import bucket, pad_tokens
from jaxrl_sql.distribution import Drawing
from jaxrl_sql.models.paged import Pages
from jaxrl_sql.rollout.decode import (
    End,
    Features,
    Lanes,
    Log,
    Request,
    copy_pages,
    decode_chunk,
    empty_request,
    empty_rows,
    mark_seen,
    prefill_lanes,
)
from jaxrl_sql.rollout.ledger import Full, Opened, RowBook, way_back
from jaxrl_sql.rollout.sampling import Sample, Sampling
from jaxrl_sql.rollout.stops import cut_after_stop, make_stops
from jaxrl_sql.types import Prompt

if TYPE_CHECKING:
    from jaxrl_sql.rollout.engine import Engine

MAX_READERS = 64
MAX_STRETCH = 512


class Limits(NamedTuple):
    """Sizes of an engine: tokens of a prompt's and a row's page, steps of a chunk, tokens that are prefilled at once."""

    page_size: int
    row_page_size: int
    chunk: int
    prefill_tokens: int


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


@dataclass
class Answer:
    """What has been read of an answer: pieces of tokens, full and drawn log-probabilities."""

    prompt: int
    index: int
    lane: int
    tokens: list[np.ndarray] = field(default_factory=list)
    full: list[np.ndarray] = field(default_factory=list)
    drawn: list[np.ndarray] = field(default_factory=list)


class Call:
    """The state of one call, on the host and on the device.

    Answers are numbered in the order in which they are let in. The ring holds those that wait for a row, at their
    number modulo its size; the device takes them in order and says how many it took.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Prompt], hows: Sequence[Sampling], step: int) -> None:
        self.engine, self.prompts, self.hows, self.step = engine, prompts, hows, step
        self.params = engine.params
        self.keeps_prompts = True
        self.is_dropped = False
        self.refused = self._refusals()
        served = [i for i in range(len(prompts)) if i not in self.refused]
        n, size = engine.slots, engine.limits.page_size
        self.readers = min(max((hows[i].n for i in served), default=1), n, MAX_READERS)
        # Prompts that begin alike stand together, so that what they share is there when it is asked for.
        order = sorted(served, key=lambda i: prompts[i].token_ids)
        self.queue = deque(
            Ticket(i, first, min(first + self.readers, hows[i].n))
            for i in order
            for first in range(0, hows[i].n, self.readers)
        )
        self.unfinished = sum(hows[i].n for i in served)
        self.columns = -(-bucket(max((len(prompts[i].token_ids) for i in served), default=1)) // size)
        self.longest = max((hows[i].max_new_tokens for i in served), default=1)
        lanes = 2 * n
        self.lanes: dict[int, Lane] = {}
        self.free_lanes = list(range(lanes - 1, -1, -1))
        self.table = np.full((lanes, self.columns), np.iinfo(np.int32).max, np.int32)
        self.lengths = np.zeros(lanes, np.int32)
        self.answers: list[Answer] = []
        self.finished: set[int] = set()
        # Enough for all answers that can be let in and are not known to have been taken.
        self.ring: Request = jax.tree.map(np.array, empty_request(2 * n + self.readers))
        self.taken = 0
        self.row_length = np.zeros(n, np.int64)
        self.ended_lately = max(n // 4, 1)
        self._open_device()

    def _refusals(self) -> dict[int, str]:
        """Return the requests that cannot be served, and why; makes the stop strings' automata of the others."""
        config = self.engine.config
        refused: dict[int, str] = {}
        for i, (prompt, how) in enumerate(zip(self.prompts, self.hows, strict=True)):
            have, total = len(prompt.token_ids), len(prompt.token_ids) + how.max_new_tokens
            if not have or total > config.max_positions:
                refused[i] = (
                    f"prompt {prompt.uid}: {have} tokens and {how.max_new_tokens} new ones need 1 to "
                    f"{config.max_positions} positions (max_positions)"
                )
            elif not all(0 <= token < config.vocab_size for token in prompt.token_ids):
                refused[i] = f"prompt {prompt.uid}: a token id is none of the model's {config.vocab_size}"
        wanted = [how.stop for how in self.hows]
        pieces = self.engine.pieces if any(wanted) else []
        self.stops, never = make_stops(wanted, pieces, config.vocab_size)
        refused |= {i: never[how.stop] for i, how in enumerate(self.hows) if i not in refused and how.stop in never}
        return refused

    def _open_device(self) -> None:
        """Make the rows, lanes and keys on the device."""
        engine, n = self.engine, self.engine.slots
        hows = [how for i, how in enumerate(self.hows) if i not in self.refused]
        self.features = Features(
            samples=any(how.temperature > 0 for how in hows),
            truncates=any(how.truncates for how in hows),
            penalizes=any(how.repetition_penalty != 1 for how in hows),
        )
        if engine.shared is None:
            engine.grow_shared(n * self.columns // max(self.readers, 1))
        if engine.own is None:
            engine.grow_own(n)
        dtype = engine.own.k[0].dtype
        lanes = len(self.free_lanes)
        self.rows = empty_rows(engine.config, n, lanes, self.readers, dtype, self.features.penalizes)
        self.lane_hidden = jnp.zeros((lanes, engine.config.d_model), dtype)
        self.lane_seen = jnp.zeros((lanes, engine.config.vocab_size), bool) if self.features.penalizes else None
        columns = -(-bucket(self.longest, engine.limits.row_page_size) // engine.limits.row_page_size)
        self.book = RowBook(engine.limits.row_page_size, n, columns, engine.own.pages)
        self.stop_ids = jnp.array(engine.stop_ids, jnp.int32)
        self.automata = jnp.array(self.stops.table), jnp.array(self.stops.found)

    # --- the loop

    def run(self) -> Iterator[Sample]:
        """Yield the samples as they finish; the chunk that is read is always the one before the last asked for."""
        for i, reason in self.refused.items():
            for index in range(self.hows[i].n):
                yield Sample(i, index, (), (), (), "", "refused", reason)
        stats, before = self.engine.stats, None
        while self.unfinished and not self.is_dropped:
            began = time.perf_counter()
            prefilled = self._admit()
            now = self._ask()
            stats.host_seconds += time.perf_counter() - began
            if before is not None:
                yield from self._read(*before)
            before = now, prefilled

    def end(self) -> None:
        """Give back what the call still holds (its reader may have stopped early)."""
        for lane in self.lanes.values():
            self.engine.prompts.close(lane.opened.pages)
        self.lanes.clear()

    # --- prompts

    def _admit(self) -> bool:
        """Let in prompts until enough answers wait for a row; say whether any was."""
        waiting = len(self.answers) - self.taken
        # What ends while two chunks run must find the next answers there.
        want = min(max(3 * self.ended_lately, self.readers), 2 * self.engine.slots)
        let_in = False
        while self.queue and self.free_lanes and waiting < want:
            batch = self._next_batch(want - waiting)
            if not batch:
                break
            self._prefill(batch)
            waiting += sum(ticket.last - ticket.first for _, ticket, _ in batch)
            let_in = True
        return let_in

    def _next_batch(self, answers: int) -> list[tuple[int, Ticket, Opened]]:
        """Open lanes for the next prompts, as many as are wanted and run at once.

        A prompt that lacks the same page as one of this batch waits for it to be there.
        """
        engine = self.engine
        batch: list[tuple[int, Ticket, Opened]] = []
        coming: set[object] = set()
        tokens = 0
        room = self.ring.number.shape[0] - (len(self.answers) - self.taken)
        while self.queue and self.free_lanes and answers > 0:
            ticket = self.queue[0]
            ids = self.prompts[ticket.prompt].token_ids
            lacks = engine.prompts.next_key(ids) if self.keeps_prompts else None
            count = ticket.last - ticket.first
            if (batch and tokens + len(ids) > engine.limits.prefill_tokens) or lacks in coming or count > room:
                break
            try:
                opened = engine.prompts.open(ids)
            except Full as full:
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
        self._copy([pair for _, _, opened in batch for pair in opened.copies])
        # A number of rows that is a power of two, so that few programs are compiled.
        x = 1 << (len(batch) - 1).bit_length()
        start, length = np.zeros(x, np.int32), np.zeros(x, np.int32)
        table = np.full((x, self.columns), engine.prompts.total, np.int32)
        for row, (lane, ticket, opened) in enumerate(batch):
            start[row], length[row] = opened.reused, len(self.prompts[ticket.prompt].token_ids)
            table[row, : len(opened.pages)] = opened.pages
            self.table[lane] = np.iinfo(np.int32).max
            self.table[lane, : len(opened.pages)] = opened.pages
            self.lengths[lane] = length[row]
            engine.stats.prompt_tokens += int(length[row])
            engine.stats.reused_tokens += opened.reused
        width = min(-(-bucket(int((length - start).max()), size) // size) * size, -(-MAX_STRETCH // size) * size)
        while (start < length).any():
            stretch = np.clip(length - start, 0, width)
            ids = [self.prompts[t.prompt].token_ids[start[r] : start[r] + width] for r, (_, t, _) in enumerate(batch)]
            tokens, _ = pad_tokens([*ids, *[()] * (x - len(batch))], width)
            ends = np.full(x, len(self.lengths), np.int32)
            for row, (lane, _, _) in enumerate(batch):
                if start[row] < length[row] <= start[row] + width:
                    ends[row] = lane
            engine.shared, self.lane_hidden = prefill_lanes(
                self.params, engine.config, engine.shared, self.lane_hidden, tokens, stretch, start, table, ends,
                bool(((start > 0) & (stretch > 0)).any()), engine.compute_dtype,
            )  # fmt: skip
            engine.stats.padded_tokens += tokens.size
            start = np.minimum(start + width, np.maximum(start, length))
            start = np.where(start < length, start, length)
        if self.lane_seen is not None:
            self._mark(batch)
        for lane, ticket, opened in batch:
            if self.keeps_prompts:
                engine.prompts.keep(self.prompts[ticket.prompt].token_ids, opened.pages)
            self.lanes[lane] = Lane(ticket, opened, ticket.last - ticket.first)
            self._enqueue(lane, ticket)

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            width = bucket(len(copies), 8)
            pairs = np.full((2, width), self.engine.prompts.total, np.int32)
            pairs[:, : len(copies)] = np.array(copies).T
            self.engine.shared = copy_pages(self.engine.shared, *pairs)

    def _mark(self, batch: list[tuple[int, Ticket, Opened]]) -> None:
        """Note which tokens stand in the prompts, for repetition penalties."""
        ids = [self.prompts[ticket.prompt].token_ids for _, ticket, _ in batch]
        tokens, length = pad_tokens(ids, self.columns * self.engine.limits.page_size)
        self.lane_seen = mark_seen(self.lane_seen, np.array([lane for lane, _, _ in batch]), tokens, length)

    def _enqueue(self, lane: int, ticket: Ticket) -> None:
        """Put the answers of a lane into the ring."""
        how = self.hows[ticket.prompt]
        base = rng.fold(rng.base_key(how.seed, self.engine.purpose), self.step)
        count = ticket.last - ticket.first
        keys = np.asarray(_keys(base, ticket.prompt, np.arange(self.readers) + ticket.first))
        first = len(self.answers)
        place = np.arange(first, first + count) % self.ring.number.shape[0]
        values = Request(
            number=np.arange(first, first + count),
            lane=lane,
            reader=np.arange(count),
            limit=how.max_new_tokens,
            first=self.stops.first[how.stop],
            pause=False,
            key=keys[:count],
            how=Drawing(how.temperature, how.top_k, how.top_p, how.min_p, how.repetition_penalty),
        )
        for array, value in zip(jax.tree.leaves(self.ring), jax.tree.leaves(values), strict=True):
            array[place] = value
        self.answers.extend(Answer(ticket.prompt, index, lane) for index in range(ticket.first, ticket.last))

    # --- chunks

    def _ask(self) -> Log:
        """Ask for the next chunk: rows get pages for all that they may write until the host looks again."""
        engine = self.engine
        reach = np.minimum(self.row_length + 2 * engine.limits.chunk, self.longest)
        try:
            self.book.cover(reach)
        except Full as full:
            self.book.grow(engine.grow_own(full.missing).pages)
            self.book.cover(reach)
        total, size = engine.prompts.total, engine.limits.page_size
        lane_table = np.minimum(self.table, total)
        lanes = Pages(lane_table, *way_back(lane_table, total, size))
        table = self.book.table()
        own = Pages(table, *way_back(table, self.book.total, self.book.size))
        engine.own, self.rows, log = decode_chunk(
            self.params, engine.config, engine.shared, engine.own,
            Lanes(lanes, self.lengths.copy(), self.lane_hidden, self.lane_seen), own, self.rows,
            jax.tree.map(np.copy, self.ring), np.int32(len(self.answers)), self.stop_ids, self.automata,
            self.features, engine.limits.chunk, engine.compute_dtype,
        )  # fmt: skip
        engine.stats.chunks += 1
        return log

    def _read(self, log: Log, prefilled: bool) -> Iterator[Sample]:
        """Wait for a chunk and yield the answers that ended in it."""
        stats = self.engine.stats
        began = time.perf_counter()
        log = jax.device_get(log)
        arrived = time.perf_counter()
        stats.wait_seconds += arrived - began
        if prefilled:
            stats.prefill_seconds += arrived - began
        waited = self.taken < len(self.answers) or bool(self.queue)
        self.taken = int(log.head)
        self.row_length = log.row_length.astype(np.int64)
        ended = self._note(log, waited)
        self.ended_lately = max(len(ended), self.ended_lately // 2, 1)
        samples = [self._sample(number, End(end)) for number, end in ended]
        stats.host_seconds += time.perf_counter() - arrived
        yield from samples

    def _note(self, log: Log, waited: bool) -> list[tuple[int, int]]:
        """Add what a chunk wrote to its answers -> those that ended, with how."""
        stats = self.engine.stats
        live = log.number >= 0
        steps = int(live.any(axis=1).sum())
        stats.steps += steps
        stats.tokens += int(live.sum())
        if waited and self.taken < len(self.answers):
            stats.full_steps += steps
            stats.full_tokens += int(live.sum())
        ended = []
        for row in np.flatnonzero(live.any(axis=0)):
            at = np.flatnonzero(live[:, row])
            numbers = log.number[at, row]
            for piece in np.split(at, np.flatnonzero(np.diff(numbers)) + 1):
                answer = self.answers[log.number[piece[0], row]]
                answer.tokens.append(log.token[piece, row])
                answer.full.append(log.full[piece, row])
                answer.drawn.append(log.drawn[piece, row])
                if log.end[piece[-1], row] != End.NOT:
                    ended.append((int(log.number[piece[0], row]), int(log.end[piece[-1], row]), int(piece[-1])))
        return [(number, end) for number, end, _ in sorted(ended, key=lambda e: (e[2], e[0]))]

    def _sample(self, number: int, end: End) -> Sample:
        """Make the sample of an answer that has ended, and close its lane with the last one."""
        answer = self.answers[number]
        ids = np.concatenate(answer.tokens).tolist()
        text = self.engine.tokenizer.decode(ids[:-1] if end == End.TOKEN else ids, skip_special_tokens=False)
        if end == End.STRING:
            text = cut_after_stop(text, self.hows[answer.prompt].stop)
        sample = Sample(
            prompt_index=answer.prompt,
            index=answer.index,
            token_ids=tuple(ids),
            logprobs=tuple(np.concatenate(answer.full).tolist()),
            drawn_logprobs=tuple(np.concatenate(answer.drawn).tolist()),
            text=text,
            finish_reason="length" if end == End.LENGTH else "stop",
        )
        answer.tokens, answer.full, answer.drawn = [], [], []
        lane = self.lanes[answer.lane]
        lane.open_answers -= 1
        if not lane.open_answers:
            self.engine.prompts.close(lane.opened.pages)
            self.table[answer.lane] = np.iinfo(np.int32).max
            del self.lanes[answer.lane]
            self.free_lanes.append(answer.lane)
        self.unfinished -= 1
        return sample


@jax.jit
def _keys(base: jax.Array, prompt: jax.Array, samples: jax.Array) -> jax.Array:
    """Derive the keys of samples [G] of a prompt, [G,2] uint32."""
    return jax.random.key_data(jax.vmap(rng.fold, in_axes=(None, None, 0))(base, prompt, samples))
