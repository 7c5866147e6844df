"""Split a batch into micro-batches of whole groups, of their answers, or of their packed rows.

Losses are sums, so the gradients of micro-batches add up to that of the batch (`step.run_micro_batches`). A packed
batch has R < G rows of T tokens per prompt, which hold the prompt's G answers one after the other. The letters of
shapes are those of `batch.GroupBatch`: B prompts, G answers per prompt, T tokens per answer or row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch

T = TypeVar("T")
# A function of a batch or micro-batch with results of a type T, such as gradients and metrics.
BatchFunction = Callable[[GroupBatch], T]
# Map the stacked results of micro-batches to those of the whole batch: arrays [parts,B',G',…] -> [B,G,…]. Here B' and
# G' are the prompts and answers per micro-batch.
Rejoin = Callable[[jax.Array], jax.Array]


def count_units(batch: GroupBatch) -> int:
    """Return the number of units into which a batch can be split at most.

    A unit is a prompt, or all prompts that share a schema (the description of a database, `prompts_per_schema`).
    """
    return len(batch.completion) // batch.prompts_per_schema


def split_prompts(batch: GroupBatch, parts: int) -> tuple[GroupBatch, Rejoin]:
    """Split a batch into `parts` micro-batches of whole groups, [B,...] -> [parts,B/parts,...].

    Part i takes the prompts whose index is i modulo `parts`. A mesh gives each device a range of consecutive prompts,
    so each part has prompts of every device. Prompts that share a schema stay together and count as one prompt.
    Raises ValueError when the number of prompts is not a multiple of `parts`.
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
    """Split every group into `parts` of `size` answers, [B,G,...] -> [parts,B,size,...]; each part has all prompts.

    The last part is padded with answers of zeros, whose weight is 0.
    """
    group_size = batch.completion.shape[1]

    def split_array(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, parts * size - group_size if axis == 1 else 0) for axis in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(len(x), parts, size, *x.shape[2:]), 1, 0)

    shared = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch.shared)
    answers = jax.tree.map(split_array, dataclasses.replace(batch, shared=()))
    micro_batches = dataclasses.replace(answers, shared=shared)
    return micro_batches, lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])[:, :group_size]


def split_rows(batch: GroupBatch, parts: int, size: int) -> tuple[GroupBatch, Rejoin]:
    """Split the packed rows of each prompt into `parts` of `size` rows, row lengths [B,R] -> [parts,B,size].

    Every part has all prompts and all G answers. Answers whose row is in another part get length and weight 0, so each
    answer has results in one part only, and the results of the parts are added.
    """
    start, row_length, row_width = batch.packed_start, batch.packed_length, batch.completion.shape[2]
    assert start is not None
    assert row_length is not None
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch)
    part = jnp.arange(parts)[:, None, None]
    # The minimum is needed because an empty answer may start after the last row.
    is_in_part = jnp.minimum(start // (size * row_width), parts - 1) == part
    padding = parts * size - row_length.shape[1]
    row_lengths = jnp.pad(row_length, ((0, 0), (0, padding))).reshape(len(row_length), parts, size)
    micro_batches = dataclasses.replace(
        repeated,
        packed_start=start - part * size * row_width,  # unused for answers of other parts
        packed_length=jnp.moveaxis(row_lengths, 1, 0),
        completion_len=jnp.where(is_in_part, batch.completion_len, 0),
        weight=jnp.where(is_in_part, batch.weight, 0),
    )
    return micro_batches, lambda x: jnp.sum(x, axis=0)


def map_micro_batches(run: BatchFunction[Any], split_batch: GroupBatch, rejoin: Rejoin) -> Any:
    """Run stacked micro-batches one after the other and rejoin their results."""
    return jax.tree.map(rejoin, jax.lax.map(run, split_batch))
