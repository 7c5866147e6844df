"""One call of the engine: it plans and launches chunks of decode steps, reads their logs, and runs completions' turns.

A chunk is up to `chunk_steps` decode steps in one program. Its log has the sampled tokens of all slots. Prefilled
completions wait in a ring buffer, from which free slots take them without the host. A completion has a number, unique
in the call. A completion has one turn, or several turns of the policy with observations of an environment between them.

The host works one chunk behind the device: it launches the next chunk before it reads the log of the last one, so the
device never waits while the host decodes text or submits SQL. `scheduler.plan` decides what a chunk does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_sql.models.ops.truncation import Truncation
from jaxrl_sql.rollout.decode import ChunkConfig, End, StepLog, StopCriteria
from jaxrl_sql.rollout.invalid_requests import find_invalid_prompts
from jaxrl_sql.rollout.kv_blocks import BlockTable
from jaxrl_sql.rollout.model_runner import CallRunner, Continuation, ModelRunner
from jaxrl_sql.rollout.sampling import ASSISTANT, ENVIRONMENT, UNFINISHED, GenerationRequest, NotFiniteError, Sample
from jaxrl_sql.rollout.scheduler import (
    ChunkEvents,
    ChunkPlan,
    Limits,
    initial_state,
    plan,
    split_groups,
)
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.rollout.stop_strings import Vocabulary, cut_after_stop
from jaxrl_sql.rollout.token_buffer import NO_TOKENS, TokenBuffer, Tokens
from jaxrl_sql.text2sql.env.executor import ExecutorError
from jaxrl_sql.text2sql.env.turns import Action, Environment, PendingObservation
from jaxrl_sql.types import Turn


@dataclass
class PartialSample:
    """An unfinished completion of which the host has tokens.

    carried: tokens of the first turn that an earlier call sampled, until this turn ends. The call's `TokenBuffer` has
        the other tokens of the current turn.
    turns: ended turns, and observations.
    environment: None before the end of the first turn, and for single-turn completions.
    text: the policy's last ended turn.
    """

    carried: Tokens = NO_TOKENS
    turns: list[Turn] = field(default_factory=list)
    environment: Environment | None = None
    text: str = ""

    def end_turn(self, tokens: Tokens, text: str) -> None:
        """End the current turn, which has these tokens and this text."""
        self.carried, self.text = NO_TOKENS, text
        self.turns.append(Turn(ASSISTANT, *tokens, text))

    def length(self) -> int:
        """Return the number of tokens of all ended turns and observations."""
        return sum(len(turn.token_ids) for turn in self.turns)


class InFlightChunk(NamedTuple):
    """A chunk that was launched and whose log the host has not read.

    log: arrays on the device, which are ready when the chunk ends.
    number: number of the chunk in its call, from 1.
    is_after_prefill: whether the device prefills prompts before this chunk.
    """

    log: StepLog
    number: int
    is_after_prefill: bool


class EngineCall:
    """A call of the engine on the host.

    unfinished: number of samples still to be yielded, without those of the next call.
    invalid: reasons by index of each prompt that cannot be served.
    partial: unfinished completions of which the host has tokens, by completion number.
    observations: observations that environments are computing, by completion number.
    events: events since the last plan, for the next one.
    chunk_to_read, last_launched: chunks in flight; `read` waits for the first and leaves the second running.
    """

    def __init__(
        self, model_runner: ModelRunner, vocabulary: Vocabulary, request: GenerationRequest, stats: RolloutStats
    ) -> None:
        self.model_runner, self.vocabulary, self.request, self.stats = model_runner, vocabulary, request, stats
        self.automata, self.invalid = find_invalid_prompts(
            request, vocabulary, model_runner.model.config, model_runner.config
        )
        valid = [i for i in range(len(request.prompts)) if i not in self.invalid]
        carried = (request.carried_sample(i, g) for i in valid for g in range(request.samplings[i].n))
        self.finished_before = [sample for sample in carried if sample and sample.finish_reason != UNFINISHED]
        num_samples = sum(request.samplings[i].n for i in valid if not request.is_ahead(i))
        self.unfinished = num_samples - len(self.finished_before)
        self.partial: dict[int, PartialSample] = {}
        self.tokens = TokenBuffer()
        self.observations: dict[int, PendingObservation] = {}
        self.events = ChunkEvents()
        self.chunk_to_read: InFlightChunk | None = None
        self.last_launched: InFlightChunk | None = None
        self._open(valid)

    def _open(self, valid: Sequence[int]) -> None:
        """Open the KV pools for the valid prompts, and make the first state and the arrays on the device."""
        request, runner, config = self.request, self.model_runner, self.model_runner.config
        samplings = [request.samplings[i] for i in valid]
        sampled = [sampling for sampling in samplings if sampling.temperature > 0]
        chunk_config = ChunkConfig(
            model=runner.model,
            samples=bool(sampled),
            has_greedy=len(sampled) < len(samplings),
            truncation=Truncation(
                top_k=any(sampling.top_k > 0 for sampling in sampled),
                top_p=any(sampling.top_p < 1 for sampling in sampled),
                min_p=any(sampling.min_p > 0 for sampling in sampled),
            ),
            penalizes=any(sampling.repetition_penalty != 1 for sampling in samplings),
            steps=config.chunk_steps,
            missing=self.vocabulary.missing_ids(runner.model.config.vocab_size),
        )
        max_samples = max((sampling.n for sampling in samplings), default=1)
        completion = max((sampling.longest for sampling in samplings), default=1)
        groups = split_groups(request, valid, config.group_size(max_samples))
        lengths = [len(request.prompts[group.prompt].token_ids) for group in groups]
        sizes = runner.open_pools(config.sizes(lengths, max_samples, completion))
        limits = Limits(
            config.max_num_seqs, config.chunk_steps, completion, sizes.group_size,
            partial(config.fits_prefill, smallest=config.block_size),
        )  # fmt: skip
        blocks = BlockTable(config.completion_block_size, config.max_num_seqs, config.completion_pool_sizes(sizes))
        self.state = initial_state(request, groups, limits, runner.prefix_cache, blocks, sizes.prompt_slots)
        stops = StopCriteria(
            np.array(self.vocabulary.end_tokens, np.int32), self.automata.table, self.automata.is_complete
        )
        self.runner = CallRunner(
            runner, request, chunk_config, stops, self.automata.start_states, sizes, self.state.taken, self.stats
        )

    @property
    def has_work(self) -> bool:
        """Return whether there is something to decode or to read, of this call or of the next one."""
        return bool(self.state.waiting or self.chunk_to_read or len(self.state.completions) > len(self.events.finished))

    def run(self) -> Iterator[Sample]:
        """Yield the samples as they finish; each round launches a chunk, and then reads the chunk before it."""
        yield from self.ready_samples()
        while self.unfinished:
            yield from self.launch()
            yield from self.read()
        yield from self.ahead_samples()

    def ready_samples(self) -> Iterator[Sample]:
        """Yield a sample for each invalid request, and those that an earlier call finished."""
        for i, reason in self.invalid.items():
            for sample in range(self.request.samplings[i].n):
                yield Sample(*self.request.global_index(i, sample), (), (), (), "", "invalid", error=reason)
        yield from self.finished_before

    def ahead_samples(self) -> Iterator[Sample]:
        """Yield the next call's samples at the end of this call, finished or not."""
        if self.request.ahead is None:
            return
        # Read the chunk that still runs: `chunk_to_read` is the last one that was launched.
        self.last_launched = None
        yield from self.read()
        for number in sorted(self.partial):
            tokens = self.current_turn(number)
            ids, logprobs, behavior_logprobs = tokens
            turn = Turn(ASSISTANT, *tokens)
            yield Sample(*self.global_index(number), ids, logprobs, behavior_logprobs, "", UNFINISHED, (turn,))

    def global_index(self, number: int) -> tuple[int, int]:
        """Return the prompt index and sample index of a completion in the whole call, over all engines."""
        return self.request.global_index(*self.state.completions[number][:2])

    def current_turn(self, number: int) -> Tokens:
        """Return the tokens of a completion's current turn, as far as the host has read them."""
        return self.partial[number].carried.join(self.tokens.get(number))

    def launch(self) -> list[Sample]:
        """Launch the next chunk, if KV blocks suffice, and do not wait for it; return the samples that failed."""
        start_time = time.perf_counter()
        failed = self._await_observations()
        chunk, self.events = plan(self.state, self.events), ChunkEvents()
        for number in chunk.carried:
            prompt, sample, *_ = chunk.after.completions[number]
            carried: Any = self.request.carried_sample(prompt, sample)
            self.partial[number] = PartialSample(
                Tokens(*map(tuple, (carried.token_ids, carried.logprobs, carried.behavior_logprobs)))
            )
        for number in chunk.dropped:
            del self.partial[number]
            self.tokens.pop(number)
        self.unfinished -= len(chunk.dropped) + chunk.num_dropped
        self.state = chunk.after
        self.model_runner.prefix_cache = chunk.after.prefixes
        try:
            log = self.runner.execute(chunk, self._continuations(chunk))
        except BaseException:
            # A program that failed has consumed its donated pool. The prefix cache may list blocks without content.
            self.model_runner.release()
            raise
        self.last_launched = None if log is None else InFlightChunk(log, chunk.after.num_chunks, bool(chunk.prefills))
        self.stats.host_seconds += time.perf_counter() - start_time
        return failed

    def read(self) -> list[Sample]:
        """Wait for the chunk before the last launched one; return the samples whose last token is in its log."""
        chunk, self.chunk_to_read = self.chunk_to_read, self.last_launched
        try:
            return [] if chunk is None else self._read_chunk(chunk)
        except BaseException:
            # If weights have diverged, blocks contain NaN. Later calls must not read these blocks: 0 * NaN is NaN, so
            # a mask does not exclude them.
            self.model_runner.release()
            raise

    def cancel(self, prompt: int) -> None:
        """Stop the unfinished samples of a prompt: their slots and blocks are free from the next chunk on.

        Samples that wait in the ring may still be returned, with one token. Not for calls with several turns, nor for
        calls with prompts of the next call.
        """
        assert self.request.turns is None, "the environment of a multi-turn completion cannot be stopped"
        assert self.request.ahead is None, "the next call expects all samples of its prompts"
        self.events.cancelled.add(prompt)

    # --- logs

    def _read_chunk(self, chunk: InFlightChunk) -> list[Sample]:
        """Wait for a chunk and return the samples whose last token is in its log."""
        start_time = time.perf_counter()
        log: Any = jax.device_get(chunk.log)
        arrived = time.perf_counter()
        self.stats.wait_seconds += arrived - start_time
        if chunk.is_after_prefill:
            self.stats.prefill_seconds += arrived - start_time
        self.events.number, self.events.taken, self.events.lengths = chunk.number, int(log.taken), log.length
        ended = self._record(log)
        self.events.num_ended = len(ended)
        samples = [sample for number, end in ended if (sample := self._end_turn(number, end))]
        self.stats.host_seconds += time.perf_counter() - arrived
        return samples

    def _record(self, log: Any) -> list[tuple[int, End]]:
        """Add a chunk's tokens to their completions and return (number, End) of those whose turn ended, in order.

        Raises NotFiniteError if a log-probability is NaN or infinite.
        """
        contents = self.tokens.append(log)
        if not contents.is_finite:
            raise NotFiniteError(self.model_runner.cache_dtype)
        is_full = self.state.queued > self.events.taken or bool(self.state.waiting)
        self.stats.add_chunk(contents.num_steps, contents.num_tokens, is_full)
        for number in contents.numbers:
            if number not in self.partial:
                self.partial[number] = PartialSample()
        self.events.written = dict(zip(contents.numbers, contents.slots, strict=True))
        return contents.ended

    # --- completions and turns

    def _end_turn(self, number: int, end: End) -> Sample | None:
        """End a turn: return the sample if this was the completion's last turn, else start its next observation."""
        sample = self.partial[number]
        sampling = self.request.samplings[self.state.completions[number].prompt]
        tokens = sample.carried.join(self.tokens.pop(number))
        text = self._detokenize(tokens.ids, end, sampling.stop)
        sample.end_turn(tokens, text)
        reason = "length" if end == End.LENGTH else "stop"
        if self.request.turns is not None:
            if sample.environment is None:
                sample.environment = self.request.turns(*self.global_index(number))
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
        """Return the sample of a finished completion; the next plan frees its slot and, after the last, its prompt."""
        sample = self.partial.pop(number)
        self.events.finished.append(number)
        self.unfinished -= not self.request.is_ahead(self.state.completions[number].prompt)
        prompt_index, index = self.global_index(number)
        return Sample(
            prompt_index=prompt_index,
            index=index,
            token_ids=_join([turn.token_ids for turn in sample.turns]),
            logprobs=_join([turn.logprobs or _zeros(turn) for turn in sample.turns]),
            behavior_logprobs=_join([turn.behavior_logprobs or _zeros(turn) for turn in sample.turns]),
            text=sample.text,
            finish_reason=reason,
            turns=tuple(sample.turns),
            error=error,
        )

    def _await_observations(self) -> list[Sample]:
        """Wait for all pending observations and add them as turns; return the samples whose observation failed.

        The next plan appends their tokens. Because all are awaited, a chunk never depends on the speed of SQL.
        """
        failed = []
        for number, observation in self.observations.items():
            sample = self.partial[number]
            start_time = time.perf_counter()
            try:
                text = observation.result()
            except ExecutorError as error:
                failed.append(self._finish(number, "failed", str(error)))
                continue
            finally:
                waited = time.perf_counter() - start_time
                self.stats.observation_wait_seconds += waited
                self.stats.host_seconds -= waited
            # The policy needs room for a token at least, so a long observation is cut.
            longest = self.request.samplings[self.state.completions[number].prompt].longest
            ids = tuple(self.vocabulary.encode_observation(text))[: max(longest - sample.length() - 1, 0)]
            sample.turns.append(Turn(ENVIRONMENT, ids, text=text))
            self.events.observed[number] = len(ids)
        self.observations.clear()
        return failed

    def _continuations(self, chunk: ChunkPlan) -> list[Continuation]:
        """Return the tokens to append for a plan: all tokens of a resumed completion, else its last observation."""
        continued = []
        for number in chunk.appended:
            sample, sampling = self.partial[number], self.request.samplings[chunk.after.completions[number].prompt]
            ids = self.current_turn(number).ids
            ended = [turn.token_ids for turn in sample.turns]
            tokens = _join([*ended, ids]) if number in chunk.resumed else ended[-1]
            max_length = min(sample.length() + sampling.max_new_tokens, sampling.longest)
            stop_state = self.automata.start_states[tuple(sampling.stop)]
            for token in ids:
                stop_state = int(self.automata.table[stop_state, token])
            continued.append(Continuation(chunk.after.running[number], tokens, max_length, stop_state))
        return continued


def _join(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the values of all parts, as the same tuple if there is only one."""
    return parts[0] if len(parts) == 1 else tuple(chain.from_iterable(parts))


def _zeros(turn: Turn) -> tuple[float, ...]:
    """Return the log-probabilities of an observation's tokens, which the policy did not sample."""
    return (0.0,) * len(turn.token_ids)
