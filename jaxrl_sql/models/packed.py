"""Packed completions: convert a batch's [B,G,T] to the rows [B,R,T] that the model runs, and back.

`training.batching.pack` assigns positions in rows on the host. Only completions of one prompt share rows, so a mesh
that splits B needs no communication.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch, Segment


def packed_rows(batch: GroupBatch) -> Segment:
    """Return the rows of a batch's completions, tokens [B,R,T]; one completion per row if the batch is not packed.

    The owner of an unused position is -1.
    """
    if batch.packed_start is None or batch.packed_length is None:
        return Segment(batch.completion, batch.completion_len)
    group, width = batch.completion.shape[1:]
    rows = batch.packed_length.shape[1]
    at, blank = _row_index(batch), jnp.full(rows * width, -1, jnp.int32)
    owners = jnp.broadcast_to(jnp.arange(group, dtype=jnp.int32)[:, None], (group, width))
    offsets = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (group, width))

    def put(at: jax.Array, completion: jax.Array) -> tuple[jax.Array, ...]:
        values = (completion, owners, offsets)
        return tuple(blank.at[at].set(x, mode="drop").reshape(rows, width) for x in values)

    tokens, owner, offset = jax.vmap(put)(at, batch.completion)
    return Segment(jnp.maximum(tokens, 0), batch.packed_length, owner, jnp.maximum(offset, 0), batch.packed_start)


def scored_tokens(hidden: jax.Array, tokens: jax.Array, batch: GroupBatch) -> tuple[jax.Array, jax.Array]:
    """Return the states [B,R,T,D] and tokens [B,R,T] to score: all, or the K of `batch.scored` as [B,1,K,…]."""
    if batch.scored is None:
        return hidden, tokens

    def take(x: jax.Array, at: jax.Array) -> jax.Array:
        return x.reshape(-1, *x.shape[2:]).at[at].get(mode="fill", fill_value=0)

    return tuple(jax.vmap(take)(x, batch.scored)[:, None] for x in (hidden, tokens))  # type: ignore[return-value]


def of_completions(values: jax.Array, batch: GroupBatch) -> jax.Array:
    """Map values of scored tokens, [B,R,T] or [B,1,K], to tokens of completions [B,G,T]; others are 0."""
    if batch.packed_start is None or batch.packed_length is None:
        return values
    flat, at = values.reshape(values.shape[0], -1), _row_index(batch)
    if batch.scored is not None:
        blank = jnp.zeros(batch.packed_length.shape[1] * batch.completion.shape[2], values.dtype)
        flat = jax.vmap(lambda x, at: blank.at[at].set(x, mode="drop"))(flat, batch.scored)
    unpacked: jax.Array = jax.vmap(lambda x, at: x.at[at].get(mode="fill", fill_value=0))(flat, at)
    return unpacked


def _row_index(batch: GroupBatch) -> jax.Array:
    """Return each token's index in the flattened rows of its prompt [B,G,T], out of range for padding."""
    assert batch.packed_start is not None
    index = jnp.arange(batch.completion.shape[2])
    at = batch.packed_start[..., None] + index
    return jnp.where(index < batch.completion_len[..., None], at, jnp.iinfo(jnp.int32).max)
