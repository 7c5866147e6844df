"""The softmax of rows that decode over pages: every page gives its readers a part, and a row merges its pages' parts.

On one device each row fetches the parts of its pages. Where a mesh splits the pages, that would bring every page's
parts to every chip; there a chip first merges what its own pages say to each row, and one part a row and chip is added
up, as blockwise attention merges its blocks (Liu et al. 2023, "Ring attention", arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_sql.models.attention.xla import FLOOR, HIDDEN
from jaxrl_sql.ops.token_distribution import soft_cap
from jaxrl_sql.parallel.rules import RULES, split_of

POOL = ("batch", "kv_heads", "none", "head")


class Score(NamedTuple):
    """How a query and a key score: their product times `scale`, squeezed under `cap` where there is one."""

    scale: float
    cap: float | None


@flax.struct.dataclass
class Reach:
    """Who reads the pages of a pool in one step: Y pages of X owners (prompts, or rows), and N rows.

    owner [Y] int32: whose a page is (X: nobody's); readers [Y,G] int32: the rows that may read it; visible [Y,1,C]
    bool: its keys that are there; keys [Y,C], queries [Y,G] int32: positions in the sequence. From the row's side:
    source [N] int32, the owner that it reads, place [N] int32, as which of its readers, and table [N,J] int32, which
    pages those are (Y: none). owners: X.
    """

    owner: jax.Array
    readers: jax.Array
    visible: jax.Array
    keys: jax.Array
    queries: jax.Array
    source: jax.Array
    place: jax.Array
    table: jax.Array
    owners: int = flax.struct.field(pytree_node=False)


class Read(NamedTuple):
    """One layer of a pool that is read: k, v [Y,K,C,Q], who reads it, and what of it they see, [Y,1,C] or [Y,G,C]."""

    k: jax.Array
    v: jax.Array
    reach: Reach
    visible: jax.Array


class _Part(NamedTuple):
    """A part of some softmax: its highest score, its weights' sum, and its mixed values: [X,…], [X,…], [X,…,Q] f32."""

    top: jax.Array
    total: jax.Array
    mixed: jax.Array


def attend_pages(q: jax.Array, reads: Sequence[Read], score: Score) -> jax.Array:
    """Let the queries [N,K,M,Q] of rows attend to all pages that they read -> [N,K,M,Q] f32; zeros where nothing is."""
    mesh = jax.sharding.get_abstract_mesh()
    if all(split_of(mesh, ("batch",), read.k.shape[:1])[0] for read in reads):
        return _across(mesh, q, reads, score)
    merged = _along([_fetch(_give(q, *read, score), read.reach) for read in reads])
    return _mixed(merged.total, merged.mixed)


def _give(q: jax.Array, k: jax.Array, v: jax.Array, reach: Reach, visible: jax.Array, score: Score) -> _Part:
    """Return what pages k, v [Y,K,C,Q] give to their readers [Y,G]: [Y,K,G,M] and [Y,K,G,M,Q]."""
    asked = q.at[reach.readers].get(mode="clip")
    y, g, heads, m, size = asked.shape
    folded = jnp.moveaxis(asked, 2, 1).reshape(y, heads, g * m, size)
    found = jnp.einsum("ykxq,ykcq->ykxc", folded, k, preferred_element_type=jnp.float32)
    found = soft_cap(found * score.scale, score.cap).reshape(y, heads, g, m, k.shape[2])
    found = jnp.where(visible[:, None, :, None], found, HIDDEN)
    top = jnp.maximum(found.max(axis=-1), FLOOR)
    weight = jnp.exp(found - top[..., None])
    flat = weight.astype(v.dtype).reshape(y, heads, g * m, -1)
    mixed = jnp.einsum("ykxc,ykcq->ykxq", flat, v, preferred_element_type=jnp.float32)
    return _Part(top, weight.sum(axis=-1), mixed.reshape(y, heads, g, m, size))


def _fetch(part: _Part, reach: Reach) -> _Part:
    """Bring the parts of each row's pages to it, [N,J,K,M,…]; nothing where no page is."""
    there = (reach.table < part.top.shape[0])[..., None, None]
    top, total, mixed = (x.at[reach.table, :, reach.place[:, None]].get(mode="clip") for x in part)
    return _Part(jnp.where(there, top, FLOOR), jnp.where(there, total, 0.0), mixed)


def _along(parts: Sequence[_Part]) -> _Part:
    """Merge parts [N,J,K,M,…] along J, and one another -> [N,K,M,…]."""
    top = jnp.max(jnp.concatenate([part.top for part in parts], axis=1), axis=1, keepdims=True)
    total = jnp.zeros(top.shape[:1] + top.shape[2:], jnp.float32)
    mixed = jnp.zeros((*total.shape, parts[0].mixed.shape[-1]), jnp.float32)
    for part in parts:
        # A page that is none has no total; its weight has to go too, or what was fetched in its place would count.
        weight = jnp.where(part.total > 0, jnp.exp(part.top - top), 0.0)
        total += jnp.sum(part.total * weight, axis=1)
        mixed += jnp.sum(jnp.where(weight[..., None] > 0, part.mixed * weight[..., None], 0.0), axis=1)
    return _Part(top[:, 0], total, mixed)


def _mixed(total: jax.Array, mixed: jax.Array) -> jax.Array:
    return mixed / jnp.where(total > 0, total, 1.0)[..., None]


def _across(mesh: Any, q: jax.Array, reads: Sequence[Read], score: Score) -> jax.Array:
    """Do the same on a mesh that splits all pools: a chip's own pages first, then one part of each row a chip."""
    batch = RULES["batch"].mesh_axes
    by_page = split_of(mesh, POOL, reads[0].k.shape)
    # Too few key heads to split: the queries of each are split, if their number allows it.
    heads = (by_page[1], None) if by_page[1] else (None, split_of(mesh, ("heads",), q.shape[2:3])[0])
    by_row = split_of(mesh, ("batch",), q.shape[:1])[0]

    def here(q: jax.Array, local: Sequence[Read]) -> jax.Array:
        given = [_by_row(_give(q, *read, score), read.reach) for read in local]
        mine = _along([_Part(*(x[:, None] for x in part)) for part in given])
        weight = jnp.exp(mine.top - lax.pmax(mine.top, batch))
        total, mixed = mine.total * weight, mine.mixed * weight[..., None]
        if by_row:
            meet = partial(lax.psum_scatter, axis_name=batch, scatter_dimension=0, tiled=True)
        else:
            meet = partial(lax.psum, axis_name=batch)
        return _mixed(meet(total), meet(mixed))

    pages: Any = jax.P(by_page[0])
    keys: Any = jax.P(by_page[0], by_page[1])
    whole: Any = jax.P()
    by_page_or_row = {"owner": pages, "readers": pages, "visible": pages, "keys": pages, "queries": pages}
    by_page_or_row |= {"source": whole, "place": whole, "table": whole}
    places = [Read(keys, keys, replace(read.reach, **by_page_or_row), pages) for read in reads]
    split = jax.shard_map(
        here,
        mesh=mesh,
        in_specs=(jax.P(None, *heads), places),
        out_specs=jax.P(by_row, *heads),
        check_vma=False,
    )
    return split(q, list(reads))


def _by_row(part: _Part, reach: Reach) -> _Part:
    """Merge what a chip's pages give by their owners, and fetch it by row -> [N,K,M,…]; nothing where it has none.

    Sums over an owner's pages are products with a matrix that says whose they are: adding them up one by one would
    take its time, and on a GPU another order each time.
    """
    top, total, mixed = (jnp.moveaxis(x, 2, 1) for x in part)  # [Y,G,K,M,…]
    there = min(reach.owners + 1, top.shape[0])  # owners with a page here, at most; nobody may be one
    owners, which = jnp.unique(reach.owner, return_inverse=True, size=there, fill_value=reach.owners)
    best = jnp.full((there, *top.shape[1:]), FLOOR, jnp.float32).at[which].max(top)
    weight = jnp.where(total > 0, jnp.exp(top - best[which]), 0.0)
    whose = (which[:, None] == jnp.arange(there)).astype(jnp.float32)
    exact: Any = {"precision": lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    mixed = jnp.where(weight[..., None] > 0, mixed * weight[..., None], 0.0)
    added = (jnp.einsum("yu,y...->u...", whose, x, **exact) for x in (total * weight, mixed))
    at = jnp.minimum(jnp.searchsorted(owners, reach.source), there - 1)
    found = (owners[at] == reach.source)[:, None, None]
    top, total, mixed = (x[at, reach.place] for x in (best, *added))
    return _Part(jnp.where(found, top, FLOOR), jnp.where(found, total, 0.0), mixed)
