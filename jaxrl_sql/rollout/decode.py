"""The engine's jitted programs: decode slots, which take the next completion from a ring when the current one ends.

A chunk of steps runs without the host. Its tokens are returned as a log with one row per step and the number of each
token's completion. So no slot reserves space for a maximum length, and a slot starts its next completion in the next
step.

A completion has a number, unique in the call. Completions that wait for a slot are in a ring buffer, at their number
modulo its size. A prompt slot holds a prefilled prompt, and a group is the completions of a prompt slot. KV blocks are
pieces of the KV cache with a fixed number of tokens.

Array letters: N decode slots, E prompt slots, G completions per group, A automaton states, V vocabulary, D width of the
model, T tokens of a row, J blocks of a row, X entries of an argument. An index that is out of range marks padding:
writes to it are dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.models import ModelConfig, paged, unembed
from jaxrl_sql.models.ops import rng
from jaxrl_sql.models.ops.token_distribution import IdRanges, SamplingMetadata, sample_tokens, without_ids
from jaxrl_sql.models.ops.truncation import Truncation
from jaxrl_sql.models.paged import BlockMap, KVPool, PagedCache, PagedModel, PagedPrefix, SlotMap
from jaxrl_sql.parallel.rules import constrain


class SlotState(IntEnum):
    """State of a decode slot: free, decoding a completion, or paused until an observation arrives."""

    FREE = 0
    RUNNING = 1
    PAUSED = 2


class End(IntEnum):
    """Whether and why a turn of a completion ended with a token: an end token, a stop string, or its maximum length."""

    NOT = 0
    TOKEN = 1
    STRING = 2
    LENGTH = 3


class ChunkConfig(NamedTuple):
    """The static arguments of a chunk of decode steps.

    samples, has_greedy: whether any completion is sampled, and whether any is greedy (temperature 0).
    truncation: which of top-k, top-p and min-p any completion uses.
    penalizes: whether any completion has a repetition penalty.
    steps: most decode steps of the chunk.
    missing: half-open ranges of ids without a token, which are never sampled.
    """

    model: PagedModel
    samples: bool
    has_greedy: bool
    truncation: Truncation
    penalizes: bool
    steps: int
    missing: IdRanges = ()

    @property
    def sampling_flags(self) -> dict[str, Any]:
        """The static arguments of `sample_tokens`."""
        return {"truncation": self.truncation, "samples": self.samples, "has_greedy": self.has_greedy}


@flax.struct.dataclass
class DecodeRequest:
    """Completions to decode, [X] each.

    completion: number in the call (-1: none).
    prompt_slot, group_index: slot of the prompt, and index in the slot's group.
    max_length: maximum number of tokens, of all turns so far.
    start_state: initial state of the automaton of its stop strings.
    pauses: whether the slot pauses at the end of a turn, so that the host can append an observation.
    key [X,2] uint32: random key.
    sampling: temperature and limits of the distribution.
    """

    completion: jax.Array
    prompt_slot: jax.Array
    group_index: jax.Array
    max_length: jax.Array
    start_state: jax.Array
    pauses: jax.Array
    key: jax.Array
    sampling: SamplingMetadata


class RequestRing(NamedTuple):
    """A ring buffer of requests, each at its completion's number modulo the size; slots take numbers below `tail`."""

    requests: DecodeRequest
    tail: Any


class StopCriteria(NamedTuple):
    """End tokens token_ids [X], and the automata that find stop strings (`stop_strings.Stops`).

    table [A,V]: next state by state and token; is_complete [A]: whether a stop string is complete.
    """

    token_ids: Any
    table: Any
    is_complete: Any


@flax.struct.dataclass
class DecodeSlots:
    """N decode slots.

    request: the completion of each slot.
    state [N]: SlotState.
    length [N]: tokens of the completion.
    stop_state [N]: state of the stop automaton.
    hidden [N,D]: hidden state that predicts the next token.
    seen [N,V] bool: whether a token occurs in prompt or completion; None if no completion has a repetition penalty.
    group_slots [E,G]: decode slot of the g-th completion of each prompt slot; N: none.
    taken: number of the next completion to be taken from the ring.
    """

    request: DecodeRequest
    state: jax.Array
    length: jax.Array
    stop_state: jax.Array
    hidden: jax.Array
    seen: jax.Array | None
    group_slots: jax.Array
    taken: jax.Array


