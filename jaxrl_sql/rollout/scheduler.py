"""One call of the engine: chunks asked for and read, answers put together, turns answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl_sql.batch import bucket, pad_tokens
from jaxrl_sql.models.paged import Pages
from jaxrl_sql.rollout.decode import End, Features, Lanes, Log, decode_chunk, empty_rows, go_on, let_go
from jaxrl_sql.rollout.kv_blocks import BlockTable, OutOfPagesError, block_owner
from jaxrl_sql.rollout.prefill_queue import Intake
from jaxrl_sql.rollout.sampling import ASSISTANT, ENVIRONMENT, Sample, SamplingParams
from jaxrl_sql.rollout.stop_strings import cut_after_stop, make_stops
from jaxrl_sql.sqlenv.executor import ExecutorError
from jaxrl_sql.sqlenv.turns import Action, Environment, PendingObservation, Turns
from jaxrl_sql.types import Prompt, Turn

if TYPE_CHECKING:
    from jaxrl_sql.rollout.engine import Engine

POLL_SECONDS = 0.0005


class Limits(NamedTuple):
    """Sizes of an engine: tokens of a prompt's and a row's page, steps of a chunk, tokens prefilled at once."""

    page_size: int
    row_page_size: int
    chunk: int
    prefill_tokens: int


@dataclass
class Answer:
    """What has been read of an answer: its row, the pieces of the turn that is being written, the turns before."""

    row: int = -1
    tokens: list[np.ndarray] = field(default_factory=list)
    full: list[np.ndarray] = field(default_factory=list)
    drawn: list[np.ndarray] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    policy: Environment | None = None
    text: str = ""

    def end_turn(self, say: Callable[[tuple[int, ...]], str]) -> str:
        """Close the turn that is being written and return its text; `say` decodes its tokens."""
        pieces = (self.tokens, self.full, self.drawn)
        ids, full, drawn = (tuple(np.concatenate(piece).tolist()) for piece in pieces)
        for piece in pieces:
            piece.clear()
        self.text = say(ids)
        self.turns.append(Turn(ASSISTANT, ids, full, drawn, self.text))
        return self.text

    def length(self) -> int:
        """Return the tokens of all turns."""
        return sum(len(turn.token_ids) for turn in self.turns)


class Asked(NamedTuple):
    """A chunk that was asked for: its log to come, its number, and whether prompts or turns were seen to before it."""

    log: Log
    serial: int
    prefilled: bool
    answered: bool


class Call:
    """The state of one call, on the host and on the device.

    The host works one chunk behind, so what it knows of a row is older than what the device has: `fresh_from` is the
    first chunk whose log knows of what the host did to a row.
    """

    def __init__(
        self, engine: Engine, prompts: Sequence[Prompt], hows: Sequence[SamplingParams], step: int, turns: Turns | None
    ) -> None:
        self.engine, self.prompts, self.hows, self.turns = engine, prompts, hows, turns
        self.params = engine.params
        self.is_dropped = False
        self.refused = self._refusals()
        served = [i for i in range(len(prompts)) if i not in self.refused]
        self.unfinished = sum(hows[i].n for i in served)
        self.longest = max((hows[i].longest for i in served), default=1)
        self.features = Features(
            samples=any(hows[i].temperature > 0 for i in served),
            truncates=any(hows[i].truncates for i in served),
            penalizes=any(hows[i].repetition_penalty != 1 for i in served),
        )
        self.intake = Intake(
            engine, self.params, prompts, hows, served, self.stops.first, step, pauses=turns is not None
        )
        self.answers: dict[int, Answer] = {}
        self.observations: dict[int, PendingObservation] = {}
        self.complete: list[int] = []
        self._open_rows()

    def _refusals(self) -> dict[int, str]:
        """Return the requests that cannot be served, and why; makes the stop strings' automata of the others."""
        config = self.engine.config
        refused: dict[int, str] = {}
        for i, (prompt, how) in enumerate(zip(self.prompts, self.hows, strict=True)):
            have = len(prompt.token_ids)
            if not have or have + how.longest > config.max_positions:
                refused[i] = (
                    f"prompt {prompt.uid}: {have} tokens and {how.longest} new ones need 1 to "
                    f"{config.max_positions} positions (max_positions)"
                )
            elif not all(0 <= token < config.vocab_size for token in prompt.token_ids):
                refused[i] = f"prompt {prompt.uid}: a token id is none of the model's {config.vocab_size}"
        wanted = [how.stops for how in self.hows]
        pieces = self.engine.pieces if any(wanted) else []
        self.stops, never = make_stops(wanted, pieces, config.vocab_size)
        return {i: never[how.stops] for i, how in enumerate(self.hows) if how.stops in never} | refused

    def _open_rows(self) -> None:
        """Make the rows on the device and the book of their pages."""
        engine, n, size = self.engine, self.engine.slots, self.engine.limits.row_page_size
        columns = -(-bucket(self.longest, size) // size)
        own = engine.own_pool(n * columns if engine.max_prompt_bucket else n)
        lanes, dtype = len(self.intake.lengths), own.k[0].dtype
        self.rows = empty_rows(engine.config, n, lanes, self.intake.readers, dtype, self.features.penalizes)
        self.book = BlockTable(size, n, columns, own.pages)
        self.row_length = np.zeros(n, np.int64)
        self.fresh_from = np.zeros(n, np.int64)
        self.ended_lately = max(n // 3 + 1, 1)
        self.serial = 0
        self._is_idle = False
        self._is_finite = True
        self.stop_ids: Any = np.array(engine.stop_ids, np.int32)
        self.automata: Any = self.stops.table, self.stops.found

    def run(self) -> Iterator[Sample]:
        """Yield the samples as they finish; the chunk that is read is always the one before the last asked for."""
        for i, reason in self.refused.items():
            for index in range(self.hows[i].n):
                yield Sample(i, index, (), (), (), "", "refused", error=reason)
        stats, before = self.engine.stats, None
        while self.unfinished and not self.is_dropped:
            began = time.perf_counter()
            failed, answered = self._answer_turns()
            # What ends while two chunks run must find the next answers there.
            want = min(max(3 * self.ended_lately, self.intake.readers), 2 * self.engine.slots)
            prefilled = self.intake.admit(want)
            now = Asked(self._ask(), self.serial, prefilled, answered)
            stats.host_seconds += time.perf_counter() - began
            yield from failed
            if before is not None:
                yield from self._read(before)
                if self._is_idle and not (now.prefilled or now.answered or self.complete or self.is_dropped):
                    self._wait()
            before = now

    def end(self) -> None:
        """Give back what the call still holds (its reader may have stopped early).

        Weights that have diverged leave numbers in the pages that no later call may read, not even masked.
        """
        self.intake.close()
        if not self._is_finite:
            self.engine.drop_pools()

    # --- chunks

    def _cover(self) -> Pages:
        """Give rows pages for all that they may write until the host looks again, and return their tables."""
        reach = np.minimum(self.row_length + 2 * self.engine.limits.chunk, self.longest)
        try:
            self.book.cover(reach)
        except OutOfPagesError as full:
            self.book.grow(self.engine.grow_own(full.missing).pages)
            self.book.cover(reach)
        table = self.book.table()
        return Pages(table, *block_owner(table, self.book.total, self.book.size))

    def _ask(self) -> Log:
        """Ask for the next chunk."""
        engine = self.engine
        self.serial += 1
        own_pages = self._cover()
        engine.own, self.rows, log = decode_chunk(
            self.params, engine.config, engine.shared, engine.own, self.intake.device_lanes(), own_pages, self.rows,
            jax.tree.map(np.copy, self.intake.ring), np.int32(len(self.intake.places)), self.stop_ids, self.automata,
            self.features, engine.limits.chunk, engine.compute_dtype,
        )  # fmt: skip
        engine.stats.chunks += 1
        return log

    def _read(self, asked: Asked) -> Iterator[Sample]:
        """Wait for a chunk and yield the answers that are complete with it."""
        stats = self.engine.stats
        began = time.perf_counter()
        log: Any = jax.device_get(asked.log)
        arrived = time.perf_counter()
        stats.wait_seconds += arrived - began
        if asked.prefilled:
            stats.prefill_seconds += arrived - began
        self.intake.taken = int(log.head)
        known = asked.serial >= self.fresh_from
        self.row_length = np.where(known, log.row_length, self.row_length)
        ended = self._note(log)
        self.ended_lately = max(len(ended), self.ended_lately // 2, 1)
        samples = [sample for number, end in ended if (sample := self._ended(number, end))]
        self._is_idle = bool(self.observations) and not (log.number >= 0).any()
        stats.host_seconds += time.perf_counter() - arrived
        yield from samples

    def _note(self, log: Any) -> list[tuple[int, End]]:
        """Add what a chunk wrote to its answers -> those whose turn ended, in the order in which they did."""
        live = log.number >= 0
        steps, written = int(live.any(axis=1).sum()), int(live.sum())
        self._is_finite &= bool(np.isfinite(log.full[live]).all())
        self.engine.stats.note(steps, written, is_full=self.intake.waiting > 0 or bool(self.intake.queue))
        ended = []
        for row in np.flatnonzero(live.any(axis=0)):
            at = np.flatnonzero(live[:, row])
            for piece in np.split(at, np.flatnonzero(np.diff(log.number[at, row])) + 1):
                number, last = int(log.number[piece[0], row]), int(piece[-1])
                answer = self.answers.setdefault(number, Answer(int(row)))
                answer.tokens.append(log.token[piece, row])
                answer.full.append(log.full[piece, row])
                answer.drawn.append(log.drawn[piece, row])
                if log.end[last, row] != End.NOT:
                    ended.append((last, number, End(int(log.end[last, row]))))
        return [(number, end) for _, number, end in sorted(ended)]

    # --- answers and turns

    def _ended(self, number: int, end: End) -> Sample | None:
        """Take note of a turn's end: the sample, if it was the answer's last; else its environment is asked."""
        answer, place = self.answers[number], self.intake.places[number]
        how = self.hows[place.prompt]
        text = answer.end_turn(partial(self._text, end=end, stops=how.stops))
        reason = "length" if end == End.LENGTH else "stop"
        if self.turns is not None:
            if answer.policy is None:
                answer.policy = self.turns(place.prompt, place.sample)
            try:
                observation = answer.policy.next(Action(text, reason))
            except ExecutorError as error:
                return self._finish(number, text, "failed", str(error))
            if observation is not None and answer.length() < how.longest:
                self.observations[number] = observation
                return None
            reason = reason if observation is None else "length"
        return self._finish(number, text, reason)

    def _text(self, ids: tuple[int, ...], end: End, stops: Sequence[str]) -> str:
        """Decode a turn: without the token that ended it, and up to its stop string."""
        text = self.engine.tokenizer.decode(ids[:-1] if end == End.TOKEN else ids, skip_special_tokens=False)
        return cut_after_stop(text, stops) if end == End.STRING else text

    def _finish(self, number: int, text: str, reason: str, error: str = "") -> Sample:
        """Make the sample of an answer that is complete, and let its row and its prompt go."""
        answer, place = self.answers.pop(number), self.intake.places[number]
        self.intake.finish(place.lane)
        self.unfinished -= 1
        if self.turns is not None:
            self.complete.append(answer.row)
        blank = {id(turn): (0.0,) * len(turn.token_ids) for turn in answer.turns}
        return Sample(
            prompt_index=place.prompt,
            index=place.sample,
            token_ids=tuple(token for turn in answer.turns for token in turn.token_ids),
            logprobs=tuple(x for turn in answer.turns for x in turn.logprobs or blank[id(turn)]),
            behavior_logprobs=tuple(x for turn in answer.turns for x in turn.behavior_logprobs or blank[id(turn)]),
            text=text,
            finish_reason=reason,
            turns=tuple(answer.turns),
            error=error,
        )

    def _wait(self) -> None:
        """Wait for some observation: no row has anything else to do."""
        began = time.perf_counter()
        while not any(observation.done() for observation in self.observations.values()):
            time.sleep(POLL_SECONDS)
        self.engine.stats.sql_wait_seconds += time.perf_counter() - began

    def _answer_turns(self) -> tuple[list[Sample], bool]:
        """Append the observations that are there to their rows, and free the rows whose answers are complete.

        Returns the answers whose observation failed, and whether anything was done to a row.
        """
        n = self.engine.slots
        acted = bool(self.complete)
        if self.complete:
            self.rows = let_go(self.rows, _padded(self.complete, n, n))
            self.complete = []
        is_exact = self.engine.is_exact  # then none is passed over because it is slow
        ready = [number for number, observation in self.observations.items() if is_exact or observation.done()]
        said: dict[int, tuple[int, ...]] = {}
        failed = []
        for number in ready:
            try:
                text = self.observations.pop(number).result()
            except ExecutorError as error:
                failed.append(self._finish(number, self.answers[number].text, "failed", str(error)))
                continue
            ids = tuple(self.engine.tokenizer.encode(text, add_special_tokens=False))
            answer = self.answers[number]
            # The policy needs room for a token at least; what is too long is cut, and it cannot write on for long.
            room = self.hows[self.intake.places[number].prompt].longest - answer.length() - 1
            said[number] = ids[: max(room, 0)]
            answer.turns.append(Turn(ENVIRONMENT, said[number], text=text))
        if said:
            self._go_on(said)
        return failed, acted or bool(said)

    def _go_on(self, said: dict[int, tuple[int, ...]]) -> None:
        """Append observations to their rows, which write on in the next chunk."""
        engine, n = self.engine, self.engine.slots
        rows = [self.answers[number].row for number in said]
        lengths = [self.answers[number].length() for number in said]
        hows = [self.hows[self.intake.places[number].prompt] for number in said]
        self.row_length[rows] = lengths
        self.fresh_from[rows] = self.serial + 1
        own_pages = self._cover()
        limits = [min(have + how.max_new_tokens, how.longest) for have, how in zip(lengths, hows, strict=True)]
        lanes: Lanes = self.intake.device_lanes()
        most = engine.stretch
        for first in range(0, max(map(len, said.values()), default=0) or 1, most):
            pieces = [ids[first : first + most] for ids in said.values()]
            left = [i for i, piece in enumerate(pieces) if piece or not first]
            for part in _parts(left, [len(piece) for piece in pieces], engine.has_room):
                ids = [pieces[i] for i in part]
                x, width = engine.shape_of(len(part), max(map(len, ids)))
                tokens, length = pad_tokens([*ids, *[()] * (x - len(part))], width)
                engine.own, self.rows = go_on(
                    self.params, engine.config, engine.shared, engine.own, lanes, own_pages.table, self.rows,
                    _padded([rows[i] for i in part], x, n), tokens, length, _padded([limits[i] for i in part], x, 0),
                    engine.compute_dtype,
                )  # fmt: skip


def _parts(items: Sequence[int], lengths: Sequence[int], has_room: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Cut items, the short ones first, into parts that are run at once, as they are padded to the longest."""
    part: list[int] = []
    for item in sorted(items, key=lambda i: lengths[i]):
        if part and not has_room(len(part) + 1, (1 << len(part).bit_length()) * bucket(lengths[item])):
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def _padded(values: Sequence[int], width: int, filler: int) -> np.ndarray:
    return np.array([*values, *[filler] * (width - len(values))], np.int32)
