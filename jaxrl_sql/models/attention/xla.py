"""Attention as plain matrix products, on any platform, with any mask.

Attention is between queries [B,R,T,…] (R rows a prompt, T tokens a row) and a list of key parts
[B,Rj,S,…] where R is a multiple of Rj: a part of one row a prompt is read by all R rows of queries *where it
stands*, by folding the rows that share it into the query axis, so each part costs one batched matrix product and
is never repeated in memory. One softmax runs over all parts together, so the result is what the concatenated
sequence would give, and plain differentiation of it is exact. (Merging separate attention calls by their
log-sum-exp is what does not differentiate in JAX's own attention.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxrl_sql.models.attention.tree import Level, Window, narrow, valid_keys
from jaxrl_sql.models.ops.token_distribution import soft_cap

# A score far below any real one, yet finite: exp(HIDDEN - floor) is 0 and its gradient is 0 and never NaN.
HIDDEN = -1e30
FLOOR = -1e29


MaskedKeys = tuple[jax.Array, jax.Array, jax.Array]
"""Keys and values of S tokens in Rj rows, and who sees them: k, v [B,Rj,K,S,Q] (heads outside tokens: a head's tokens
are one matrix); visible: bool, broadcastable to [B,Rj,X,S], where X = (R/Rj)·T query positions share a row."""


def attend_tree(
    levels: Sequence[Level], scale: float, cap: float | None, window: Window | None, products: Products | None = None
) -> tuple[jax.Array, ...]:
    """Let every level's queries attend to the levels above and to their own rows -> [B,R,T,H,Q] a level."""
    reads = (
        attend(
            level.q, [_part(other, level, other is level, window) for other in levels[: i + 1]], scale, cap, products
        )
        for i, level in enumerate(levels)
    )
    return tuple(checkpoint_name(read, "attended") for read in reads)


def _part(keys: Level, queries: Level, is_own: bool, window: Window | None) -> MaskedKeys:
    """Return a level's keys as a part that `queries` read: causally where it is their own."""
    seen = valid_keys(keys)[:, :, None]
    if is_own:
        seen &= jnp.tril(jnp.ones((keys.k.shape[3], keys.k.shape[3]), bool))
        if keys.owner is not None:
            seen &= keys.owner[..., None, :] == keys.owner[..., None]
    return keys.k, keys.v, narrow(window, seen, keys.positions, queries.positions)


def _to_rows(x: jax.Array, rows: int) -> jax.Array:
    """Unfold a statistic [B,Rj,K,M,X] into [B,R,K,M,T], where (Rj, X) = (R/ρ, ρ·T)."""
    b, part_rows, k, m, folded = x.shape
    ratio = rows // part_rows
    x = x.reshape(b, part_rows, k, m, ratio, folded // ratio)
    return jnp.moveaxis(x, 4, 2).reshape(b, rows, k, m, folded // ratio)


def _to_part(x: jax.Array, part_rows: int) -> jax.Array:
    """Fold a statistic [B,R,K,M,T] into a part's [B,Rj,K,M,X]: the inverse of `_to_rows`."""
    b, rows, k, m, t = x.shape
    ratio = rows // part_rows
    x = x.reshape(b, part_rows, ratio, k, m, t)
    return jnp.moveaxis(x, 2, 4).reshape(b, part_rows, k, m, ratio * t)


def _score(q: jax.Array, k: jax.Array) -> jax.Array:
    """Multiply queries [B,R,X,K,M,Q] with keys [B,R,K,S,Q] -> [B,R,K,M,X,S] float32."""
    return jnp.einsum("brxkmq,brksq->brkmxs", q, k, preferred_element_type=jnp.float32)


def _mix(weight: jax.Array, v: jax.Array) -> jax.Array:
    """Sum values [B,R,K,S,Q] by weights [B,R,K,M,X,S] float32 -> [B,R,X,K,M,Q] float32."""
    if v.dtype == jnp.float32:
        return jnp.einsum("brkmxs,brksq->brxkmq", weight, v)
    # In the order of the operands, and turned afterwards: XLA's CPU backend has no turned product of bfloat16.
    mixed = jnp.einsum("brkmxs,brksq->brkmxq", weight.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.moveaxis(mixed, 4, 2)


class Products(NamedTuple):
    """The two products of attention, as `_score` and `_mix` have them."""

    score: Callable[[jax.Array, jax.Array], jax.Array] = _score
    mix: Callable[[jax.Array, jax.Array], jax.Array] = _mix


def attend(
    q: jax.Array,
    parts: Sequence[MaskedKeys],
    scale: float | None = None,
    cap: float | None = None,
    products: Products | None = None,
) -> jax.Array:
    """Attend from q [B,R,T,H,Q] to every visible key of all parts under one softmax -> [B,R,T,H,Q].

    H = K·M: query head h reads key head h // M, without repeating keys. Scores are scaled (by Q**-0.5 unless said
    otherwise) and, on request, soft-capped. Scores and softmax are in float32. A query that sees no key gets zeros,
    with zero gradient.
    """
    b, rows, t, h, size = q.shape
    products = products or Products()
    scale = size**-0.5 if scale is None else scale
    kv_heads = parts[0][0].shape[2]
    m = h // kv_heads
    scores = []
    for k, _, visible in parts:
        part_rows = k.shape[1]
        score = products.score(q.reshape(b, part_rows, rows // part_rows * t, kv_heads, m, size), k)
        scores.append(jnp.where(visible[:, :, None, None], soft_cap(score * scale, cap), HIDDEN))

    tops = [_to_rows(jnp.max(lax.stop_gradient(score), axis=-1), rows) for score in scores]
    top = jnp.maximum(jnp.stack(tops).max(axis=0), FLOOR)

    total = jnp.zeros((b, rows, kv_heads, m, t), jnp.float32)
    mixed = jnp.zeros((b, rows, t, kv_heads, m, size), jnp.float32)
    for (k, v, _), score in zip(parts, scores, strict=True):
        weight = jnp.exp(score - _to_part(top, k.shape[1])[..., None])
        total += _to_rows(weight.sum(axis=-1), rows)
        mixed += products.mix(weight, v).reshape(mixed.shape)
    total = jnp.moveaxis(jnp.where(total > 0, total, 1.0), -1, 2)
    return (mixed / total[..., None]).reshape(q.shape).astype(q.dtype)