class DecodeState(NamedTuple):
    """The state that decoding updates: the pool of completions' KV blocks, and the slots."""

    pool: KVPool
    slots: DecodeSlots


@flax.struct.dataclass
class PromptSlots:
    """E slots of prefilled prompts.

    blocks: KV blocks; length [E]: tokens; hidden [E,D]: hidden state that predicts the first token of a completion;
    seen [E,V] bool: whether a token occurs in the prompt (or None).
    """

    blocks: BlockMap
    length: jax.Array
    hidden: jax.Array
    seen: jax.Array | None


class PrefillChunk(NamedTuple):
    """The next tokens of X prompts: tokens [X,T] with valid length [X].

    start [X]: position of the first token in its prompt. table [X,J]: the prompts' KV blocks. prompt_slot [X]: slot for
    the prompt's last hidden state; out of range if the prompt continues in a later chunk.
    """

    tokens: Any
    length: Any
    start: Any
    table: Any
    prompt_slot: Any


class ObservationBatch(NamedTuple):
    """Tokens to append to paused slots [X]: tokens [X,T] with valid length [X].

    max_length [X]: new maximum length of the completion. stop_state [X]: new state of its stop automaton. Slots out of
    range are ignored.
    """

    slot: Any
    tokens: Any
    length: Any
    max_length: Any
    stop_state: Any


@flax.struct.dataclass
class StepLog:
    """The output of a chunk of steps.

    [steps,N] each: number of the completion (-1: none), token, log-probabilities under the full distribution and under
    the truncated distribution that was sampled from (behavior_logprob), end (End). After the chunk: length [N] of the
    slots' completions, and `taken`, the number of the next completion to be taken from the ring.
    """

    completion: jax.Array
    token: jax.Array
    logprob: jax.Array
    behavior_logprob: jax.Array
    end: jax.Array
    length: jax.Array
    taken: jax.Array


_Carry = tuple[jax.Array, DecodeState, tuple[jax.Array, ...]]
"""The state of a chunk's loop: number of steps so far, state of decoding, columns of the log."""


def empty_request(count: int, full: Callable[..., Any] = np.full) -> DecodeRequest:
    """Return `count` empty requests, as NumPy arrays; with `full=jnp.full`, as JAX arrays."""
    sampling = SamplingMetadata(
        temperature=full(count, 1, np.float32),
        top_k=full(count, 0, np.int32),
        top_p=full(count, 1, np.float32),
        min_p=full(count, 0, np.float32),
        repetition_penalty=full(count, 1, np.float32),
    )
    return DecodeRequest(
        completion=full(count, -1, np.int32),
        prompt_slot=full(count, 0, np.int32),
        group_index=full(count, 0, np.int32),
        max_length=full(count, 0, np.int32),
        start_state=full(count, 0, np.int32),
        pauses=full(count, False, bool),
        key=full((count, 2), 0, np.uint32),
        sampling=sampling,
    )


@partial(jax.jit, static_argnames=("config", "slots", "prompt_slots", "group_size", "dtype", "penalizes"))
def empty_slots(
    config: ModelConfig, slots: int, prompt_slots: int, group_size: int, dtype: Any, penalizes: bool, taken: int = 0
) -> DecodeSlots:
    """Return free slots; `taken` is the number of the first completion in the ring."""
    empty = DecodeSlots(
        request=empty_request(slots, jnp.full),
        state=jnp.full(slots, SlotState.FREE, jnp.int32),
        length=jnp.zeros(slots, jnp.int32),
        stop_state=jnp.zeros(slots, jnp.int32),
        hidden=jnp.zeros((slots, config.d_model), dtype),
        seen=jnp.zeros((slots, config.vocab_size), bool) if penalizes else None,
        group_slots=jnp.full((prompt_slots, group_size), slots, jnp.int32),
        taken=jnp.asarray(taken, jnp.int32),
    )
    return _constrain_slots(empty)


