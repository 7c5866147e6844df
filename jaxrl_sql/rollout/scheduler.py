"""The scheduler of one call: it launches chunks of decode steps, reads their logs, and runs the turns of completions.

The host works one chunk behind the device: it launches the next chunk before it reads the log of the last one, so the
device never waits while the host decodes text or hands SQL on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_sql.batch import bucket, pad_tokens
from jaxrl_sql.models.paged import BlockMap
from jaxrl_sql.rollout.decode import (
    ChunkConfig,
    End,
    ObservationBatch,
    StepLog,
    StopCriteria,
    empty_slots,
    release_slots,
)
from jaxrl_sql.rollout.kv_blocks import BlockTable, OutOfBlocksError, block_owner
from jaxrl_sql.rollout.model_runner import ModelRunner
from jaxrl_sql.rollout.prefill_queue import PrefillQueue
from jaxrl_sql.rollout.sampling import ASSISTANT, ENVIRONMENT, GenerationRequest, Sample
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.rollout.stop_strings import Stops, Vocabulary, cut_after_stop, make_stops
from jaxrl_sql.sqlenv.executor import ExecutorError
from jaxrl_sql.sqlenv.turns import Action, Environment, PendingObservation
from jaxrl_sql.types import Turn


@dataclass
class PartialSample:
    """What has been read of a completion: its slot, the pieces of its current turn, and the turns before."""

    slot: int = -1
    tokens: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    behavior_logprobs: list[np.ndarray] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    environment: Environment | None = None
    text: str = ""

    def end_turn(self, detokenize: Callable[[tuple[int, ...]], str]) -> str:
        """End the current turn and return its text."""
        pieces = (self.tokens, self.logprobs, self.behavior_logprobs)
        ids, logprobs, behavior_logprobs = (tuple(np.concatenate(piece).tolist()) for piece in pieces)
        for piece in pieces:
            piece.clear()
        self.text = detokenize(ids)
        self.turns.append(Turn(ASSISTANT, ids, logprobs, behavior_logprobs, self.text))
        return self.text

    def length(self) -> int:
        """Return the tokens of all ended turns."""
        return sum(len(turn.token_ids) for turn in self.turns)


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
        self.config, self.params = runner.config, runner.params
        stops, self.refused = self._find_refused()
        self.stops = StopCriteria(np.array(vocabulary.end_tokens, np.int32), stops.table, stops.found)
        served = [i for i in range(len(request.prompts)) if i not in self.refused]
        samplings = [request.samplings[i] for i in served]
        self.unfinished = sum(sampling.n for sampling in samplings)
        self.longest = max((sampling.longest for sampling in samplings), default=1)
        self.chunk_config = ChunkConfig(
            model=runner.model,
            samples=any(sampling.temperature > 0 for sampling in samplings),
            truncates=any(sampling.truncates for sampling in samplings),
            penalizes=any(sampling.repetition_penalty != 1 for sampling in samplings),
            steps=self.config.chunk_steps,
        )
        self.queue = PrefillQueue(runner, request, served, stops.first, stats)
        self.partial: dict[int, PartialSample] = {}
        self.observations: dict[int, PendingObservation] = {}
        self.slots_to_release: list[int] = []
        self._open_slots()

    def _find_refused(self) -> tuple[Stops, dict[int, str]]:
        """Return the automata of all stop strings, and the reason for each request that cannot be served."""
        config, samplings = self.runner.model.config, self.request.samplings
        refused: dict[int, str] = {}
        for i, (prompt, sampling) in enumerate(zip(self.request.prompts, samplings, strict=True)):
            have = len(prompt.token_ids)
            if not have or have + sampling.longest > config.max_positions:
                refused[i] = (
                    f"prompt {prompt.uid}: {have} tokens and {sampling.longest} new ones need 1 to "
                    f"{config.max_positions} positions (max_positions)"
                )
            elif not all(0 <= token < config.vocab_size for token in prompt.token_ids):
                refused[i] = f"prompt {prompt.uid}: a token id is none of the model's {config.vocab_size}"
        wanted = [sampling.stops for sampling in samplings]
        stops, never = make_stops(wanted, self.vocabulary.token_bytes if any(wanted) else [], config.vocab_size)
        return stops, {i: never[strings] for i, strings in enumerate(wanted) if strings in never} | refused

    def _open_slots(self) -> None:
        """Make the decode slots on the device, and the table of their blocks."""
        n, sizes = self.config.max_num_seqs, self.queue.sizes
        num_blocks = self.runner.reserve_completions(sizes.completion_blocks if self.config.max_prompt_bucket else n)
        self.slots = empty_slots(
            self.runner.model.config, n, sizes.prompt_slots, sizes.group_size, self.runner.cache_dtype,
            self.chunk_config.penalizes,
        )  # fmt: skip
        self.block_table = BlockTable(self.config.completion_block_size, n, sizes.completion_columns, num_blocks)
        self.slot_length = np.zeros(n, np.int64)
        self.known_from = np.zeros(n, np.int64)
        self.recently_ended = max(n // 3 + 1, 1)
        self.num_chunks = 0
        self._is_finite = True

    def run(self) -> Iterator[Sample]:
        """Yield the samples as they finish; the chunk that is read is always the one before the last launched."""
        for i, reason in self.refused.items():
            for index in range(self.request.samplings[i].n):
                yield Sample(i, index, (), (), (), "", "refused", error=reason)
        before = None
        while self.unfinished:
            began = time.perf_counter()
            failed = self._continue_turns()
            # What ends while two chunks run must find the next completions there.
            want = min(max(3 * self.recently_ended, self.queue.sizes.group_size), 2 * self.config.max_num_seqs)
            is_after_prefill = self.queue.admit(want)
            launched = self._launch_chunk(is_after_prefill)
            self.stats.host_seconds += time.perf_counter() - began
            yield from failed
            if before is not None:
                yield from self._read_chunk(before)
            before = launched

    def close(self) -> None:
        """Give back what the call still holds (its caller may have stopped early).

        Weights that have diverged leave numbers in the blocks that no later call may read, not even masked.
        """
        self.queue.close()
        if not self._is_finite:
            self.runner.reset_pools()

    # --- chunks

    def _reserve_blocks(self) -> BlockMap:
        """Reserve blocks for all that slots may write until the host looks again, and return their map."""
        reach = np.minimum(self.slot_length + 2 * self.config.chunk_steps, self.longest)
        try:
            self.block_table.reserve(reach)
        except OutOfBlocksError as full:
            self.block_table.grow(self.runner.grow_completion_pool(full.missing))
            self.block_table.reserve(reach)
        table = self.block_table.table()
        return BlockMap(table, *block_owner(table, self.block_table.num_blocks, self.block_table.block_size))

    def _launch_chunk(self, is_after_prefill: bool) -> InFlightChunk:
        """Launch the next chunk, without waiting for it."""
        self.num_chunks += 1
        self.slots, log = self.runner.decode(
            self.params, self.chunk_config, self.queue.prompt_slots(), self.slots, self._reserve_blocks(),
            self.queue.request_ring(), self.stops,
        )  # fmt: skip
        self.stats.chunks += 1
        return InFlightChunk(log, self.num_chunks, is_after_prefill)

    def _read_chunk(self, chunk: InFlightChunk) -> Iterator[Sample]:
        """Wait for a chunk and yield the samples that are finished with it."""
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
        yield from samples

    def _record(self, log: Any) -> list[tuple[int, End]]:
        """Add a chunk's tokens to their completions -> those whose turn ended, in the order in which they did."""
        live = log.completion >= 0
        steps, written = int(live.any(axis=1).sum()), int(live.sum())
        self._is_finite &= bool(np.isfinite(log.logprob[live]).all())
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
                sample.environment = self.request.turns(queued.prompt, queued.sample)
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
        text = self.vocabulary.tokenizer.decode(ids[:-1] if end == End.TOKEN else ids, skip_special_tokens=False)
        return cut_after_stop(text, stops) if end == End.STRING else text

    def _finish(self, number: int, reason: str, error: str = "") -> Sample:
        """Return the sample of a finished completion, and free its slot and its prompt."""
        sample, queued = self.partial.pop(number), self.queue.completions[number]
        self.queue.finish(queued.prompt_slot)
        self.unfinished -= 1
        if self.request.turns is not None:
            self.slots_to_release.append(sample.slot)
        blank = {id(turn): (0.0,) * len(turn.token_ids) for turn in sample.turns}
        return Sample(
            prompt_index=queued.prompt,
            index=queued.sample,
            token_ids=tuple(token for turn in sample.turns for token in turn.token_ids),
            logprobs=tuple(x for turn in sample.turns for x in turn.logprobs or blank[id(turn)]),
            behavior_logprobs=tuple(x for turn in sample.turns for x in turn.behavior_logprobs or blank[id(turn)]),
            text=sample.text,
            finish_reason=reason,
            turns=tuple(sample.turns),
            error=error,
        )

    def _continue_turns(self) -> list[Sample]:
        """Release the slots of finished completions, and append every observation that was asked for to its slot.

        All of them are waited for: what is computed together never depends on how fast SQL ran. Returns the completions
        whose observation failed.
        """
        n = self.config.max_num_seqs
        if self.slots_to_release:
            self.slots = release_slots(self.slots, _padded(self.slots_to_release, n, n))
            self.slots_to_release = []
        tokens: dict[int, tuple[int, ...]] = {}
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
            ids = tuple(self.vocabulary.tokenizer.encode(text, add_special_tokens=False))
            # The policy needs room for a token at least; what is too long is cut, and it cannot decode much further.
            room = self.request.samplings[self.queue.completions[number].prompt].longest - sample.length() - 1
            tokens[number] = ids[: max(room, 0)]
            sample.turns.append(Turn(ENVIRONMENT, tokens[number], text=text))
        self.observations.clear()
        if tokens:
            self._append_observations(tokens)
        return failed

    def _append_observations(self, tokens: dict[int, tuple[int, ...]]) -> None:
        """Append observations to their slots, which decode on in the next chunk."""
        n = self.config.max_num_seqs
        slots = [self.partial[number].slot for number in tokens]
        lengths = [self.partial[number].length() for number in tokens]
        samplings = [self.request.samplings[self.queue.completions[number].prompt] for number in tokens]
        self.slot_length[slots] = lengths
        self.known_from[slots] = self.num_chunks + 1
        table = self._reserve_blocks().table
        ends = [min(have + s.max_new_tokens, s.longest) for have, s in zip(lengths, samplings, strict=True)]
        prompts = self.queue.prompt_slots()
        most = self.config.prefill_chunk
        for first in range(0, max(map(len, tokens.values()), default=0) or 1, most):
            pieces = [ids[first : first + most] for ids in tokens.values()]
            left = [i for i, piece in enumerate(pieces) if piece or not first]
            for part in _batches(left, [len(piece) for piece in pieces], self.config.fits_prefill):
                x, width = self.config.prefill_shape(len(part), max(len(pieces[i]) for i in part))
                padded, length = pad_tokens([*(pieces[i] for i in part), *[()] * (x - len(part))], width)
                slot, max_length = _padded([slots[i] for i in part], x, n), _padded([ends[i] for i in part], x, 0)
                observation = ObservationBatch(slot, padded, length, max_length)
                self.slots = self.runner.append_observation(self.params, prompts, self.slots, table, observation)


def _batches(items: Sequence[int], lengths: Sequence[int], fits: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Cut items, the short ones first, into batches that are run at a time, as they are padded to the longest."""
    batch: list[int] = []
    for item in sorted(items, key=lambda i: lengths[i]):
        if batch and not fits(len(batch) + 1, (1 << len(batch).bit_length()) * bucket(lengths[item])):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _padded(values: Sequence[int], width: int, filler: int) -> np.ndarray:
    return np.array([*values, *[filler] * (width - len(values))], np.int32)
