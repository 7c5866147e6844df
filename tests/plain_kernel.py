"""A fused attention kernel (`models.attention.cudnn.Kernel`) in plain products, for any platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def probabilities(q: Any, k: Any, seen: Any, scale: float, log_sum_exp: Any = None) -> Any:
    """Return each key's probability, [N,K,M,X,S], by a log-sum-exp [N,H,X] (default: computed), and that."""
    n, x, heads, size = q.shape
    s, kv_heads = k.shape[1:3]
    scores = scale * jnp.einsum("nxkmq,nskq->nkmxs", q.reshape(n, x, kv_heads, -1, size), k)
    if seen.bias is not None:
        scores += seen.bias[:, :, None]
    elif seen.length is not None:
        scores = jnp.where(jnp.arange(s) < seen.length[:, None, None, None, None], scores, -jnp.inf)
    else:
        scores = jnp.where(jnp.tril(jnp.ones((x, s), bool)), scores, -jnp.inf)
    if log_sum_exp is None:
        log_sum_exp = jax.nn.logsumexp(scores, axis=-1).reshape(n, heads, x)
    return jnp.exp(scores - log_sum_exp.reshape(n, kv_heads, -1, x, 1)), log_sum_exp


def forward(q: Any, k: Any, v: Any, seen: Any, scale: float) -> Any:
    """Compute the kernel's forward call; rows without keys give nan, which cuDNN may give too."""
    share, log_sum_exp = probabilities(q, k, seen, scale)
    return jnp.einsum("nkmxs,nskq->nxkmq", share, v).reshape(q.shape), log_sum_exp


def backward(q: Any, k: Any, v: Any, seen: Any, scale: float, known: Any, gradient: Any) -> Any:
    """Compute the kernel's backward call (Dao, 2023, FlashAttention-2, algorithm 2)."""
    read, log_sum_exp = known
    share, _ = probabilities(q, k, seen, scale, log_sum_exp)
    split = (*q.shape[:2], k.shape[2], -1, q.shape[3])
    of_v = jnp.einsum("nkmxs,nxkmq->nskq", share, gradient.reshape(split))
    of_share = jnp.einsum("nxkmq,nskq->nkmxs", gradient.reshape(split), v)
    common = jnp.moveaxis(jnp.sum(gradient * read, axis=-1).reshape(split[:-1]), 1, 3)[..., None]
    of_scores = scale * share * (of_share - common)
    of_q = jnp.einsum("nkmxs,nskq->nxkmq", of_scores, k).reshape(q.shape)
    return of_q, jnp.einsum("nkmxs,nxkmq->nskq", of_scores, q.reshape(split)), of_v
