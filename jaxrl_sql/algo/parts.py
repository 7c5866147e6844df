"""How a batch is cut into micro-batches: parts of whole groups, of their answers, or of their packed rows.

Losses are sums, so micro-batches make the gradient of the whole (`step.by_micro_batches`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch

T = TypeVar("T")
Run = Callable[[GroupBatch], T]
# From what micro-batches gave, stacked, to what the whole would have: arrays [parts,B',G',…] -> [B,G,…].
Rejoin = Callable[[jax.Array], jax.Array]


def units_of(batch: GroupBatch) -> int:
    """Return the number of a batch's prompts; those that have a schema in common count as one."""
    return len(batch.completion) // batch.together


def cut_prompts(batch: GroupBatch, parts: int) -> tuple[GroupBatch, Rejoin]:
    """Cut a batch into parts, [B,...] -> [parts,B/parts,...].

    Part i takes every prompt whose number is i modulo `parts`: on a mesh, each device's own share of the batch. Prompts
    that have a schema in common count as one.
    """
    units, together = units_of(batch), batch.together
    size, rest = divmod(units, parts)
    if rest:
        what = "prompts" if together == 1 else f"times {together} questions"
        raise ValueError(f"{units} {what} are not divided by {parts} parts")

    def cut(x: jax.Array) -> jax.Array:
        apart = jnp.swapaxes(x.reshape(size, parts, together, *x.shape[1:]), 0, 1)
        return apart.reshape(parts, size * together, *x.shape[1:])

    def rejoin(x: jax.Array) -> jax.Array:
        apart = x.reshape(parts, size, together, *x.shape[2:])
        return jnp.swapaxes(apart, 0, 1).reshape(-1, *x.shape[2:])

    return jax.tree.map(cut, batch), rejoin


def cut_answers(batch: GroupBatch, parts: int, size: int) -> tuple[GroupBatch, Rejoin]:
    """Cut a batch's groups into parts of `size` answers, [B,G,...] -> [parts,B,size,...]; what is over has none."""
    group = batch.completion.shape[1]

    def cut(x: jax.Array) -> jax.Array:
        filled = jnp.pad(x, [(0, parts * size - group if axis == 1 else 0) for axis in range(x.ndim)])
        return jnp.moveaxis(filled.reshape(len(x), parts, size, *x.shape[2:]), 1, 0)

    shared = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch.shared)
    answers = jax.tree.map(cut, dataclasses.replace(batch, shared=()))
    found = dataclasses.replace(answers, shared=shared)
    return found, lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])[:, :group]


def cut_rows(batch: GroupBatch, parts: int, size: int) -> tuple[GroupBatch, Rejoin]:
    """Cut a packed batch's rows into parts of `size`, [B,R] -> [parts,B,size]; answers of others have no tokens."""
    start, length, width = batch.packed_start, batch.packed_length, batch.completion.shape[2]
    assert start is not None
    assert length is not None
    whole = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch)
    first = jnp.arange(parts)[:, None, None]
    # An answer of no tokens may stand behind the last row.
    is_here = jnp.minimum(start // (size * width), parts - 1) == first
    rows = jnp.pad(length, ((0, 0), (0, parts * size - length.shape[1]))).reshape(len(length), parts, size)
    found = dataclasses.replace(
        whole,
        packed_start=start - first * size * width,
        packed_length=jnp.moveaxis(rows, 1, 0),
        completion_len=jnp.where(is_here, batch.completion_len, 0),
        weight=jnp.where(is_here, batch.weight, 0),
    )
    return found, lambda x: jnp.sum(x, axis=0)


def mapped(run: Run[Any], cut: GroupBatch, rejoin: Rejoin) -> Any:
    """Run micro-batches one after another, and join what each of them says of its answers."""
    return jax.tree.map(rejoin, jax.lax.map(run, cut))
