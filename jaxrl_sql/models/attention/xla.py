"""Attention as plain matrix products, for all platforms and masks.

Queries [B,R,T,…] (R rows per prompt, T tokens per row) attend to a list of key parts [B,Rj,S,…] where R is a multiple
of Rj. The query rows that share a row of keys are folded into its query axis, so each part takes one batched matrix
product and its keys are not repeated in memory. One softmax covers all parts, so the result equals attention over the
concatenated sequence, and automatic differentiation is exact. (JAX's own attention does not differentiate through the
log-sum-exp that merging separate calls needs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel, narrow, valid_keys
from jaxrl_sql.models.ops.token_distribution import soft_cap

# Score of a masked key: finite, so that exp(MASKED_SCORE - MIN_ROW_MAX) and its gradient are 0 and not NaN.
MASKED_SCORE = -1e30
MIN_ROW_MAX = -1e29


MaskedKeys = tuple[jax.Array, jax.Array, jax.Array]
"""Keys and values of S tokens in Rj rows, and their mask: k, v [B,Rj,K,S,Q] (heads outside tokens: a head's tokens
are one matrix); visible: bool, broadcastable to [B,Rj,X,S] for the X = (R/Rj)·T queries of a row."""


def attend_tree(
    levels: Sequence[TreeLevel],
    scale: float,
    cap: float | None,
    window: AttentionWindow | None,
    products: MatrixProducts | None = None,
) -> tuple[jax.Array, ...]:
    """Attend from each level's queries to the levels above and to their own rows -> [B,R,T,H,Q] per level."""
    outputs = (
        attend(
            level.q,
            [_masked_keys(other, level, other is level, window) for other in levels[: i + 1]],
            scale,
            cap,
            products,
        )
        for i, level in enumerate(levels)
    )
    return tuple(checkpoint_name(output, "attended") for output in outputs)


def _masked_keys(keys: TreeLevel, queries: TreeLevel, is_own: bool, window: AttentionWindow | None) -> MaskedKeys:
    """Return a level's keys with their mask for `queries`, causal if `is_own`."""
    visible = valid_keys(keys)[:, :, None]
    if is_own:
        visible &= jnp.tril(jnp.ones((keys.k.shape[3], keys.k.shape[3]), bool))
        if keys.owner is not None:
            visible &= keys.owner[..., None, :] == keys.owner[..., None]
    return keys.k, keys.v, narrow(window, visible, keys.positions, queries.positions)


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
    # Transposed afterwards, because XLA's CPU backend has no transposing product of bfloat16.
    mixed = jnp.einsum("brkmxs,brksq->brkmxq", weight.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.moveaxis(mixed, 4, 2)


class MatrixProducts(NamedTuple):
    """The two matrix products of attention, with the signatures of `_score` and `_mix`."""

    score: Callable[[jax.Array, jax.Array], jax.Array] = _score
    mix: Callable[[jax.Array, jax.Array], jax.Array] = _mix


def attend(
    q: jax.Array,
    parts: Sequence[MaskedKeys],
    scale: float | None = None,
    cap: float | None = None,
    products: MatrixProducts | None = None,
) -> jax.Array:
    """Attend from q [B,R,T,H,Q] to the visible keys of all parts with one softmax -> [B,R,T,H,Q].

    H = K·M: query head h reads key head h // M, without repeating keys. Scores are multiplied by `scale` (default
    Q**-0.5) and soft-capped if `cap` is not None. Scores and softmax are in float32. A query without visible keys gets
    zeros and zero gradient.
    """
    b, rows, t, h, size = q.shape
    products = products or MatrixProducts()
    scale = size**-0.5 if scale is None else scale
    kv_heads = parts[0][0].shape[2]
    m = h // kv_heads
    scores = []
    for k, _, visible in parts:
        part_rows = k.shape[1]
        score = products.score(q.reshape(b, part_rows, rows // part_rows * t, kv_heads, m, size), k)
        scores.append(jnp.where(visible[:, :, None, None], soft_cap(score * scale, cap), MASKED_SCORE))

    row_maxima = [_to_rows(jnp.max(lax.stop_gradient(score), axis=-1), rows) for score in scores]
    row_max = jnp.maximum(jnp.stack(row_maxima).max(axis=0), MIN_ROW_MAX)

    total = jnp.zeros((b, rows, kv_heads, m, t), jnp.float32)
    mixed = jnp.zeros((b, rows, t, kv_heads, m, size), jnp.float32)
    for (k, v, _), score in zip(parts, scores, strict=True):
        weight = jnp.exp(score - _to_part(row_max, k.shape[1])[..., None])
        total += _to_rows(weight.sum(axis=-1), rows)
        mixed += products.mix(weight, v).reshape(mixed.shape)
    total = jnp.moveaxis(jnp.where(total > 0, total, 1.0), -1, 2)
    return (mixed / total[..., None]).reshape(q.shape).astype(q.dtype)
