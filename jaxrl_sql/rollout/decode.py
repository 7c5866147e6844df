"""The jitted part of the engine: rows that decode, and take the next answer from a ring when theirs has ended.

A chunk of steps runs without the host. What each row wrote leaves as a log, a line a step, which names the answer that
a token belongs to; so no row holds room for a longest answer, and a row goes on with another answer in the next step.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql.models import ModelConfig, paged, unembed
from jaxrl_sql.models.paged import Pages, Pool, Readers
from jaxrl_sql.ops import rng, token_distribution
from jaxrl_sql.ops.token_distribution import Drawing
from jaxrl_sql.parallel.rules import constrain


class State(IntEnum):
    """Of a row: it may take an answer, it writes one, or its answer waits for the host to go on (several turns)."""

    FREE = 0
    OPEN = 1
    PAUSED = 2


class End(IntEnum):
    """How an answer, or a turn of it, ended with a token."""

    NOT = 0
    TOKEN = 1
    STRING = 2
    LENGTH = 3


class Features(NamedTuple):
    """What the rows of a call need (static): draws at all, leaves tokens out, penalises repetition."""

    samples: bool
    truncates: bool
    penalizes: bool


@flax.struct.dataclass
class Request:
    """Answers to be written, [X] each.

    number: of the answer in the call (-1: none); lane, reader: the prompt, and as which of its readers; limit: length
    at which it ends; first: the state of its stop strings' automaton; pause: whether an end waits for the host;
    key [X,2] uint32: its random numbers; how: its token_distribution.
    """

    number: jax.Array
    lane: jax.Array
    reader: jax.Array
    limit: jax.Array
    first: jax.Array
    pause: jax.Array
    key: jax.Array
    how: Drawing


@flax.struct.dataclass
class Rows:
    """N rows and what they are doing.

    request: the answer of each; state [N] (State); length [N] tokens in its own pages; matched [N]: state of its stop
    automaton; hidden [N,D] predicts its next token; seen [N,V] bool: tokens that stand in its text (or None);
    readers [E,G]: the row that reads each lane as its g-th; head: answers taken from the ring so far.
    """

    request: Request
    state: jax.Array
    length: jax.Array
    matched: jax.Array
    hidden: jax.Array
    seen: jax.Array | None
    readers: jax.Array
    head: jax.Array


@flax.struct.dataclass
class Lanes:
    """Prompts that are ready: pages, length [E], state [E,D] that predicts the first token, seen [E,V] bool or None."""

    pages: Pages
    length: jax.Array
    hidden: jax.Array
    seen: jax.Array | None


@flax.struct.dataclass
class Log:
    """What a chunk wrote, [steps,N] each (number -1: nothing), and how it left the rows, [N] each, and the ring."""

    number: jax.Array
    token: jax.Array
    full: jax.Array
    drawn: jax.Array
    end: jax.Array
    row_number: jax.Array
    row_length: jax.Array
    row_state: jax.Array
    head: jax.Array


_Carried = tuple[jax.Array, Rows, Pool, tuple[jax.Array, ...]]


def empty_request(count: int) -> Request:
    """Return a request of `count` places that hold no answer."""

    def filled(value: float, dtype: Any) -> jax.Array:
        return jnp.full(count, value, dtype)

    how = Drawing(
        temperature=filled(1, jnp.float32),
        top_k=filled(0, jnp.int32),
        top_p=filled(1, jnp.float32),
        min_p=filled(0, jnp.float32),
        penalty=filled(1, jnp.float32),
    )
    return Request(
        number=filled(-1, jnp.int32),
        lane=filled(0, jnp.int32),
        reader=filled(0, jnp.int32),
        limit=filled(0, jnp.int32),
        first=filled(0, jnp.int32),
        pause=filled(0, bool),
        key=jnp.zeros((count, 2), jnp.uint32),
        how=how,
    )


@partial(jax.jit, static_argnames=("config", "rows", "lanes", "readers", "dtype", "penalizes"))
def empty_rows(config: ModelConfig, rows: int, lanes: int, readers: int, dtype: Any, penalizes: bool) -> Rows:
    """Return rows of which none has an answer."""
    empty = Rows(
        request=empty_request(rows),
        state=jnp.full(rows, State.FREE, jnp.int32),
        length=jnp.zeros(rows, jnp.int32),
        matched=jnp.zeros(rows, jnp.int32),
        hidden=jnp.zeros((rows, config.d_model), dtype),
        seen=jnp.zeros((rows, config.vocab_size), bool) if penalizes else None,
        readers=jnp.full((lanes, readers), rows, jnp.int32),
        head=jnp.zeros((), jnp.int32),
    )
    return _pinned(empty)


@partial(jax.jit, static_argnames=("config", "lanes", "dtype", "penalizes"))
def empty_lanes(config: ModelConfig, lanes: int, dtype: Any, penalizes: bool) -> tuple[jax.Array, jax.Array | None]:
    """Return the states and seen tokens of lanes that no prompt is in."""
    hidden = constrain(jnp.zeros((lanes, config.d_model), dtype), ("batch", "none"))
    return hidden, constrain(jnp.zeros((lanes, config.vocab_size), bool), ("none", "none")) if penalizes else None


def _take(rows: Rows, ring: Request, tail: jax.Array, lanes: Lanes) -> Rows:
    """Give free rows the next answers of the ring, in order; those between head and tail are there."""
    free = rows.state == State.FREE
    item = rows.head + jnp.cumsum(free) - 1
    takes = free & (item < tail)
    place = item % ring.number.shape[0]

    def choose(mine: jax.Array, others: jax.Array) -> jax.Array:
        return jnp.where(takes.reshape(-1, *[1] * (mine.ndim - 1)), others, mine)

    request = jax.tree.map(lambda mine, all_: choose(mine, all_[place]), rows.request, ring)
    lane = jnp.where(takes, request.lane, rows.readers.shape[0])
    return Rows(
        request=request,
        state=jnp.where(takes, State.OPEN, rows.state),
        length=choose(rows.length, jnp.zeros_like(rows.length)),
        matched=choose(rows.matched, request.first),
        hidden=choose(rows.hidden, lanes.hidden[request.lane]),
        seen=None if rows.seen is None or lanes.seen is None else choose(rows.seen, lanes.seen[request.lane]),
        readers=rows.readers.at[lane, request.reader].set(jnp.arange(free.shape[0]), mode="drop"),
        head=rows.head + jnp.sum(takes),
    )


@partial(jax.jit, static_argnames=("config", "features", "steps", "dtype"), donate_argnames=("own", "rows"))
def decode_chunk(
    params: Any,
    config: ModelConfig,
    shared: Pool,
    own: Pool,
    lanes: Lanes,
    own_pages: Pages,
    rows: Rows,
    ring: Request,
    tail: jax.Array,
    stop_ids: jax.Array,
    stops: tuple[jax.Array, jax.Array],
    features: Features,
    steps: int,
    dtype: Any = None,
) -> tuple[Pool, Rows, Log]:
    """Write up to `steps` tokens in every row: the ring holds answers up to `tail`; stop_ids [X]; stops: table, found.

    The log outlives the donated rows, so that the host reads it while the next chunk runs. A token's key is folded from
    its answer's key and its place, and so does not depend on the row.
    """
    n = rows.state.shape[0]
    table, found = stops
    shape = (steps, n)
    blank = tuple(jnp.zeros(shape, kind) for kind in (jnp.int32, jnp.float32, jnp.float32, jnp.int32))

    def write(rows: Rows, own: Pool) -> tuple[Rows, Pool, tuple[jax.Array, ...]]:
        rows = _take(rows, ring, tail, lanes)
        request = rows.request
        logits = unembed(params, config, rows.hidden)
        keys = jax.vmap(rng.fold)(jax.random.wrap_key_data(request.key), rows.length)
        draw = token_distribution.draw(keys, logits, request.how, rows.seen, features.truncates, features.samples)
        is_open = rows.state == State.OPEN
        length = rows.length + is_open
        matched = jnp.where(is_open, table[rows.matched, draw.token].astype(jnp.int32), rows.matched)
        end = jnp.where(length >= request.limit, End.LENGTH, End.NOT)
        end = jnp.where(found[matched], End.STRING, end)
        end = jnp.where(jnp.isin(draw.token, stop_ids), End.TOKEN, end)
        end = jnp.where(is_open, end, End.NOT)
        ended = jnp.where(request.pause, State.PAUSED, State.FREE)
        state = jnp.where(end != End.NOT, ended, rows.state)
        readers = Readers(rows.readers, request.lane, request.reader, lanes.length)
        # What a paused answer ended with stays in its text, so its key and value are written too.
        goes_on = is_open & (state != State.FREE)
        hidden, own = paged.decode_rows(
            params, config, shared, own, lanes.pages, own_pages, readers, draw.token, rows.length, goes_on, dtype
        )
        # A row that pauses keeps the state after its last token: an empty observation adds nothing to it.
        hidden = jnp.where(goes_on[:, None], hidden.astype(rows.hidden.dtype), rows.hidden)
        seen = rows.seen
        if seen is not None:
            seen = seen.at[jnp.arange(n), draw.token].max(is_open)
        line = (jnp.where(is_open, request.number, -1), draw.token, draw.full_logprob, draw.drawn_logprob, end)
        new = dataclasses.replace(rows, state=state, length=length, matched=matched, hidden=hidden, seen=seen)
        return new, own, line

    def body(carried: _Carried) -> _Carried:
        count, rows, own, log = carried
        rows, own, line = write(rows, own)
        return count + 1, rows, own, tuple(x.at[count].set(y) for x, y in zip(log, line, strict=True))

    def proceed(carried: _Carried) -> jax.Array:
        count, rows, _, _ = carried
        has_work = jnp.any(rows.state == State.OPEN) | (jnp.any(rows.state == State.FREE) & (rows.head < tail))
        return (count < steps) & has_work

    start = (jnp.zeros((), jnp.int32), rows, own, (jnp.full(shape, -1, jnp.int32), *blank))
    _, rows, own, log = jax.lax.while_loop(proceed, body, start)
    left = (rows.request.number, rows.length, rows.state, rows.head)
    # Every process reads all of the log, so it is whole on each device.
    whole = (constrain(jnp.copy(x), ("none",) * x.ndim) for x in (*log, *left))
    return own, _pinned(rows), Log(*whole)


def _pinned(rows: Rows) -> Rows:
    """Pin the rows to the mesh, so that they leave a call as they came: states over what splits a batch, else whole."""
    pinned = jax.tree.map(lambda x: constrain(x, ("none",) * x.ndim), rows)
    return dataclasses.replace(pinned, hidden=constrain(rows.hidden, ("batch", "none")))


@partial(jax.jit, static_argnames=("config", "has_past", "dtype"), donate_argnames=("shared", "hidden"))
def prefill_lanes(
    params: Any,
    config: ModelConfig,
    shared: Pool,
    hidden: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
    start: jax.Array,
    table: jax.Array,
    lane: jax.Array,
    has_past: bool,
    dtype: Any = None,
) -> tuple[Pool, jax.Array]:
    """Run a stretch of X prompts (`paged.prefill_pages`) and put their last states into hidden [E,D] at lane [X].

    A lane beyond the last one is none: so where a prompt's end is still to come.
    """
    last, shared = paged.prefill_pages(params, config, shared, tokens, length, start, table, has_past, dtype)
    return shared, constrain(hidden.at[lane].set(last.astype(hidden.dtype), mode="drop"), ("batch", "none"))


@partial(jax.jit, static_argnames=("config", "dtype"), donate_argnames=("own", "rows"))
def go_on(
    params: Any,
    config: ModelConfig,
    shared: Pool,
    own: Pool,
    lanes: Lanes,
    own_table: jax.Array,
    rows: Rows,
    row: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
    limit: jax.Array,
    dtype: Any = None,
) -> tuple[Pool, Rows]:
    """Append observations, tokens [X,T] of which length [X] count, to paused rows [X] and open them up to limit [X].

    A row beyond the last one is none.
    """
    lane, held, before = (x.at[row].get(mode="clip") for x in (rows.request.lane, rows.length, rows.hidden))
    hidden, own = paged.extend_rows(
        params, config, shared, own, lanes.pages.table[lane], lanes.length[lane],
        own_table.at[row].get(mode="fill", fill_value=own.pages), held, tokens, length, dtype,
    )  # fmt: skip

    def put(array: jax.Array, values: jax.Array | int) -> jax.Array:
        return array.at[row].set(values, mode="drop")

    seen = rows.seen
    if seen is not None:
        column = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], tokens, seen.shape[1])
        seen = seen.at[row[:, None], column].set(True, mode="drop")
    new = dataclasses.replace(
        rows,
        request=dataclasses.replace(rows.request, limit=put(rows.request.limit, limit)),
        state=put(rows.state, State.OPEN),
        length=put(rows.length, held + length),
        matched=put(rows.matched, rows.request.first.at[row].get(mode="clip")),
        hidden=put(rows.hidden, jnp.where(length[:, None] > 0, hidden.astype(rows.hidden.dtype), before)),
        seen=seen,
    )
    return own, _pinned(new)


@partial(jax.jit, donate_argnames="rows")
def let_go(rows: Rows, row: jax.Array) -> Rows:
    """Free paused rows [X], whose answers are complete; a row beyond the last one is none."""
    return _pinned(dataclasses.replace(rows, state=rows.state.at[row].set(State.FREE, mode="drop")))


@partial(jax.jit, donate_argnames="seen")
def mark_seen(seen: jax.Array, lane: jax.Array, tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Mark in seen [E,V] the tokens [X,P], of which length [X] count, that stand in the prompts of lane [X]."""
    column = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], tokens, seen.shape[1])
    marked = jnp.zeros((lane.shape[0], seen.shape[1]), bool)
    marked = marked.at[jnp.arange(lane.shape[0])[:, None], column].set(True, mode="drop")
    return seen.at[lane].set(marked, mode="drop")


@partial(jax.jit, donate_argnames="target")
def copy_pages(source: Pool, pages: jax.Array, target: Pool, places: jax.Array) -> Pool:
    """Copy pages from pool to pool, as `paged.copy_pages`."""
    return paged.copy_pages(source, pages, target, places)


@partial(jax.jit, static_argnames=("config", "pages", "page_size", "dtype"))
def new_pool(config: ModelConfig, pages: int, page_size: int, dtype: Any) -> Pool:
    """Make a pool, as `paged.init_pool`."""
    return paged.init_pool(config, pages, page_size, dtype)


@partial(jax.jit, static_argnames="pages")
def grow_pool(pool: Pool, pages: int) -> Pool:
    """Make a larger pool, as `paged.grow_pool`."""
    return paged.grow_pool(pool, pages)
