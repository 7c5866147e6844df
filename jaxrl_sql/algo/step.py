"""One update, as a jitted pure function `(TrainState, GroupBatch) -> (TrainState, Metrics)`.

The step knows no model. It takes a function that scores a batch under some parameters, a loss over those scores and
an optimizer. The state is donated: whoever reads its parameters (a sampler) must do so between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_sql.algo import loss as losses
from jaxrl_sql.batch import GroupBatch, TrainState
from jaxrl_sql.distribution import TokenLogprobs

LogprobFn = Callable[[Any, Any, GroupBatch], TokenLogprobs]
LossFn = Callable[[TokenLogprobs, GroupBatch], losses.Loss]
StepFn = Callable[[TrainState, GroupBatch], tuple[TrainState, losses.Metrics]]


def init_state(
    trainable: Any, optimizer: optax.GradientTransformation, frozen: Any = None, reference: Any = None
) -> TrainState:
    """Return the state before the first update."""
    return TrainState(jnp.zeros((), jnp.int32), trainable, frozen, reference, optimizer.init(trainable))


def make_step(logprobs: LogprobFn, loss: LossFn, optimizer: optax.GradientTransformation) -> StepFn:
    """Return the jitted update: score, loss, gradient of sum / weight, optimizer."""

    @_steady
    def step(state: TrainState, batch: GroupBatch) -> tuple[TrainState, losses.Metrics]:
        def objective(trainable: Any) -> tuple[jax.Array, losses.Loss]:
            result = loss(logprobs(trainable, state.frozen, batch), batch)
            return result.sum / jnp.maximum(result.weight, 1.0), result

        grads, result = jax.grad(objective, has_aux=True)(state.trainable)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.trainable)
        trainable = optax.apply_updates(state.trainable, updates)
        one = jnp.ones(())
        metrics = {**result.metrics, "optim/grad_norm": (optax.tree.norm(grads), one)}
        return TrainState(state.step + 1, trainable, state.frozen, state.reference, opt_state), metrics

    return step


def _steady(step: StepFn) -> StepFn:
    """Jit an update whose state is donated and comes out where it went in.

    Left alone the compiler may split a new parameter in another way than the old one, and the next step would be
    compiled again for it.
    """

    @lru_cache(maxsize=4)
    def compiled(tree: Any, shardings: tuple[Any, ...]) -> StepFn:
        out = (jax.tree.unflatten(tree, shardings), None)
        return jax.jit(step, donate_argnames="state", out_shardings=out)

    def pinned(state: TrainState, batch: GroupBatch) -> tuple[TrainState, losses.Metrics]:
        leaves, tree = jax.tree.flatten(state)
        # What is on no mesh is left to the compiler, and stays free to move.
        places = (leaf.sharding if leaf.committed else None for leaf in leaves)
        return compiled(tree, tuple(places))(state, batch)

    return pinned


def make_scorer(logprobs: LogprobFn) -> Callable[[Any, Any, GroupBatch], jax.Array]:
    """Return a jitted function (trainable, frozen, batch) -> log-probabilities [B,G,T], without a gradient."""
    return jax.jit(lambda trainable, frozen, batch: logprobs(trainable, frozen, batch).logprob)


def slice_prompts(batch: GroupBatch, start: int, stop: int) -> GroupBatch:
    """Take prompts [start, stop) of a batch with their whole groups (a group is never split)."""
    return jax.tree.map(lambda x: x[start:stop], batch)
