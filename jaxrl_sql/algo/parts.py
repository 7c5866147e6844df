"""A batch by micro-batches: parts of whole groups, those of a packed batch with the rows that they need.

By a budget of tokens a part is taken in passes: some of its prompts at a time or, where one group is too much, some of
its answers, for which their prompt runs again. Losses are sums, so micro-batches make the gradient of the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.models.ops.micro_batches import MicroBatches, row_counts
from jaxrl_sql.types import InputError

T = TypeVar("T")
Run = Callable[[GroupBatch], T]
# From what micro-batches gave, stacked, to what the whole would have: arrays [parts,B',G',…] -> [B,G,…].
Rejoin = Callable[[jax.Array], jax.Array]
# Run each of some stacked micro-batches, and make one of what they give.
All = Callable[[Run[T], GroupBatch, Rejoin], T]


def by_micro_batches(run: Run[T], batch: GroupBatch, micro_batches: MicroBatches, all_of: All[T], by_rows: bool) -> T:
    """Run a batch by micro-batches; `all_of` runs those of one cut.

    `by_rows`: each part of a packed batch runs only the rows that its prompts need. Raises ValueError when B is not
    divided by the parts, InputError where a budget has no room for one answer.
    """
    counts = _counts(batch, by_rows)
    parts = micro_batches.parts_of(_units(batch), *_sizes(batch, counts[0]))
    one: Run[T] = partial(_in_passes, run, micro_batches, all_of) if micro_batches.tokens else run
    if parts == 1 and not micro_batches.tokens:
        return run(batch)
    one = partial(_on_rows_needed, one, counts) if len(counts) > 1 else one
    return one(batch) if parts == 1 else all_of(one, *cut_prompts(batch, parts))


def _counts(batch: GroupBatch, by_rows: bool) -> tuple[int, ...]:
    """Return how many rows of answers a part may run, in order."""
    if batch.packed_length is None:
        return (batch.completion.shape[1],)
    most = batch.packed_length.shape[1]
    return row_counts(most) if by_rows else (most,)


def _units(batch: GroupBatch) -> int:
    """Return the number of a batch's prompts; those that have a schema in common count as one."""
    return len(batch.completion) // batch.together


def _sizes(batch: GroupBatch, rows: int) -> tuple[int, int, int]:
    """Return the tokens that lead to a unit's answers, its rows, and the tokens of a row."""
    first, *rest = (segment.tokens.shape[1] for segment in batch.shared)
    return first + batch.together * sum(rest), batch.together * rows, batch.completion.shape[2]


def _on_rows_needed(run: Run[T], counts: tuple[int, ...], part: GroupBatch) -> T:
    """Run a packed part with no more rows than some prompt of it needs, of these numbers of them.

    The program holds `run` for each of them and takes one.
    """
    length = part.packed_length
    assert length is not None
    need = jnp.max(jnp.sum(length > 0, axis=1))  # rows are filled from the first on

    def with_rows(rows: int, part: GroupBatch) -> T:
        assert part.packed_length is not None
        return run(dataclasses.replace(part, packed_length=part.packed_length[:, :rows]))

    found: T = jax.lax.switch(
        jnp.sum(need > jnp.array(counts[:-1])), [partial(with_rows, rows) for rows in counts], part
    )
    return found


def _in_passes(run: Run[T], micro_batches: MicroBatches, all_of: All[T], part: GroupBatch) -> T:
    """Run a part within a budget of tokens."""
    rows = _counts(part, by_rows=False)[0]
    here = _units(part) // micro_batches.ways
    prompts, fit = micro_batches.at_once(here, *_sizes(part, rows))
    if fit < rows * part.together:
        if part.together > 1:
            first, answers, length = _sizes(part, rows)
            raise InputError(
                f"grpo.max_tokens_per_device={micro_batches.tokens} has no room for {part.together} questions with "
                f"their schema and answers, {first + answers * length} tokens: allow as many, or fewer grpo.questions"
            )
        cut = cut_answers if part.packed_length is None else cut_rows

        def by_answers(one: GroupBatch) -> T:
            return all_of(run, *cut(one, -(-rows // fit), fit))

        return by_answers(part) if here == 1 else all_of(by_answers, *cut_prompts(part, here))
    return run(part) if prompts == here else all_of(run, *cut_prompts(part, here // prompts))


def cut_prompts(batch: GroupBatch, parts: int) -> tuple[GroupBatch, Rejoin]:
    """Cut a batch into parts, [B,...] -> [parts,B/parts,...].

    Part i takes every prompt whose number is i modulo `parts`: on a mesh, each device's own share of the batch. Prompts
    that have a schema in common count as one.
    """
    units, together = _units(batch), batch.together
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
