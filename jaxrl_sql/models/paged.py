"""Decoding from pages: keys and values stay where they stand, and queries go to them.

Keys and values live in pools of pages, C tokens each. A *shared* page belongs to a lane, the prompt of up to G rows
that decode; an *own* page belongs to one row. A step sends each row's query to the pages it reads: every page is
multiplied with the queries of its readers, a small part of the softmax comes back, and each row merges the parts of
its pages under one maximum. So a prompt's keys are neither copied for its samples nor gathered into a row, and what
is reserved follows the lengths there are, a page at a time.

Differentiation is not meant here: the trainer scores completions with `transformer.prediction_states`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.attention.paged import POOL, Reach, Read, Score, attend_pages
from jaxrl_sql.models.attention.tree import narrow
from jaxrl_sql.models.attention.xla import KeyPart, attend
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.models.transformer import (
    Kind,
    Layer,
    angles_of,
    embed,
    finish,
    heads,
    last_state,
    norm,
    place,
    scale_of,
    window_of,
)
from jaxrl_sql.parallel.rules import constrain


@flax.struct.dataclass
class Pool:
    """Pages of keys and values: k, v L times [Y,K,C,Q]."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]

    @property
    def pages(self) -> int:
        """Return Y, the number of pages."""
        return self.k[0].shape[0]

    @property
    def page_size(self) -> int:
        """Return C, the tokens of a page."""
        return self.k[0].shape[2]


@flax.struct.dataclass
class Pages:
    """Which pages stand behind whom, and the way back; a number beyond the last one stands for none.

    table [X,J] int32: the pages of lane or row X, in order; owner [Y] int32: the lane or row of each page;
    start [Y] int32: the place of a page's first token among its owner's.
    """

    table: jax.Array
    owner: jax.Array
    start: jax.Array


@flax.struct.dataclass
class Readers:
    """Who reads which prompt, E lanes and N rows.

    rows [E,G] int32: the row that reads a lane as its g-th reader (N: none); lane, reader [N] int32: the same from the
    row's side; length [E] int32: the tokens of each lane's prompt.
    """

    rows: jax.Array
    lane: jax.Array
    reader: jax.Array
    length: jax.Array


def init_pool(config: ModelConfig, pages: int, page_size: int, dtype: Any) -> Pool:
    """Make a pool of empty pages; on a mesh, pages are split over the batch's axes and heads over `tensor`."""
    shape = (pages, config.n_kv_heads, page_size, config.head_dim)
    halves = [tuple(constrain(jnp.zeros(shape, dtype), POOL) for _ in range(config.n_layers)) for _ in range(2)]
    return Pool(*halves)


def grow_pool(pool: Pool, pages: int) -> Pool:
    """Return a pool of `pages` pages that begins with those of `pool`."""

    def more(x: jax.Array) -> jax.Array:
        return constrain(jnp.pad(x, ((0, pages - x.shape[0]), (0, 0), (0, 0), (0, 0))), POOL)

    return jax.tree.map(more, pool)


def copy_pages(source: Pool, pages: jax.Array, target: Pool, places: jax.Array) -> Pool:
    """Copy pages [X] int32 of a pool to places [X] of another; a place beyond its last page takes nothing."""

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        return constrain(new.at[places].set(old.at[pages].get(mode="clip"), mode="drop"), POOL)

    return jax.tree.map(copy, source, target)


def _kinds(config: ModelConfig) -> Sequence[Kind]:
    """Return for each layer whether it sees a sliding window."""
    return config.sliding.layers if config.sliding else (False,) * config.n_layers


def _near(config: ModelConfig, kind: Kind, reach: Reach) -> jax.Array:
    """Return what readers see of their pages in a layer: all that is there [Y,1,C], or a window of it [Y,G,C]."""
    if config.sliding is None or not kind:
        return reach.visible
    return reach.visible & (reach.queries[..., None] - reach.keys[:, None] < config.sliding.size)


def reach_shared(pages: Pages, readers: Readers, positions: jax.Array, size: int) -> Reach:
    """Return who reads which pages of prompts, `size` tokens each, for rows at positions [N]."""
    keys = pages.start[:, None] + jnp.arange(size)
    length = readers.length.at[pages.owner].get(mode="fill", fill_value=0)
    rows = readers.rows.at[pages.owner].get(mode="clip")
    return Reach(
        owner=_held_by(pages, size),
        readers=rows,
        visible=(keys < length[:, None])[:, None],
        keys=keys,
        queries=positions.at[rows].get(mode="clip"),
        source=readers.lane,
        place=readers.reader,
        table=pages.table.at[readers.lane].get(mode="clip"),
        owners=pages.table.shape[0],
    )


