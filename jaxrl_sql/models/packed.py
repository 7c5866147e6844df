"""Packed completions: convert a batch's [B,G,T] to the rows [B,R,T] that the model runs, and back.

B prompts have G completions of up to T tokens each. They are stored in R < G rows of T tokens per prompt, several
completions per row, which saves padding. `training.batching.pack` assigns positions in rows on the host. Only
completions of one prompt share rows, so a mesh that splits B needs no communication.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch, Segment


def packed_rows(batch: GroupBatch) -> Segment:
    """Return the rows of a batch's completions, tokens [B,R,T]; one completion per row if the batch is not packed.

    The owner of a token is the index of its completion among the G of its prompt; -1 for an unused position.
    """
    if batch.packed_start is None or batch.packed_length is None:
        return Segment(batch.completion, batch.completion_len)
    group_size, row_width = batch.completion.shape[1:]
    rows = batch.packed_length.shape[1]
    positions, unused = _row_positions(batch), jnp.full(rows * row_width, -1, jnp.int32)
    owners = jnp.broadcast_to(jnp.arange(group_size, dtype=jnp.int32)[:, None], (group_size, row_width))
    offsets = jnp.broadcast_to(jnp.arange(row_width, dtype=jnp.int32), (group_size, row_width))

    def put(positions: jax.Array, completion: jax.Array) -> tuple[jax.Array, ...]:
        values = (completion, owners, offsets)
        return tuple(unused.at[positions].set(x, mode="drop").reshape(rows, row_width) for x in values)

    tokens, owner, offset = jax.vmap(put)(positions, batch.completion)
    return Segment(jnp.maximum(tokens, 0), batch.packed_length, owner, jnp.maximum(offset, 0), batch.packed_start)


def scored_tokens(hidden: jax.Array, tokens: jax.Array, batch: GroupBatch) -> tuple[jax.Array, jax.Array]:
    """Return the states and tokens to score, of hidden [B,R,T,D] and tokens [B,R,T].

    They are all, or the K positions per prompt of `batch.scored` as [B,1,K,D] and [B,1,K].
    """
    if batch.scored is None:
        return hidden, tokens

    def take(x: jax.Array, positions: jax.Array) -> jax.Array:
        return x.reshape(-1, *x.shape[2:]).at[positions].get(mode="fill", fill_value=0)

    return tuple(jax.vmap(take)(x, batch.scored)[:, None] for x in (hidden, tokens))  # type: ignore[return-value]


def of_completions(values: jax.Array, batch: GroupBatch) -> jax.Array:
    """Map values of the tokens of `scored_tokens`, [B,R,T] or [B,1,K], to completions [B,G,T]; other tokens get 0."""
    if batch.packed_start is None or batch.packed_length is None:
        return values
    flat, positions = values.reshape(values.shape[0], -1), _row_positions(batch)
    if batch.scored is not None:  # first from the K scored positions to all R·T positions
        zeros = jnp.zeros(batch.packed_length.shape[1] * batch.completion.shape[2], values.dtype)
        flat = jax.vmap(lambda x, positions: zeros.at[positions].set(x, mode="drop"))(flat, batch.scored)
    unpacked: jax.Array = jax.vmap(lambda x, index: x.at[index].get(mode="fill", fill_value=0))(flat, positions)
    return unpacked


def _row_positions(batch: GroupBatch) -> jax.Array:
    """Return each token's position among the R·T of its prompt's rows [B,G,T], out of range for padding.

    Reads and writes out of range are dropped, so padding has no effect.
    """
    assert batch.packed_start is not None
    offset = jnp.arange(batch.completion.shape[2])
    position = batch.packed_start[..., None] + offset
    return jnp.where(offset < batch.completion_len[..., None], position, jnp.iinfo(jnp.int32).max)
