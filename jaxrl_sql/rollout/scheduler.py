"""The scheduler of one call: it launches chunks of decode steps, reads their logs, and runs the turns of completions.

The host works one chunk behind the device: it launches the next chunk before it reads the log of the last one, so the
device never waits while the host decodes text or hands SQL on.

Where KV blocks are too few for all slots the host reads the last log first, and decides what goes on, the oldest
completions first: what has no room is preempted, gives its blocks back, and later is computed again from its tokens
(vLLM's recomputation, Kwon et al. 2023, arXiv:2309.06180). What an earlier call began ahead of this one goes on in the
same way. All of it follows from the call alone, never from time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_sql.batch import pad_tokens
from jaxrl_sql.models.paged import BlockMap
from jaxrl_sql.rollout.decode import (
    ChunkConfig,
    End,
    ObservationBatch,
    StepLog,
    StopCriteria,
    empty_slots,
    on_devices,
    release_slots,
    resume_requests,
)
from jaxrl_sql.rollout.kv_blocks import BlockTable, block_owner
from jaxrl_sql.rollout.model_runner import ModelRunner
from jaxrl_sql.rollout.partial_sample import PartialSample
from jaxrl_sql.rollout.prefill_queue import PrefillQueue
from jaxrl_sql.rollout.refusals import find_refused
from jaxrl_sql.rollout.sampling import ASSISTANT, ENVIRONMENT, UNFINISHED, GenerationRequest, NotFiniteError, Sample
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.rollout.stop_strings import Vocabulary, cut_after_stop
from jaxrl_sql.text2sql.env.executor import ExecutorError
from jaxrl_sql.text2sql.env.turns import Action, PendingObservation
from jaxrl_sql.types import Turn


class InFlightChunk(NamedTuple):
    """A chunk that was launched: its log to come, its number, and whether prompts were prefilled before it."""

    log: StepLog
    number: int
    is_after_prefill: bool


class Scheduler:
    """The state of one call of the engine on the host.

    It is one chunk behind the device, so what it knows of a slot is older than what the device has: `known_from` is the
    first chunk whose log includes what the host last did to a slot.
    """

    def __init__(
        self, runner: ModelRunner, vocabulary: Vocabulary, request: GenerationRequest, stats: RolloutStats
    ) -> None:
        self.runner, self.vocabulary, self.request, self.stats = runner, vocabulary, request, stats
        self.config = runner.config
        self.automata, self.refused = find_refused(request, vocabulary, runner.model.config, self.config)
        ends = np.array(vocabulary.end_tokens, np.int32)
        self.stops = on_devices(StopCriteria(ends, self.automata.table, self.automata.found))
        served = [i for i in range(len(request.prompts)) if i not in self.refused]
        samplings = [request.samplings[i] for i in served]
        begun = (request.begun_sample(i, g) for i in served for g in range(request.samplings[i].n))
        self.finished_before = [one for one in begun if one and one.finish_reason != UNFINISHED]
        asked = sum(request.samplings[i].n for i in served if not request.is_ahead(i))
        self.unfinished = asked - len(self.finished_before)
        self.longest = max((sampling.longest for sampling in samplings), default=1)
        self.chunk_config = ChunkConfig(
            model=runner.model,
            samples=any(sampling.temperature > 0 for sampling in samplings),
            truncates=any(sampling.truncates for sampling in samplings),
            penalizes=any(sampling.repetition_penalty != 1 for sampling in samplings),
            steps=self.config.chunk_steps,
            missing=vocabulary.missing_ids(runner.model.config.vocab_size),
        )
        self.queue = PrefillQueue(runner, request, served, self.automata.first, stats)
        self.partial: dict[int, PartialSample] = {}
        self.observations: dict[int, PendingObservation] = {}
        self.slots_to_release: list[int] = []
        self.to_append: dict[int, tuple[int, ...]] = {}
        self.cancelled: set[int] = set()
        self.may_take: int | None = None
        self.before: InFlightChunk | None = None
        self.launched: InFlightChunk | None = None
        self._open_slots()

    def _open_slots(self) -> None:
        """Make the decode slots on the device, and the table of their blocks."""
        n, sizes = self.config.max_num_seqs, self.queue.sizes
        self.slots = empty_slots(
            self.runner.model.config, n, sizes.prompt_slots, sizes.group_size, self.runner.cache_dtype,
            self.chunk_config.penalizes,
        )  # fmt: skip
        self.block_table = BlockTable(self.config.completion_block_size, n, self.queue.levels)
        self.slot_length, self.known_from = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.recently_ended = max(n // 3 + 1, 1)
        self.num_chunks = 0
        self._is_finite = True

    @property
    def has_work(self) -> bool:
        """Return whether there is something to decode or to read, of this call or of the next one."""
        return bool(self.partial or self.queue.num_waiting or self.queue.groups or self.before)

    def run(self) -> Iterator[Sample]:
        """Yield the samples as they finish; the chunk that is read is always the one before the last launched."""
        yield from self.known()
        while self.unfinished:
            yield from self.launch()
            yield from self.read()
        yield from self.left()

    def known(self) -> Iterator[Sample]:
        """Yield a sample for each that cannot be served, and those that an earlier call finished."""
        for i, reason in self.refused.items():
            for sample in range(self.request.samplings[i].n):
                yield Sample(*self.request.place(i, sample), (), (), (), "", "refused", error=reason)
        yield from self.finished_before

    def left(self) -> Iterator[Sample]:
        """Yield what was made of the next call's samples when this one is over, finished or not."""
        if self.request.ahead is None:
            return
        self.launched = None
        yield from self.read()
        for number in sorted(self.partial):
            partial, queued = self.partial[number], self.queue.completions[number]
            ids, logprobs, behavior = partial.so_far()
            turn = Turn(ASSISTANT, ids, logprobs, behavior)
            place = self.request.place(queued.prompt, queued.sample)
            yield Sample(*place, ids, logprobs, behavior, "", UNFINISHED, (turn,))

    def launch(self) -> list[Sample]:
        """Launch the next chunk, where there is room for it, without waiting; return the samples that failed."""
        began = time.perf_counter()
        if self.cancelled:
            if self.before is not None:  # what slots hold is known when it is read
                self.launched = None
                return []
            self._drop_cancelled()
            if not self.unfinished:
                self.launched = None
                return []
        failed = self._continue_turns()
        # What ends while two chunks run must find the next completions there.
        want = min(max(3 * self.recently_ended, self.queue.sizes.group_size), 2 * self.config.max_num_seqs)
        is_after_prefill = self.queue.admit(want)
        for number, begun in self.queue.take_begun().items():
            written = begun.token_ids, begun.logprobs, begun.behavior_logprobs
            ids, logprobs, behavior_logprobs = ([np.array(piece)] for piece in written)
            self.partial[number] = PartialSample(-1, ids, logprobs, behavior_logprobs)
        self.launched = self._launch_chunk(is_after_prefill) if self._has_room(self.before) else None
        self.stats.host_seconds += time.perf_counter() - began
        return failed

    def read(self) -> list[Sample]:
        """Wait for the chunk before the last launched one and return the samples that are finished with it."""
        before, self.before = self.before, self.launched
        return [] if before is None else self._read_chunk(before)

    def cancel(self, prompt: int) -> None:
        """Stop the samples of a prompt that are unfinished: their slots and blocks are free from the next chunk on.

        Those whose turn is about to begin may still come, of one token. Not for calls of several turns.
        """
        assert self.request.turns is None, "a dialogue's environment has work under way"
        assert self.request.ahead is None, "the next call's samples are not given up"
        self.cancelled.add(prompt)

    def close(self) -> None:
        """Give back what the call still holds (its caller may have stopped early).

        Weights that have diverged leave numbers in the blocks that no later call may read, not even masked.
        """
        self.queue.close()
        if not self._is_finite:
            self.runner.release()

    def _drop_cancelled(self) -> None:
        """Free the slots of what was cancelled; no chunk runs meanwhile, so all that slots hold is known."""
        n, prompts = self.config.max_num_seqs, self.cancelled
        numbers = [number for number in self.partial if self.queue.completions[number].prompt in prompts]
        slots = [slot for number in numbers if (slot := self.partial[number].slot) >= 0]
        if slots:
            self.slots = release_slots(self.slots, _padded(slots, n, n))
            self.slot_length[slots], self.known_from[slots] = 0, self.num_chunks + 1
        for number in numbers:
            del self.partial[number]
            self.to_append.pop(number, None)
            self.queue.finish(self.queue.completions[number].prompt_slot)
        self.unfinished -= len(numbers) + self.queue.cancel(prompts)
        self.cancelled = set()

    # --- chunks

    def _has_room(self, before: InFlightChunk | None) -> bool:
        """Reserve blocks for the next chunk; False where they are too few while a chunk is still to be read."""
        self.may_take = None
        # For all that slots may write until the host looks again.
        reach = np.minimum(self.slot_length + 2 * self.config.chunk_steps, self.longest)
        if self._preempted() or not self._reserve(reach):
            if before is not None:
                return False
            self._make_room()
        if self.to_append:
            self._append()
        return True

    def _reserve(self, tokens: np.ndarray) -> bool:
        """Reserve blocks for tokens [N] of the slots; False, and nothing done, where they are too few."""
        if not self.block_table.reserve(tokens):
            return False
        self.runner.resize_completions(self.block_table.num_blocks)
        return True

    def _preempted(self) -> list[int]:
        """Return the completions that were preempted, the oldest first."""
        return sorted(number for number, sample in self.partial.items() if sample.slot < 0)

    def _make_room(self) -> None:
        """Decide which completions go on; no chunk runs meanwhile, so all lengths are known.

        Those that are in slots go on, the oldest first, as long as there are blocks for a chunk of steps; the others
        are preempted. If all go on, preempted ones are resumed, and after these new ones taken, while there are blocks
        for two chunks of steps: so that they are not preempted at once.
        """
        steps, n, table = self.config.chunk_steps, self.config.max_num_seqs, self.block_table
        tokens = np.zeros(n, np.int64)

        def reach(number: int, chunks: int) -> tuple[int, int]:
            have = min(self.partial[number].num_tokens() + chunks * steps, self.longest)
            return have, -(-have // table.block_size)

        left = spare = table.levels[-1][0]
        waiting, running = self._preempted(), sorted(i for i, sample in self.partial.items() if sample.slot >= 0)
        dropped: list[int] = []
        for number in running:
            tokens[self.partial[number].slot], need = reach(number, 1)
            left, spare = left - need, spare - reach(number, 2)[1]
            if left < 0 or dropped:
                dropped.append(number)
        self._preempt(dropped, tokens)
        free = sorted(set(range(n)) - {self.partial[number].slot for number in running})
        resumed: list[int] = []
        while not dropped and len(resumed) < min(len(waiting), len(free)):
            number = waiting[len(resumed)]
            tokens[free[len(resumed)]], need = reach(number, 2)
            if need > spare:
                break
            spare -= need
            resumed.append(number)
        self._resume(resumed, free)
        new = min(2 * steps, self.longest)
        has_older = dropped or len(resumed) < len(waiting)
        self.may_take = 0 if has_older else max(spare, 0) // -(-new // table.block_size)
        free = free[len(resumed) :]
        tokens[free] = 0
        tokens[free[: self.may_take]] = new
        has_room = self._reserve(tokens)
        assert has_room, "what goes on was counted to fit"

    def _preempt(self, numbers: Sequence[int], tokens: np.ndarray) -> None:
        """Take completions out of their slots, which have no tokens [N] then."""
        n = self.config.max_num_seqs
        slots = [self.partial[number].slot for number in numbers]
        if slots:
            self.slots = release_slots(self.slots, _padded(slots, n, n))
            tokens[slots] = 0
            self.stats.preemptions += len(slots)
        for number in numbers:
            self.partial[number].slot = -1
            self.to_append.pop(number, None)

    def _resume(self, numbers: Sequence[int], free: Sequence[int]) -> None:
        """Put preempted completions into the first free slots, to be computed again from their tokens."""
        if not numbers:
            return
        x = 1 << (len(numbers) - 1).bit_length()
        slots = list(free[: len(numbers)])
        self.slots = resume_requests(
            self.slots, _padded(slots, x, self.config.max_num_seqs), self.queue.requests(numbers, x),
            self.queue.prompt_slots(),
        )  # fmt: skip
        for number, slot in zip(numbers, slots, strict=True):
            sample = self.partial[number]
            sample.slot, self.to_append[number] = slot, sample.token_ids()
            self.slot_length[slot], self.known_from[slot] = sample.num_tokens(), self.num_chunks + 1

    def block_map(self) -> BlockMap:
        """Return which slot holds which block of completions."""
        table = self.block_table.table()
        return BlockMap(table, *block_owner(table, self.block_table.num_blocks, self.block_table.block_size))

    def _launch_chunk(self, is_after_prefill: bool) -> InFlightChunk:
        """Launch the next chunk, without waiting for it."""
        self.num_chunks += 1
        self.slots, log = self.runner.decode(
            self.queue.weights, self.chunk_config, self.queue.prompt_slots(), self.slots, self.block_map(),
            self.queue.request_ring(self.may_take), self.stops,
        )  # fmt: skip
        self.stats.chunks += 1
        return InFlightChunk(log, self.num_chunks, is_after_prefill)

    def _read_chunk(self, chunk: InFlightChunk) -> list[Sample]:
        """Wait for a chunk and return the samples that are finished with it."""
        began = time.perf_counter()
        log: Any = jax.device_get(chunk.log)
        arrived = time.perf_counter()
        self.stats.wait_seconds += arrived - began
        if chunk.is_after_prefill:
            self.stats.prefill_seconds += arrived - began
        self.queue.taken = int(log.taken)
        self.slot_length = np.where(chunk.number >= self.known_from, log.length, self.slot_length)
        ended = self._record(log)
        self.recently_ended = max(len(ended), self.recently_ended // 2, 1)
        samples = [sample for number, end in ended if (sample := self._end_turn(number, end))]
        self.stats.host_seconds += time.perf_counter() - arrived
        return samples

    def _record(self, log: Any) -> list[tuple[int, End]]:
        """Add a chunk's tokens to their completions -> those whose turn ended, in order; raises NotFiniteError."""
        live = log.completion >= 0
        steps, written = int(live.any(axis=1).sum()), int(live.sum())
        self._is_finite = all(bool(np.isfinite(x[live]).all()) for x in (log.logprob, log.behavior_logprob))
        if not self._is_finite:
            raise NotFiniteError(self.runner.cache_dtype)
        self.stats.note(steps, written, is_full=self.queue.num_waiting > 0 or bool(self.queue.groups))
        ended = []
        for slot in np.flatnonzero(live.any(axis=0)):
            at = np.flatnonzero(live[:, slot])
            for piece in np.split(at, np.flatnonzero(np.diff(log.completion[at, slot])) + 1):
                number, last = int(log.completion[piece[0], slot]), int(piece[-1])
                sample = self.partial.setdefault(number, PartialSample(int(slot)))
                sample.tokens.append(log.token[piece, slot])
                sample.logprobs.append(log.logprob[piece, slot])
                sample.behavior_logprobs.append(log.behavior_logprob[piece, slot])
                if log.end[last, slot] != End.NOT:
                    ended.append((last, number, End(int(log.end[last, slot]))))
        return [(number, end) for _, number, end in sorted(ended)]

    # --- completions and turns

    def _end_turn(self, number: int, end: End) -> Sample | None:
        """End a turn: return the sample if it was the completion's last, else ask its environment."""
        sample, queued = self.partial[number], self.queue.completions[number]
        sampling = self.request.samplings[queued.prompt]
        text = sample.end_turn(partial(self._detokenize, end=end, stops=sampling.stops))
        reason = "length" if end == End.LENGTH else "stop"
        if self.request.turns is not None:
            if sample.environment is None:
                sample.environment = self.request.turns(*self.request.place(queued.prompt, queued.sample))
            try:
                observation = sample.environment.next(Action(text, reason))
            except ExecutorError as error:
                return self._finish(number, "failed", str(error))
            if observation is not None and sample.length() < sampling.longest:
                self.observations[number] = observation
                return None
            reason = reason if observation is None else "length"
        return self._finish(number, reason)

    def _detokenize(self, ids: tuple[int, ...], end: End, stops: Sequence[str]) -> str:
        """Return the text of a turn: without the token that ended it, and up to its stop string."""
        text = self.vocabulary.text(ids[:-1] if end == End.TOKEN else ids)
        return cut_after_stop(text, stops) if end == End.STRING else text

    def _finish(self, number: int, reason: str, error: str = "") -> Sample:
        """Return the sample of a finished completion, and free its slot and its prompt."""
        sample, queued = self.partial.pop(number), self.queue.completions[number]
        self.queue.finish(queued.prompt_slot)
        self.unfinished -= not self.request.is_ahead(queued.prompt)
        if self.request.turns is not None:
            self.slots_to_release.append(sample.slot)
        blank = {id(turn): (0.0,) * len(turn.token_ids) for turn in sample.turns}
        prompt_index, index = self.request.place(queued.prompt, queued.sample)
        return Sample(
            prompt_index=prompt_index,
            index=index,
            token_ids=tuple(token for turn in sample.turns for token in turn.token_ids),
            logprobs=tuple(x for turn in sample.turns for x in turn.logprobs or blank[id(turn)]),
            behavior_logprobs=tuple(x for turn in sample.turns for x in turn.behavior_logprobs or blank[id(turn)]),
            text=sample.text,
            finish_reason=reason,
            turns=tuple(sample.turns),
            error=error,
        )

    def _continue_turns(self) -> list[Sample]:
        """Note the observations that were asked for, to be appended, and release the slots of finished completions.

        All of them are waited for: what is computed together never depends on how fast SQL ran. Returns the completions
        whose observation failed.
        """
        failed = []
        for number, observation in self.observations.items():
            sample = self.partial[number]
            began = time.perf_counter()
            try:
                text = observation.result()
            except ExecutorError as error:
                failed.append(self._finish(number, "failed", str(error)))
                continue
            finally:
                waited = time.perf_counter() - began
                self.stats.sql_wait_seconds += waited
                self.stats.host_seconds -= waited
            ids = tuple(self.vocabulary.observed(text))
            # The policy needs room for a token at least; what is too long is cut, and it cannot decode much further.
            room = self.request.samplings[self.queue.completions[number].prompt].longest - sample.length() - 1
            self.to_append[number] = ids[: max(room, 0)]
            sample.turns.append(Turn(ENVIRONMENT, self.to_append[number], text=text))
            self.slot_length[sample.slot], self.known_from[sample.slot] = sample.length(), self.num_chunks + 1
        self.observations.clear()
        n = self.config.max_num_seqs
        if self.slots_to_release:
            self.slots = release_slots(self.slots, _padded(self.slots_to_release, n, n))
            self.slots_to_release = []
        return failed

    def _append(self) -> None:
        """Append tokens to the slots of their completions, which decode on in the next chunk."""
        n, most = self.config.max_num_seqs, self.config.prefill_chunk
        samples = [self.partial[number] for number in self.to_append]
        samplings = [self.request.samplings[self.queue.completions[number].prompt] for number in self.to_append]
        tokens, self.to_append = list(self.to_append.values()), {}
        ends = [min(one.length() + s.max_new_tokens, s.longest) for one, s in zip(samples, samplings, strict=True)]
        states = [self._stop_state(one, s.stops) for one, s in zip(samples, samplings, strict=True)]
        table, prompts = self.block_table.table(), self.queue.prompt_slots()
        for first in range(0, max(map(len, tokens)) or 1, most):
            pieces = [ids[first : first + most] for ids in tokens]
            left = [i for i, piece in enumerate(pieces) if piece or not first]
            for part in _batches(left, [len(piece) for piece in pieces], self.config.fits_prefill):
                x, width = self.config.prefill_shape(len(part), max(len(pieces[i]) for i in part))
                padded, length = pad_tokens([*(pieces[i] for i in part), *[()] * (x - len(part))], width)
                slot = _padded([samples[i].slot for i in part], x, n)
                max_length, stop_state = (_padded([all_[i] for i in part], x, 0) for all_ in (ends, states))
                observation = ObservationBatch(slot, padded, length, max_length, stop_state)
                self.slots = self.runner.append_observation(self.queue.weights, prompts, self.slots, table, observation)

    def _stop_state(self, sample: PartialSample, stops: tuple[str, ...]) -> int:
        """Return the state of a completion's stop strings' automaton after its current turn so far."""
        state = self.automata.first[stops]
        for token in (token for piece in sample.tokens for token in piece):
            state = int(self.automata.table[state, token])
        return state


def _batches(items: Sequence[int], lengths: Sequence[int], fits: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Cut items, the short ones first, into batches that are run at a time, as they are padded to the longest."""
    batch: list[int] = []
    for item in sorted(items, key=lambda i: lengths[i]):
        if batch and not fits(len(batch) + 1, lengths[item]):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _padded(values: Sequence[int], width: int, filler: int) -> np.ndarray:
    return np.array([*values, *[filler] * (width - len(values))], np.int32)
