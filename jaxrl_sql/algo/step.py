"""One update, as a pure function `(TrainState, GroupBatch) -> (TrainState, Metrics)` with a jitted inside.

The step knows no model, only a function that scores a batch. What moves is donated, the trainable parameters and the
optimizer's state: whoever reads them (a sampler) must do so between steps, and take the new ones after each. What does
not move, the frozen base and the reference, is neither donated nor returned, so that others may go on reading it.
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
from jaxrl_sql.algo.parts import Rejoin, Run, T, cut_answers, cut_prompts, cut_rows, mapped, units_of
from jaxrl_sql.batch import GroupBatch, PyTree, TrainState
from jaxrl_sql.models.ops.linear import wide_slots, with_slots
from jaxrl_sql.models.ops.micro_batches import MicroBatches, row_counts
from jaxrl_sql.models.ops.stochastic_rounding import apply_updates, widen
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs
from jaxrl_sql.types import InputError

LogprobFn = Callable[[PyTree, PyTree, GroupBatch], TokenLogprobs]
LossFn = Callable[[TokenLogprobs, GroupBatch], losses.Loss]
StepFn = Callable[[TrainState, GroupBatch], tuple[TrainState, losses.Metrics]]
Scores = tuple[jax.Array, jax.Array | None]
Scorer = Callable[[PyTree, PyTree, GroupBatch], Scores]
# Run each of some stacked micro-batches, and make one of what they give.
All = Callable[[Run[T], GroupBatch, Rejoin], T]


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
    """Return the update: score, loss, gradient of sum / weight in float32, optimizer.

    With `accumulate` above 1 the batch goes through in that many parts of whole groups, one after another, and their
    gradients add up: less is held at a time. Each part's sum is divided by the weight of the whole batch, so the
    parts, however unequal, make the same gradient as the batch in one piece; `MicroBatches` may say it in tokens.
    `by_rows`: of a packed batch each part runs only the rows that its prompts need; without it, to compare with, all.
    Raises as `by_micro_batches` does.
    """
    micro_batches = MicroBatches(accumulate) if isinstance(accumulate, int) else accumulate

    @_steady
    def update(
        moving: tuple[PyTree, PyTree, PyTree], frozen: PyTree, batch: GroupBatch
    ) -> tuple[PyTree, losses.Metrics]:
        count, trainable, opt_state = moving
        weight = _weight(loss, batch)

        def objective(slots: PyTree, part: GroupBatch) -> tuple[jax.Array, losses.Metrics]:
            result = loss(logprobs(with_slots(trainable, slots), frozen, part), part)
            return result.sum / jnp.maximum(weight, 1.0), result.metrics

        # By slots, so that gradients are float32 whatever the weights are kept in.
        gradient = jax.grad(objective, has_aux=True)
        of_part = partial(gradient, wide_slots(trainable))
        grads, metrics = by_micro_batches(of_part, batch, micro_batches, _summed, by_rows)
        updates, opt_state = optimizer.update(grads, opt_state, trainable)
        trainable = apply_updates(trainable, updates, count)
        sizes = {"optim/grad_norm": optax.tree.norm(grads), "optim/param_norm": optax.tree.norm(widen(trainable))}
        metrics = {**metrics, **{name: (size, jnp.ones(())) for name, size in sizes.items()}}
        return (count + 1, trainable, opt_state), metrics

    def step(state: TrainState, batch: GroupBatch) -> tuple[TrainState, losses.Metrics]:
        moved, metrics = update((state.step, state.trainable, state.opt_state), state.frozen, batch)
        count, trainable, opt_state = moved
        return dataclasses.replace(state, step=count, trainable=trainable, opt_state=opt_state), metrics

    return step


def _steady(update: Callable[..., Any]) -> Callable[..., Any]:
    """Jit an update whose `moving` part is donated and comes out where it went in.

    Left alone the compiler may split a new parameter in another way than the old one, and the next step would be
    compiled again for it.
    """

    @lru_cache(maxsize=4)
    def compiled(tree: PyTree, shardings: tuple[Any, ...]) -> Callable[..., Any]:
        out = (jax.tree.unflatten(tree, shardings), None)
        return jax.jit(update, donate_argnames="moving", out_shardings=out)

    def pinned(moving: PyTree, frozen: PyTree, batch: GroupBatch) -> Any:
        leaves, tree = jax.tree.flatten(moving)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return update(moving, frozen, batch)  # part of a larger program, which says where its values lie
        # What is on no mesh is left to the compiler, and stays free to move.
        places = (leaf.sharding if leaf.committed else None for leaf in leaves)
        return compiled(tree, tuple(places))(moving, frozen, batch)

    return pinned


def _weight(loss: LossFn, batch: GroupBatch) -> jax.Array:
    """Return the weight of a batch's loss, which comes from masks and lengths alone: no score is needed for it."""
    blank = jnp.zeros(batch.completion.shape, jnp.float32)
    return loss(TokenLogprobs(blank, blank, blank), batch).weight


def by_micro_batches(run: Run[T], batch: GroupBatch, micro_batches: MicroBatches, all_of: All[T], by_rows: bool) -> T:
    """Run a batch by micro-batches: parts of whole groups, those of a packed batch with the rows that they need.

    By a budget of tokens a part is taken in passes: some of its prompts at a time or, where one group is too much, some
    of its answers, for which their prompt runs again. `all_of` runs the micro-batches of one cut.

    `by_rows`: each part of a packed batch runs only the rows that its prompts need. Raises ValueError when B is not
    divided by the parts, InputError where a budget has no room for one answer.
    """
    counts = _counts(batch, by_rows)
    parts = micro_batches.parts_of(units_of(batch), *_sizes(batch, counts[0]))
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
    here = units_of(part) // micro_batches.ways
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


def _summed(
    gradient: Callable[[GroupBatch], tuple[PyTree, losses.Metrics]], cut: GroupBatch, _: Rejoin
) -> tuple[PyTree, losses.Metrics]:
    """Add up the gradients and merge the metrics of a batch's micro-batches, one at a time."""

    def add(total: PyTree, part: GroupBatch) -> tuple[PyTree, losses.Metrics]:
        grads, metrics = gradient(part)
        return jax.tree.map(jnp.add, total, grads), metrics

    first = jax.tree.map(lambda x: x[0], cut)
    shapes = jax.eval_shape(gradient, first)[0]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    grads, stacked = jax.lax.scan(add, zeros, cut)
    return grads, losses.merge(stacked)


@lru_cache(maxsize=8)
def make_scorer(logprobs: LogprobFn, parts: int | MicroBatches = 1) -> Scorer:
    """Return a jitted function (trainable, frozen, batch) -> log-probabilities, and values or None; [B,G,T] each.

    It takes no gradient. Like an update, it computes each prompt once, and the batch in `parts`, one after another,
    each with the packed rows that it needs. For one `logprobs` there is one such function, so that it is compiled once,
    whoever scores what.
    """
    micro_batches = MicroBatches(parts) if isinstance(parts, int) else parts

    def score(trainable: PyTree, frozen: PyTree, batch: GroupBatch) -> Scores:
        def one(part: GroupBatch) -> Scores:
            scored = logprobs(trainable, frozen, part)
            return scored.logprob, scored.value

        return by_micro_batches(one, batch, micro_batches, mapped, by_rows=True)

    return jax.jit(score)


def slice_prompts(batch: GroupBatch, start: int, stop: int) -> GroupBatch:
    """Take prompts [start, stop) of a batch with their whole groups (a group is never split)."""
    return jax.tree.map(lambda x: x[start:stop], batch)
