"""Attention as plain matrix products, for all platforms and masks.

Queries [B,R,T,…] (R rows per prompt, T tokens per row) attend to a list of key parts [B,Rj,S,…] where R is a multiple
of Rj: the keys of each ancestor level and of the queries' own rows. The R/Rj query rows that attend to one row of keys
are joined ("folded") to one sequence of X = (R/Rj)·T queries. So each part takes one batched matrix product, and its
keys are not repeated in memory. One softmax covers all parts, so the result equals attention over the concatenated
sequence, and automatic differentiation is exact. (With JAX's own attention, separate calls would be merged by their
log-sum-exp, through which it does not differentiate.)

Further letters of shapes: B prompts, H query heads, K key heads, M = H/K query heads per key head, Q size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel, restrict_to_window, valid_keys
from jaxrl_sql.models.ops.token_distribution import soft_cap

# Score of a masked key, and lower limit of the maximum score that a softmax subtracts. If all keys of a query are
# masked, exp(MASKED_SCORE - MIN_ROW_MAX) and its gradient are 0. With -inf for both they would be NaN.
MASKED_SCORE = -1e30
MIN_ROW_MAX = -1e29


MaskedKeys = tuple[jax.Array, jax.Array, jax.Array]
"""Keys and values of S tokens in Rj rows, and their mask: k, v [B,Rj,K,S,Q] (the axis of heads before that of tokens,
so a head's tokens are one matrix); visible: bool, broadcastable to [B,Rj,X,S] for the X queries of a row of keys."""


def attend_tree(
    levels: Sequence[TreeLevel],
    scale: float,
    cap: float | None,
    window: AttentionWindow | None,
    products: MatrixProducts | None = None,
) -> tuple[jax.Array, ...]:
    """Attend from each level's queries to the levels above and to their own rows -> [B,R,T,H,Q] per level.

    scale: factor of scores; cap: soft cap of scores, or None; products: matrix products other than einsum.
    """
    outputs = (
        attend(
            level.q,
            [_masked_keys(key_level, level, key_level is level, window) for key_level in levels[: i + 1]],
            scale,
            cap,
            products,
        )
        for i, level in enumerate(levels)
    )
    return tuple(checkpoint_name(output, "attended") for output in outputs)  # a name for `model.remat`


def _masked_keys(keys: TreeLevel, queries: TreeLevel, is_own: bool, window: AttentionWindow | None) -> MaskedKeys:
    """Return a level's keys with their mask for `queries`, causal if `is_own`."""
    visible = valid_keys(keys)[:, :, None]
    if is_own:
        visible &= jnp.tril(jnp.ones((keys.k.shape[3], keys.k.shape[3]), bool))
        if keys.owner is not None:
            visible &= keys.owner[..., None, :] == keys.owner[..., None]
    return keys.k, keys.v, restrict_to_window(window, visible, keys.positions, queries.positions)


def _unfold_rows(x: jax.Array, rows: int) -> jax.Array:
    """Unfold a softmax statistic (maximum or sum) per query of a part, [B,Rj,K,M,X], into [B,R,K,M,T]."""
    b, part_rows, k, m, folded = x.shape
    ratio = rows // part_rows
    x = x.reshape(b, part_rows, k, m, ratio, folded // ratio)
    return jnp.moveaxis(x, 4, 2).reshape(b, rows, k, m, folded // ratio)


def _fold_rows(x: jax.Array, part_rows: int) -> jax.Array:
    """Fold a softmax statistic [B,R,K,M,T] into that of a part, [B,Rj,K,M,X]: the inverse of `_unfold_rows`."""
    b, rows, k, m, t = x.shape
    ratio = rows // part_rows
    x = x.reshape(b, part_rows, ratio, k, m, t)
    return jnp.moveaxis(x, 2, 4).reshape(b, part_rows, k, m, ratio * t)


def _score(q: jax.Array, k: jax.Array) -> jax.Array:
    """Multiply folded queries [B,Rj,X,K,M,Q] with keys [B,Rj,K,S,Q] -> [B,Rj,K,M,X,S] float32."""
    if q.dtype == jnp.float32:
        return _score_float32(q, k)
    return jnp.einsum("brxkmq,brksq->brkmxs", q, k, preferred_element_type=jnp.float32)


def _weighted_sum(weight: jax.Array, v: jax.Array) -> jax.Array:
    """Sum values [B,Rj,K,S,Q] by weights [B,Rj,K,M,X,S] float32 -> [B,Rj,X,K,M,Q] float32."""
    if v.dtype == jnp.float32:
        return _weighted_sum_float32(weight, v)
    # Transposed afterwards, because XLA's CPU backend has no transposing product of bfloat16.
    summed = jnp.einsum("brkmxs,brksq->brkmxq", weight.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.moveaxis(summed, 4, 2)


# XLA's CPU backend multiplies row-major matrices and copies operands of other forms. Scores and weights are the largest
# arrays of attention, so the float32 products below keep them row-major and transpose the smaller queries and values.
# Their gradients are the same products; automatic differentiation would transpose the gradient of the scores.


@jax.custom_vjp
def _score_float32(q: jax.Array, k: jax.Array) -> jax.Array:
    """Compute `_score` in float32."""
    b, r, x, kv_heads, m, _ = q.shape
    return jnp.einsum("brkyq,brksq->brkys", by_head(q), k).reshape(b, r, kv_heads, m, x, k.shape[3])


@jax.custom_vjp
def _weighted_sum_float32(weight: jax.Array, v: jax.Array) -> jax.Array:
    """Compute `_weighted_sum` in float32."""
    b, r, kv_heads, m, x, s = weight.shape
    summed = jnp.einsum("brkys,brksq->brkyq", weight.reshape(b, r, kv_heads, m * x, s), v)
    return jnp.moveaxis(summed.reshape(b, r, kv_heads, m, x, v.shape[-1]), 4, 2)


def _sum_over_queries(q: jax.Array, weight: jax.Array) -> jax.Array:
    """Sum folded queries [B,Rj,X,K,M,Q] by weights [B,Rj,K,M,X,S] -> [B,Rj,K,S,Q], all float32."""
    b, r, kv_heads, m, x, s = weight.shape
    return jnp.einsum("brkyq,brkys->brkqs", by_head(q), weight.reshape(b, r, kv_heads, m * x, s)).mT


def by_head(q: jax.Array) -> jax.Array:
    """Transpose folded queries [B,Rj,X,K,M,Q] to one matrix per key head, [B,Rj,K,M·X,Q]."""
    b, r, x, kv_heads, m, size = q.shape
    return jnp.transpose(q, (0, 1, 3, 4, 2, 5)).reshape(b, r, kv_heads, m * x, size)


_score_float32.defvjp(
    lambda q, k: (_score_float32(q, k), (q, k)),
    lambda saved, g: (_weighted_sum_float32(g, saved[1]), _sum_over_queries(saved[0], g)),
)
_weighted_sum_float32.defvjp(
    lambda weight, v: (_weighted_sum_float32(weight, v), (weight, v)),
    lambda saved, g: (_score_float32(g, saved[1]), _sum_over_queries(g, saved[0])),
)


class MatrixProducts(NamedTuple):
    """The two matrix products of attention, with the signatures of `_score` and `_weighted_sum`."""

    score: Callable[[jax.Array, jax.Array], jax.Array] = _score
    weighted_sum: Callable[[jax.Array, jax.Array], jax.Array] = _weighted_sum


def attend(
    q: jax.Array,
    parts: Sequence[MaskedKeys],
    scale: float | None = None,
    cap: float | None = None,
    products: MatrixProducts | None = None,
) -> jax.Array:
    """Attend from q [B,R,T,H,Q] to the visible keys of all parts with one softmax -> [B,R,T,H,Q].

    Query head h attends to key head h // M, without repeating keys. Scores are multiplied by `scale` (default Q**-0.5)
    and soft-capped if `cap` is not None. Scores and softmax are in float32. A query without visible keys gets zeros
    and zero gradient. `products` (default: einsum) computes the matrix products.
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

    row_maxima = [_unfold_rows(jnp.max(lax.stop_gradient(score), axis=-1), rows) for score in scores]
    row_max = jnp.maximum(jnp.stack(row_maxima).max(axis=0), MIN_ROW_MAX)

    total = jnp.zeros((b, rows, kv_heads, m, t), jnp.float32)
    values = jnp.zeros((b, rows, t, kv_heads, m, size), jnp.float32)
    for (k, v, _), score in zip(parts, scores, strict=True):
        weight = jnp.exp(score - _fold_rows(row_max, k.shape[1])[..., None])
        total += _unfold_rows(weight.sum(axis=-1), rows)
        values += products.weighted_sum(weight, v).reshape(values.shape)
    total = jnp.moveaxis(jnp.where(total > 0, total, 1.0), -1, 2)
    return (values / total[..., None]).reshape(q.shape).astype(q.dtype)
