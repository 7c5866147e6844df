"""Split a batch into micro-batches of whole groups, of their answers, or of their packed rows.

Losses are sums, so the gradients of micro-batches add up to that of the batch (`step.run_micro_batches`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch

T = TypeVar("T")
BatchFunction = Callable[[GroupBatch], T]
# Map the stacked results of micro-batches to those of the whole batch: arrays [parts,B',G',…] -> [B,G,…].
Rejoin = Callable[[jax.Array], jax.Array]


def count_units(batch: GroupBatch) -> int:
    """Return the number of prompts of a batch; prompts that share a schema count as one."""
    return len(batch.completion) // batch.prompts_per_schema


def split_prompts(batch: GroupBatch, parts: int) -> tuple[GroupBatch, Rejoin]:
    """Split a batch into parts, [B,...] -> [parts,B/parts,...].

    Part i takes the prompts whose index is i modulo `parts`, so that on a mesh each part has prompts of every device.
    Prompts that share a schema count as one. Raises ValueError when B is not a multiple of `parts`.
    """
    units, prompts_per_schema = count_units(batch), batch.prompts_per_schema
    size, rest = divmod(units, parts)
    if rest:
        unit_name = "prompts" if prompts_per_schema == 1 else f"schemas of {prompts_per_schema} questions"
        raise ValueError(f"{units} {unit_name} are not divisible by {parts} parts")

    def split_array(x: jax.Array) -> jax.Array:
        split = jnp.swapaxes(x.reshape(size, parts, prompts_per_schema, *x.shape[1:]), 0, 1)
        return split.reshape(parts, size * prompts_per_schema, *x.shape[1:])

    def rejoin(x: jax.Array) -> jax.Array:
        split = x.reshape(parts, size, prompts_per_schema, *x.shape[2:])
        return jnp.swapaxes(split, 0, 1).reshape(-1, *x.shape[2:])

    return jax.tree.map(split_array, batch), rejoin


def split_answers(batch: GroupBatch, parts: int, size: int) -> tuple[GroupBatch, Rejoin]:
    """Split groups into parts of `size` answers, [B,G,...] -> [parts,B,size,...]; the last is padded with 0."""
    group = batch.completion.shape[1]

    def split_array(x: jax.Array) -> jax.Array:
        filled = jnp.pad(x, [(0, parts * size - group if axis == 1 else 0) for axis in range(x.ndim)])
        return jnp.moveaxis(filled.reshape(len(x), parts, size, *x.shape[2:]), 1, 0)

    shared = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch.shared)
    answers = jax.tree.map(split_array, dataclasses.replace(batch, shared=()))
    micro_batches = dataclasses.replace(answers, shared=shared)
    return micro_batches, lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])[:, :group]


def split_rows(batch: GroupBatch, parts: int, size: int) -> tuple[GroupBatch, Rejoin]:
    """Split packed rows into parts of `size`, [B,R] -> [parts,B,size]; answers in other parts have length 0."""
    start, length, width = batch.packed_start, batch.packed_length, batch.completion.shape[2]
    assert start is not None
    assert length is not None
    whole = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch)
    part = jnp.arange(parts)[:, None, None]
    # An empty answer may start after the last row.
    is_here = jnp.minimum(start // (size * width), parts - 1) == part
    rows = jnp.pad(length, ((0, 0), (0, parts * size - length.shape[1]))).reshape(len(length), parts, size)
    micro_batches = dataclasses.replace(
        whole,
        packed_start=start - part * size * width,
        packed_length=jnp.moveaxis(rows, 1, 0),
        completion_len=jnp.where(is_here, batch.completion_len, 0),
        weight=jnp.where(is_here, batch.weight, 0),
    )
    return micro_batches, lambda x: jnp.sum(x, axis=0)


def map_micro_batches(run: BatchFunction[Any], split_batch: GroupBatch, rejoin: Rejoin) -> Any:
    """Run micro-batches sequentially and rejoin their results."""
    return jax.tree.map(rejoin, jax.lax.map(run, split_batch))