@partial(jax.jit, static_argnames=("config", "prompt_slots", "dtype", "penalizes"))
def empty_prompt_states(
    config: ModelConfig, prompt_slots: int, dtype: Any, penalizes: bool
) -> tuple[jax.Array, jax.Array | None]:
    """Return the hidden states [E,D] and seen tokens [E,V] (or None) of empty prompt slots."""
    hidden = constrain(jnp.zeros((prompt_slots, config.d_model), dtype), ("batch", "none"))
    seen = constrain(jnp.zeros((prompt_slots, config.vocab_size), bool), ("none", "none")) if penalizes else None
    return hidden, seen


def _take_requests(slots: DecodeSlots, ring: RequestRing, prompts: PromptSlots) -> DecodeSlots:
    """Assign the next completions of the ring to free slots, in order."""
    free = slots.state == SlotState.FREE
    number = slots.taken + jnp.cumsum(free) - 1
    takes = free & (number < ring.tail)
    ring_index = number % ring.requests.completion.shape[0]

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        """Return the old values with the new values in the slots that take a completion."""
        return jnp.where(takes.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    request = jax.tree.map(lambda old, queued: put(old, queued[ring_index]), slots.request, ring.requests)
    # Out of range for slots that take nothing.
    prompt_slot = jnp.where(takes, request.prompt_slot, slots.group_slots.shape[0])
    group_slots = slots.group_slots.at[prompt_slot, request.group_index].set(jnp.arange(free.shape[0]), mode="drop")
    return DecodeSlots(
        request=request,
        state=jnp.where(takes, SlotState.RUNNING, slots.state),
        length=put(slots.length, jnp.zeros_like(slots.length)),
        stop_state=put(slots.stop_state, request.start_state),
        hidden=put(slots.hidden, prompts.hidden[request.prompt_slot]),
        seen=None if slots.seen is None or prompts.seen is None else put(slots.seen, prompts.seen[request.prompt_slot]),
        group_slots=group_slots,
        taken=slots.taken + jnp.sum(takes),
    )


def _empty_log(shape: tuple[int, int]) -> tuple[jax.Array, ...]:
    """Return the columns of an empty log, [steps,N] each: completion, token, two log-probabilities, end (`StepLog`)."""
    zeros = (jnp.zeros(shape, dtype) for dtype in (jnp.int32, jnp.float32, jnp.float32, jnp.int32))
    return jnp.full(shape, -1, jnp.int32), *zeros


def _find_ends(
    slots: DecodeSlots, token: jax.Array, is_running: jax.Array, stops: StopCriteria
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return length, stop state and End of all slots after their next token, [N] each.

    An end token takes precedence over a stop string, and both over the maximum length.
    """
    length = slots.length + is_running
    stop_state = stops.table[slots.stop_state, token].astype(jnp.int32)
    stop_state = jnp.where(is_running, stop_state, slots.stop_state)
    end = jnp.where(length >= slots.request.max_length, End.LENGTH, End.NOT)
    end = jnp.where(stops.is_complete[stop_state], End.STRING, end)
    end = jnp.where(jnp.isin(token, stops.token_ids), End.TOKEN, end)
    return length, stop_state, jnp.where(is_running, end, End.NOT)


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def decode_chunk(
    params: Any,
    config: ChunkConfig,
    prompt_pool: KVPool,
    prompts: PromptSlots,
    state: DecodeState,
    blocks: BlockMap,
    ring: RequestRing,
    stops: StopCriteria,
) -> tuple[DecodeState, StepLog]:
    """Decode up to `config.steps` tokens in every slot; `blocks` are the completions' KV blocks.

    The loop ends early if no slot is running and none can take a completion. The log is not donated, so the host can
    read it while the next chunk runs. A token's random key derives from its completion's key and its index there.
    """
    n = state.slots.state.shape[0]
    prompt_cache = PagedCache(prompt_pool, prompts.blocks)

    def decode_step(state: DecodeState) -> tuple[DecodeState, tuple[jax.Array, ...]]:
        slots = _take_requests(state.slots, ring, prompts)
        request, seen = slots.request, slots.seen
        logits = without_ids(unembed(params, config.model.config, slots.hidden), config.missing)
        keys = jax.vmap(rng.fold)(jax.random.wrap_key_data(request.key), slots.length)
        sampled = sample_tokens(keys, logits, request.sampling, seen, **config.sampling_flags)
        is_running = slots.state == SlotState.RUNNING
        length, stop_state, end = _find_ends(slots, sampled.token, is_running, stops)
        state_after_end = jnp.where(request.pauses, SlotState.PAUSED, SlotState.FREE)
        slot_state = jnp.where(end != End.NOT, state_after_end, slots.state)
        slot_map = SlotMap(slots.group_slots, request.prompt_slot, request.group_index, prompts.length)
        # Later tokens attend to this token, unless its completion has ended. A paused completion may continue.
        writes_kv = is_running & (slot_state != SlotState.FREE)
        hidden, pool = paged.decode_tokens(
            params, config.model, prompt_cache, PagedCache(state.pool, blocks), slot_map, sampled.token, slots.length,
            writes_kv,
        )  # fmt: skip
        # A slot that pauses needs this hidden state too: after an empty observation it predicts the next token.
        hidden = jnp.where(writes_kv[:, None], hidden.astype(slots.hidden.dtype), slots.hidden)
        if seen is not None:
            seen = seen.at[jnp.arange(n), sampled.token].max(is_running)
        completion = jnp.where(is_running, request.completion, -1)
        slots = dataclasses.replace(
            slots, state=slot_state, length=length, stop_state=stop_state, hidden=hidden, seen=seen
        )
        return DecodeState(pool, slots), (completion, *sampled, end)

    def body(carry: _Carry) -> _Carry:
        count, state, log = carry
        state, row = decode_step(state)
        return count + 1, state, tuple(x.at[count].set(y) for x, y in zip(log, row, strict=True))

    def has_work(carry: _Carry) -> jax.Array:
        count, (_, slots), _ = carry
        may_take = jnp.any(slots.state == SlotState.FREE) & (slots.taken < ring.tail)
        return (count < config.steps) & (jnp.any(slots.state == SlotState.RUNNING) | may_take)

    start = (jnp.zeros((), jnp.int32), state, _empty_log((config.steps, n)))
    _, (pool, slots), log = jax.lax.while_loop(has_work, body, start)
    # Every process reads the full log, so it is replicated.
    replicated = (constrain(jnp.copy(x), ("none",) * x.ndim) for x in (*log, slots.length, slots.taken))
    return DecodeState(pool, _constrain_slots(slots)), StepLog(*replicated)


def _constrain_slots(slots: DecodeSlots) -> DecodeSlots:
    """Constrain shardings, so that outputs match inputs: hidden states are split by slots, the rest is replicated."""
    constrained = jax.tree.map(lambda x: constrain(x, ("none",) * x.ndim), slots)
    return dataclasses.replace(constrained, hidden=constrain(slots.hidden, ("batch", "none")))


@partial(jax.jit, static_argnames=("model", "has_past"), donate_argnames=("pool", "hidden"))
def prefill_chunk(
    params: Any, model: PagedModel, pool: KVPool, hidden: jax.Array, chunk: PrefillChunk, has_past: bool
) -> tuple[KVPool, jax.Array]:
    """Compute the next tokens of X prompts and write their KV blocks (`paged.prefill_prompts`).

    hidden [E,D] gets the last hidden state of each prompt that is complete. has_past: whether any of the prompts has
    earlier tokens in its blocks, from the prefix cache or an earlier chunk.
    """
    past = PagedPrefix(pool, chunk.table, chunk.start)
    last, pool = paged.prefill_prompts(params, model, past, chunk.tokens, chunk.length, has_past)
    hidden = hidden.at[chunk.prompt_slot].set(last.astype(hidden.dtype), mode="drop")
    return pool, constrain(hidden, ("batch", "none"))


@partial(jax.jit, static_argnames="model", donate_argnames="state")
def append_observation(
    params: Any,
    model: PagedModel,
    prompt_pool: KVPool,
    prompts: PromptSlots,
    state: DecodeState,
    table: jax.Array,
    observation: ObservationBatch,
) -> DecodeState:
    """Append tokens to paused slots and resume them up to their new maximum length; table [N,J] has their blocks."""
    (pool, slots), (slot, tokens, length, max_length, stop_state) = state, observation
    prompt_slot, old_length, old_hidden = (
        x.at[slot].get(mode="clip") for x in (slots.request.prompt_slot, slots.length, slots.hidden)
    )
    hidden, pool = paged.extend_completions(
        params,
        model,
        PagedPrefix(prompt_pool, prompts.blocks.table[prompt_slot], prompts.length[prompt_slot]),
        PagedPrefix(pool, table.at[slot].get(mode="fill", fill_value=pool.num_blocks), old_length),
        tokens,
        length,
    )

    def put(array: jax.Array, values: jax.Array | int) -> jax.Array:
        return array.at[slot].set(values, mode="drop")

    seen = slots.seen
    if seen is not None:
        column = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], tokens, seen.shape[1])
        seen = seen.at[slot[:, None], column].set(True, mode="drop")
    new = dataclasses.replace(
        slots,
        request=dataclasses.replace(slots.request, max_length=put(slots.request.max_length, max_length)),
        state=put(slots.state, SlotState.RUNNING),
        length=put(slots.length, old_length + length),
        stop_state=put(slots.stop_state, stop_state),
        hidden=put(slots.hidden, jnp.where(length[:, None] > 0, hidden.astype(slots.hidden.dtype), old_hidden)),
        seen=seen,
    )
    return DecodeState(pool, _constrain_slots(new))


@partial(jax.jit, donate_argnames="slots")
def release_slots(slots: DecodeSlots, slot: jax.Array) -> DecodeSlots:
    """Free slots [X] of finished or preempted completions; slots out of range are ignored."""
    return _constrain_slots(dataclasses.replace(slots, state=slots.state.at[slot].set(SlotState.FREE, mode="drop")))


@partial(jax.jit, donate_argnames="slots")
def resume_requests(slots: DecodeSlots, slot: jax.Array, requests: DecodeRequest, prompts: PromptSlots) -> DecodeSlots:
    """Put requests [X] into free slots [X], paused before their first token; slots out of range are ignored.

    Their earlier tokens are then appended like an observation (`append_observation`).
    """
    prompt = requests.prompt_slot

    def put(array: jax.Array, values: Any) -> jax.Array:
        return array.at[slot].set(values, mode="drop")

    # Out of range for padding.
    prompt_slot = jnp.where(slot < slots.state.shape[0], prompt, slots.group_slots.shape[0])
    new = dataclasses.replace(
        slots,
        request=jax.tree.map(put, slots.request, requests),
        state=put(slots.state, SlotState.PAUSED),
        length=put(slots.length, 0),
        stop_state=put(slots.stop_state, requests.start_state),
        hidden=put(slots.hidden, prompts.hidden[prompt]),
        seen=None if slots.seen is None or prompts.seen is None else put(slots.seen, prompts.seen[prompt]),
        group_slots=slots.group_slots.at[prompt_slot, requests.group_index].set(slot, mode="drop"),
    )
    return _constrain_slots(new)


@partial(jax.jit, donate_argnames="seen")
def mark_seen(seen: jax.Array, prompt_slot: jax.Array, tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Set seen [E,V] of the prompts in prompt_slot [X] to their tokens [X,T] with valid length [X]."""
    column = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], tokens, seen.shape[1])
    marked = jnp.zeros((prompt_slot.shape[0], seen.shape[1]), bool)
    marked = marked.at[jnp.arange(prompt_slot.shape[0])[:, None], column].set(True, mode="drop")
    return seen.at[prompt_slot].set(marked, mode="drop")


@jax.jit
def on_devices(tree: Any) -> Any:
    """Copy the host's arrays to every device."""
    return jax.tree.map(lambda x: constrain(jnp.asarray(x), ("none",) * x.ndim), tree)


copy_blocks = jax.jit(paged.copy_blocks, donate_argnames="target")
new_pool = jax.jit(paged.init_pool, static_argnames=("config", "num_blocks", "block_size", "dtype"))
grow_keys = jax.jit(paged.grow_keys, static_argnames="num_blocks")
