"""One update as a function `(TrainState, GroupBatch) -> (TrainState, Metrics)` around a jitted one.

The step does not depend on the model, only on a function that scores a batch. Trainable parameters and optimizer state
are donated: other readers, such as the sampler, must take the new arrays after each step. The frozen base and the
reference are neither donated nor returned, so other readers may keep them.

A batch runs as micro-batches of whole groups (a prompt with all its answers). With a token budget
(`grpo.max_tokens_per_device`) each micro-batch runs as several chunks of its prompts or answers, each of which is
within the budget. Packed batches store several answers in one row (`GroupBatch.packed_start`). If several prompts
share a schema (`GroupBatch.prompts_per_schema`), they are split like one prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_sql.algo import loss as losses
from jaxrl_sql.algo.parts import (
    BatchFunction,
    Rejoin,
    T,
    count_units,
    map_micro_batches,
    split_answers,
    split_prompts,
    split_rows,
)
from jaxrl_sql.batch import GroupBatch, PyTree, TrainState
from jaxrl_sql.models.ops.linear import float32_leaves, with_float32_leaves
from jaxrl_sql.models.ops.micro_batches import MicroBatches, row_counts
from jaxrl_sql.models.ops.stochastic_rounding import apply_updates, to_float32
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs
from jaxrl_sql.types import InputError

# (trainable parameters, frozen parameters, batch) -> log-probabilities of the batch's completions.
LogprobFn = Callable[[PyTree, PyTree, GroupBatch], TokenLogprobs]
LossFn = Callable[[TokenLogprobs, GroupBatch], losses.Loss]
StepFn = Callable[[TrainState, GroupBatch], tuple[TrainState, losses.Metrics]]
# Log-probabilities, and values of the value head or None: [B,G,T] each.
Scores = tuple[jax.Array, jax.Array | None]
Scorer = Callable[[PyTree, PyTree, GroupBatch], Scores]
# Run a function on each of the stacked micro-batches and combine the results: a sum, or a Rejoin's concatenation of the
# parts in the order of the batch.
Combine = Callable[[BatchFunction[T], GroupBatch, Rejoin], T]


def init_state(
    trainable: PyTree, optimizer: optax.GradientTransformation, frozen: PyTree = None, reference: PyTree = None
) -> TrainState:
    """Return the state before the first update."""
    return TrainState(jnp.zeros((), jnp.int32), trainable, frozen, reference, optimizer.init(trainable))


def make_step(
    logprobs: LogprobFn,
    loss: LossFn,
    optimizer: optax.GradientTransformation,
    accumulate: int | MicroBatches = 1,
    by_rows: bool = True,
) -> StepFn:
    """Return the update: score the batch, compute the loss and its gradient in float32, apply the optimizer.

    The objective is the loss's sum divided by its weight. With `accumulate` above 1 the batch runs as that many
    micro-batches of whole groups, one at a time to save memory, and their gradients are added. A `MicroBatches` value
    can also set a token budget. The sum of each micro-batch is divided by the weight of the whole batch, so the
    gradient does not depend on the split.
    `by_rows`: a packed batch has as many rows per prompt as its largest group needs. If true, each micro-batch runs
    only the rows that its own prompts need; if false, for comparison, it runs all.
    Raises as `run_micro_batches` does.
    """
    micro_batches = MicroBatches(accumulate) if isinstance(accumulate, int) else accumulate

    @_jit_with_fixed_shardings
    def update(
        donated: tuple[PyTree, PyTree, PyTree], frozen: PyTree, batch: GroupBatch
    ) -> tuple[PyTree, losses.Metrics]:
        step_count, trainable, opt_state = donated
        weight = _loss_weight(loss, batch)

        def objective(leaves: PyTree, micro_batch: GroupBatch) -> tuple[jax.Array, losses.Metrics]:
            result = loss(logprobs(with_float32_leaves(trainable, leaves), frozen, micro_batch), micro_batch)
            return result.sum / jnp.maximum(weight, 1.0), result.metrics

        # A bfloat16 weight is paired with float32 zeros (`linear.Weight`). The gradient with respect to the zeros is
        # taken, so it is float32.
        gradient = jax.grad(objective, has_aux=True)
        micro_batch_gradient = partial(gradient, float32_leaves(trainable))
        grads, metrics = run_micro_batches(micro_batch_gradient, batch, micro_batches, _sum_gradients, by_rows)
        updates, opt_state = optimizer.update(grads, opt_state, trainable)
        trainable = apply_updates(trainable, updates, step_count)
        norms = {"optim/grad_norm": optax.tree.norm(grads), "optim/param_norm": optax.tree.norm(to_float32(trainable))}
        metrics = {**metrics, **{name: (norm, jnp.ones(())) for name, norm in norms.items()}}
        return (step_count + 1, trainable, opt_state), metrics

    def step(state: TrainState, batch: GroupBatch) -> tuple[TrainState, losses.Metrics]:
        updated, metrics = update((state.step, state.trainable, state.opt_state), state.frozen, batch)
        step_count, trainable, opt_state = updated
        return dataclasses.replace(state, step=step_count, trainable=trainable, opt_state=opt_state), metrics

    return step


def _jit_with_fixed_shardings(update: Callable[..., Any]) -> Callable[..., Any]:
    """Jit an update whose `donated` argument is donated, and whose first result has the shardings of that argument.

    Without this constraint the compiler may shard a new parameter differently, and the next step would compile again.
    """

    @lru_cache(maxsize=4)
    def compile_update(tree: PyTree, shardings: tuple[Any, ...]) -> Callable[..., Any]:
        out = (jax.tree.unflatten(tree, shardings), None)
        return jax.jit(update, donate_argnames="donated", out_shardings=out)

    def run(donated: PyTree, frozen: PyTree, batch: GroupBatch) -> Any:
        leaves, tree = jax.tree.flatten(donated)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return update(donated, frozen, batch)  # inside a larger program, which sets the shardings
        # Arrays that JAX has not committed to a device get no sharding, so the compiler places them.
        shardings = (leaf.sharding if leaf.committed else None for leaf in leaves)
        return compile_update(tree, tuple(shardings))(donated, frozen, batch)

    return run


def _loss_weight(loss: LossFn, batch: GroupBatch) -> jax.Array:
    """Return the weight of a batch's loss, which depends on masks and lengths only.

    So the loss is called with zeros for the log-probabilities, before the model runs.
    """
    zeros = jnp.zeros(batch.completion.shape, jnp.float32)
    return loss(TokenLogprobs(zeros, zeros, zeros), batch).weight


def run_micro_batches(
    run: BatchFunction[T], batch: GroupBatch, micro_batches: MicroBatches, combine: Combine[T], by_rows: bool
) -> T:
    """Run a batch as micro-batches of whole groups.

    With a token budget each micro-batch runs as several chunks of its prompts. When one group exceeds the budget, a
    chunk has some of its answers, and their prompt runs once per chunk. `run` is called with one micro-batch or chunk;
    `combine` calls it for each of a stack of them and combines the results.

    `by_rows`: each micro-batch of a packed batch runs only the rows that its prompts need. Raises ValueError when B is
    not a multiple of the number of micro-batches, InputError when the budget is too small for one answer.
    """
    allowed_rows = _row_counts(batch, by_rows)
    # With a token budget the number of micro-batches is chosen so that one fits if it needs the fewest rows. Those
    # that need more rows run in several chunks.
    num_parts = micro_batches.parts_of(count_units(batch), *_sizes(batch, allowed_rows[0]))
    run_micro_batch: BatchFunction[T] = (
        partial(_run_within_budget, run, micro_batches, combine) if micro_batches.tokens else run
    )
    if num_parts == 1 and not micro_batches.tokens:
        return run(batch)
    if len(allowed_rows) > 1:
        run_micro_batch = partial(_run_needed_rows, run_micro_batch, allowed_rows)
    return run_micro_batch(batch) if num_parts == 1 else combine(run_micro_batch, *split_prompts(batch, num_parts))


def _row_counts(batch: GroupBatch, by_rows: bool) -> tuple[int, ...]:
    """Return the numbers of rows per prompt that a micro-batch may run, in increasing order.

    They are few, because each is a separate branch of the compiled program. An unpacked batch has a row per answer.
    """
    if batch.packed_length is None:
        return (batch.completion.shape[1],)
    max_rows = batch.packed_length.shape[1]
    return row_counts(max_rows) if by_rows else (max_rows,)


def _sizes(batch: GroupBatch, rows: int) -> tuple[int, int, int]:
    """Return (prompt tokens, rows of answers, tokens per row), padding included, with `rows` rows per prompt.

    They are those of a prompt, or of a schema with all its questions if several prompts share it.
    """
    first, *rest = (segment.tokens.shape[1] for segment in batch.shared)  # prompt, or schema and rest of the prompt
    return first + batch.prompts_per_schema * sum(rest), batch.prompts_per_schema * rows, batch.completion.shape[2]


def _run_needed_rows(run: BatchFunction[T], allowed_rows: tuple[int, ...], micro_batch: GroupBatch) -> T:
    """Run a packed micro-batch with the smallest of `allowed_rows` that holds the answers of all its prompts.

    The compiled program has one branch per number of rows.
    """
    row_length = micro_batch.packed_length
    assert row_length is not None
    needed_rows = jnp.max(jnp.sum(row_length > 0, axis=1))  # rows are filled in order

    def with_rows(rows: int, micro_batch: GroupBatch) -> T:
        assert micro_batch.packed_length is not None
        return run(dataclasses.replace(micro_batch, packed_length=micro_batch.packed_length[:, :rows]))

    branch = jnp.sum(needed_rows > jnp.array(allowed_rows[:-1]))
    result: T = jax.lax.switch(branch, [partial(with_rows, rows) for rows in allowed_rows], micro_batch)
    return result


def _run_within_budget(
    run: BatchFunction[T], micro_batches: MicroBatches, combine: Combine[T], micro_batch: GroupBatch
) -> T:
    """Run a micro-batch in chunks within the token budget.

    A chunk has whole groups, or some answers of one group per shard if a whole group exceeds the budget.
    """
    rows = _row_counts(micro_batch, by_rows=False)[0]
    prompts_per_shard = count_units(micro_batch) // micro_batches.num_shards
    chunk_prompts, chunk_rows = micro_batches.chunk_sizes(prompts_per_shard, *_sizes(micro_batch, rows))
    if chunk_rows < rows * micro_batch.prompts_per_schema:
        if micro_batch.prompts_per_schema > 1:
            prompt_tokens, answer_rows, row_tokens = _sizes(micro_batch, rows)
            raise InputError(
                f"grpo.max_tokens_per_device={micro_batches.tokens} is below the "
                f"{prompt_tokens + answer_rows * row_tokens} tokens of {micro_batch.prompts_per_schema} questions with "
                "their schema and answers: raise it, or lower grpo.questions"
            )
        split_batch = split_answers if micro_batch.packed_length is None else split_rows

        def run_by_answers(group: GroupBatch) -> T:
            return combine(run, *split_batch(group, -(-rows // chunk_rows), chunk_rows))

        return (
            run_by_answers(micro_batch)
            if prompts_per_shard == 1
            else combine(run_by_answers, *split_prompts(micro_batch, prompts_per_shard))
        )
    return (
        run(micro_batch)
        if chunk_prompts == prompts_per_shard
        else combine(run, *split_prompts(micro_batch, prompts_per_shard // chunk_prompts))
    )


def _sum_gradients(
    gradient: Callable[[GroupBatch], tuple[PyTree, losses.Metrics]], split_batch: GroupBatch, _: Rejoin
) -> tuple[PyTree, losses.Metrics]:
    """Sum the gradients and merge the metrics of stacked micro-batches, one at a time; a `Combine`."""

    def add(total: PyTree, micro_batch: GroupBatch) -> tuple[PyTree, losses.Metrics]:
        grads, metrics = gradient(micro_batch)
        return jax.tree.map(jnp.add, total, grads), metrics

    first = jax.tree.map(lambda x: x[0], split_batch)
    shapes = jax.eval_shape(gradient, first)[0]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    grads, stacked = jax.lax.scan(add, zeros, split_batch)
    return grads, losses.merge(stacked)


@lru_cache(maxsize=8)
def make_scorer(logprobs: LogprobFn, parts: int | MicroBatches = 1) -> Scorer:
    """Return a jitted function (trainable, frozen, batch) -> log-probabilities, and values or None; [B,G,T] each.

    No gradient is computed. As in an update, each prompt runs once for all its answers. The batch runs as `parts`
    micro-batches, one at a time, each with only the packed rows that it needs. Callers with the same `logprobs` share
    the function and its compiled program.
    """
    micro_batches = MicroBatches(parts) if isinstance(parts, int) else parts

    def score(trainable: PyTree, frozen: PyTree, batch: GroupBatch) -> Scores:
        def score_micro_batch(micro_batch: GroupBatch) -> Scores:
            scored = logprobs(trainable, frozen, micro_batch)
            return scored.logprob, scored.value

        return run_micro_batches(score_micro_batch, batch, micro_batches, map_micro_batches, by_rows=True)

    return jax.jit(score)


def slice_prompts(batch: GroupBatch, start: int, stop: int) -> GroupBatch:
    """Return prompts [start, stop) of a batch with their whole groups."""
    return jax.tree.map(lambda x: x[start:stop], batch)