def reach_own(pages: Pages, length: jax.Array, prompt: jax.Array, positions: jax.Array, size: int) -> Reach:
    """Return who reads which pages of rows that hold length [N] tokens after prompts of so many."""
    index = pages.start[:, None] + jnp.arange(size)
    there = length.at[pages.owner].get(mode="fill", fill_value=0)
    rows = pages.owner[:, None]
    return Reach(
        owner=_held_by(pages, size),
        readers=rows,
        visible=(index < there[:, None])[:, None],
        keys=prompt.at[rows].get(mode="clip") + index,
        queries=positions.at[rows].get(mode="clip"),
        source=jnp.arange(length.shape[0]),
        place=jnp.zeros_like(length),
        table=pages.table,
        owners=pages.table.shape[0],
    )


def _held_by(pages: Pages, size: int) -> jax.Array:
    """Return whose the pages are [Y]; X, nobody's, where the owner's table has no such page (any more)."""
    at = pages.table.at[pages.owner, pages.start // size].get(mode="fill", fill_value=-1)
    return jnp.where(at == jnp.arange(pages.owner.shape[0]), pages.owner, pages.table.shape[0])


def decode_rows(
    params: PyTree,
    config: ModelConfig,
    shared: Pool,
    own: Pool,
    lanes: Pages,
    rows: Pages,
    readers: Readers,
    token: jax.Array,
    length: jax.Array,
    active: jax.Array,
    compute_dtype: Any = None,
) -> tuple[jax.Array, Pool]:
    """Append one token [N] to each active row -> the states [N,D] that predict the next, and the rows' pool.

    length [N] int32 are the tokens that a row's own pages hold, before this one, which is written at that place; the
    host has put a page there. An inactive row, and one whose page is none, writes nothing, and its state means nothing.
    """
    prompt = readers.length.at[readers.lane].get(mode="clip")
    where = place(config, (prompt + length)[:, None, None])
    positions = where.positions[:, 0, 0]
    size = own.page_size
    page = jnp.take_along_axis(rows.table, (length // size)[:, None], axis=1, mode="clip")[:, 0]
    page = jnp.where(active & (length // size < rows.table.shape[1]), page, own.pages)
    reach = (
        reach_shared(lanes, readers, positions, shared.page_size),
        reach_own(rows, length + active, prompt, positions, size),
    )
    x = embed(params, config, token[:, None, None], compute_dtype)
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    for i, kind in enumerate(_kinds(config)):
        layer = jax.tree.map(operator.itemgetter(i), params["layers"])
        q, k, v = heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(kind, where))
        for kept, new, pool in ((keys, k, own.k[i]), (values, v, own.v[i])):
            written = pool.at[page, :, length % size].set(new[:, 0, :, 0].astype(pool.dtype), mode="drop")
            kept.append(constrain(written, POOL))
        q = q.reshape(q.shape[0], config.n_kv_heads, -1, config.head_dim)
        pools = (shared.k[i], shared.v[i]), (keys[i], values[i])
        reads = [Read(*kv, one, _near(config, kind, one)) for kv, one in zip(pools, reach, strict=True)]
        attended = attend_pages(q, reads, Score(scale_of(config), config.attn_score_cap)).astype(x.dtype)
        attended = attended.reshape(x.shape[0], 1, 1, config.n_heads, config.head_dim)
        x = finish(layer, config, x, attended)
    hidden = norm(config, x[:, 0, 0], params["final_norm"])
    return hidden, Pool(k=tuple(keys), v=tuple(values))


Past = Callable[[int, Kind], list[KeyPart]]
Keep = Callable[[int, jax.Array, jax.Array], None]


def _extend(
    params: PyTree,
    config: ModelConfig,
    tokens: jax.Array,
    length: jax.Array,
    start: jax.Array,
    past: Past,
    keep: Keep,
    dtype: Any,
) -> jax.Array:
    """Run tokens [X,T] with lengths [X] that begin at positions start [X] after what `past` gives -> last states [X,D].

    `past(layer, kind)` gives the key parts that stand before; `keep(layer, k, v)` takes the new [X,K,T,Q].
    """
    t = tokens.shape[1]
    positions = (start[:, None] + jnp.arange(t))[:, None]
    where = place(config, positions)
    causal = (jnp.arange(t) < length[:, None])[:, None, None] & jnp.tril(jnp.ones((t, t), bool))
    x = embed(params, config, tokens[:, None], dtype)
    for i, kind in enumerate(_kinds(config)):
        layer: Layer = jax.tree.map(operator.itemgetter(i), params["layers"])
        q, k, v = heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(kind, where))
        keep(i, k[:, 0], v[:, 0])
        own = KeyPart(k, v, narrow(window_of(config, kind), causal, positions, positions))
        attended = attend(q, [*past(i, kind), own], scale_of(config), config.attn_score_cap)
        x = finish(layer, config, x, attended)
    return last_state(norm(config, x[:, 0], params["final_norm"]), length)


def _gathered(
    config: ModelConfig,
    halves: tuple[Sequence[jax.Array], Sequence[jax.Array]],
    table: jax.Array,
    length: jax.Array,
    first: jax.Array,
    queries: jax.Array,
) -> Past:
    """Return `past` for pages: table [X,J], of which length [X] tokens count, the first at position first [X].

    `halves` are a pool's keys and values by layer, looked at when a layer is: with what has been written into them, or
    the pool as it was would have to be kept beside. Here keys are gathered, [X,K,J·C,Q] a layer: a stretch of queries
    pays for that, a single one would not.
    """
    x, j = table.shape
    index = jnp.arange(j * halves[0][0].shape[2])
    there = (index < length[:, None])[:, None, None]
    keys = (first[:, None] + index)[:, None]

    def parts(i: int, kind: Kind) -> list[KeyPart]:
        k, v = (
            jnp.moveaxis(half[i].at[table].get(mode="clip"), 2, 1).reshape(x, 1, config.n_kv_heads, -1, config.head_dim)
            for half in halves
        )
        return [KeyPart(k, v, narrow(window_of(config, kind), there, keys, queries))]

    return parts


def _positions(start: jax.Array, tokens: jax.Array) -> jax.Array:
    return (start[:, None] + jnp.arange(tokens.shape[1]))[:, None]


def prefill_pages(
    params: PyTree,
    config: ModelConfig,
    pool: Pool,
    tokens: jax.Array,
    length: jax.Array,
    start: jax.Array,
    table: jax.Array,
    has_past: bool,
    compute_dtype: Any = None,
) -> tuple[jax.Array, Pool]:
    """Run a stretch of X prompts, tokens [X,T] of which length [X] count -> last states [X,D], and the shared pool.

    T and `start` [X], where the stretch begins, are multiples of a page; table [X,J] are the prompts' pages.
    `has_past` (static) says that some stretch is not its prompt's first and so sees what was written before.
    """
    size = pool.page_size
    count = tokens.shape[1] // size
    stretch = start[:, None] // size + jnp.arange(count)
    ids = jnp.take_along_axis(table, stretch, axis=1, mode="fill", fill_value=pool.pages)
    ids = jnp.where(jnp.arange(count) * size < length[:, None], ids, pool.pages).reshape(-1)
    keys, values = list(pool.k), list(pool.v)

    def keep(i: int, k: jax.Array, v: jax.Array) -> None:
        for halves, new in ((keys, k), (values, v)):
            cut = new.reshape(new.shape[0], new.shape[1], count, size, new.shape[3])
            cut = jnp.moveaxis(cut, 2, 1).reshape(-1, new.shape[1], size, new.shape[3])
            halves[i] = constrain(halves[i].at[ids].set(cut.astype(halves[i].dtype), mode="drop"), POOL)

    past = _gathered(config, (keys, values), table, start, jnp.zeros_like(start), _positions(start, tokens))
    hidden = _extend(
        params, config, tokens, length, start, past if has_past else lambda *_: [], keep, compute_dtype
    )  # fmt: skip
    return hidden, Pool(k=tuple(keys), v=tuple(values))


def extend_rows(
    params: PyTree,
    config: ModelConfig,
    shared: Pool,
    own: Pool,
    prompt_table: jax.Array,
    prompt_length: jax.Array,
    table: jax.Array,
    held: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
    compute_dtype: Any = None,
) -> tuple[jax.Array, Pool]:
    """Append tokens [X,T], of which length [X] count, to X rows -> last states [X,D], and the rows' pool.

    prompt_table [X,J] and prompt_length [X] are their prompts', table [X,J'] their own pages, which hold `held` [X]
    tokens already and reach far enough for the new ones.
    """
    size = own.page_size
    index = held[:, None] + jnp.arange(tokens.shape[1])
    page = jnp.take_along_axis(table, index // size, axis=1, mode="fill", fill_value=own.pages)
    page = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], page, own.pages)
    keys, values = list(own.k), list(own.v)

    def keep(i: int, k: jax.Array, v: jax.Array) -> None:
        for halves, new in ((keys, k), (values, v)):
            by_token = jnp.moveaxis(new, 2, 1).astype(halves[i].dtype)
            halves[i] = constrain(halves[i].at[page, :, index % size].set(by_token, mode="drop"), POOL)

    start = prompt_length + held
    queries = _positions(start, tokens)
    before = _gathered(config, (shared.k, shared.v), prompt_table, prompt_length, jnp.zeros_like(held), queries)
    mine = _gathered(config, (keys, values), table, held, prompt_length, queries)
    hidden = _extend(
        params, config, tokens, length, start, lambda i, kind: before(i, kind) + mine(i, kind), keep, compute_dtype
    )  # fmt: skip
    return hidden, Pool(k=tuple(keys), v=tuple(values))
