"""Time a GRPO step that computes each prompt once against one that repeats it for every completion.

`python scripts/bench_step.py`: 4 layers, width 256, vocabulary 4,096, AdamW in float32; 8 prompts of 256 tokens and 2
of 1,024, G = 8 completions of 128 tokens, KL to a reference. `repeated` is the usual method: B·G sequences of
P + T tokens, with logits of the completions only. `alone` is the grouped code with groups of one: prompts repeated,
attention still in two parts. The first part times the update on one batch, for which all compute the same loss. The
second times whole steps: sample answers of full length (with the engine, or the fixed batch of bench_rollout.py), score
them by the reference, and update. The goals are speed-ups of `grouped` over `repeated`.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxrl_sql.inference.process import prepare_process

prepare_process()  # before JAX is imported, as the commands do

import jax
import jax.numpy as jnp
import numpy as np
from bench_rollout import MODEL, Endless, Load, engine_run, generate_fixed_batches, make_load, pack_samples
from harness import Goal, Report, make_parser, ratios, run_turns, time_call

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_scorer, make_step
from jaxrl_sql.batch import GroupBatch, Segment, TrainState
from jaxrl_sql.config import GrpoConfig, KlConfig, OptimConfig
from jaxrl_sql.models import init_params
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs, token_logprobs
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.transformer import hidden_states, unembedding
from jaxrl_sql.rollout import Engine, EngineConfig


class Shape(NamedTuple):
    """B prompts of P tokens, G answers of T tokens, and the goals for the speed-up of the update and the step."""

    b: int
    p: int
    g: int
    t: int
    update_goal: Goal | None = None
    step_goal: Goal | None = None

    def __str__(self) -> str:
        return f"B={self.b} P={self.p} G={self.g} T={self.t}"


SHAPES = (Shape(8, 256, 8, 128, Goal(2.5), Goal(2.3)), Shape(2, 1024, 8, 128, Goal(3.3), Goal(3.0)))
QUICK = (Shape(2, 64, 4, 16),)

# One whole step: the state before -> the state after, and the seconds of each part.
WholeStep = Callable[[TrainState], tuple[TrainState, dict[str, float]]]


def random_batch(b: int, p: int, g: int, t: int) -> GroupBatch:
    """Sample a full batch: B prompts of P tokens, G completions of T."""
    r = np.random.default_rng(0)
    per_token = jnp.asarray(r.normal(-8, 0.1, (b, g, t)), "float32")
    return GroupBatch(
        shared=(Segment(jnp.asarray(r.integers(0, MODEL.vocab_size, (b, p))), jnp.full((b,), p)),),
        completion=jnp.asarray(r.integers(0, MODEL.vocab_size, (b, g, t))),
        completion_len=jnp.full((b, g), t),
        loss_mask=jnp.ones((b, g, t), bool),
        behavior_logprobs=per_token,
        rollout_logprobs=per_token,
        old_logprobs=per_token,
        reference_logprobs=per_token,
        reward=jnp.zeros((b, g)),
        advantage=jnp.asarray(r.normal(0, 1, (b, g, 1)), "float32"),
        weight=jnp.ones((b, g)),
        truncated=jnp.zeros((b, g), bool),
    )


def repeat_prompts(batch: GroupBatch) -> GroupBatch:
    """Give every completion its own copy of the prompt: groups of one."""
    b, g, _ = batch.completion.shape
    answers = jax.tree.map(lambda x: x.reshape(b * g, 1, *x.shape[2:]), dataclasses.replace(batch, shared=()))
    (prompt,) = batch.shared
    prompts = Segment(prompt.tokens.repeat(g, axis=0), prompt.length.repeat(g, axis=0))
    return dataclasses.replace(answers, shared=(prompts,))


def plain_policy(params: Any, frozen: Any, batch: GroupBatch) -> TokenLogprobs:
    """Score completions as the tails of plain sequences [B·G,P+T], for a batch of full lengths in groups of one."""
    del frozen
    (prompt,) = batch.shared
    sequence = jnp.concatenate([prompt.tokens[:, None], batch.completion], axis=2)
    block = Segment(tokens=sequence, length=prompt.length[:, None] + batch.completion_len)
    (hidden,) = hidden_states(params, MODEL, (block,))
    before = hidden[:, :, prompt.tokens.shape[1] - 1 : -1]
    return token_logprobs(before, unembedding(params, MODEL), batch.completion, 1.0)


def make_whole_step(
    shape: Shape,
    rollout: Callable[[Any], GroupBatch],
    policy: Any,
    reference: Any,
    optimizer: Any,
    advantage: jax.Array,
) -> WholeStep:
    """Return a GRPO step: `rollout` samples and packs answers, the reference scores them, and the update follows."""
    loss = partial(grpo_loss, cfg=GrpoConfig(kl=KlConfig(coef=0.04)), on_policy=True)
    scorer, update = make_scorer(policy), make_step(policy, loss, optimizer)

    def step(state: TrainState) -> tuple[TrainState, dict[str, float]]:
        began_at = time.perf_counter()
        batch = rollout(state.trainable)
        sampled_at = time.perf_counter()
        assert int(batch.completion_len.sum()) == shape.b * shape.g * shape.t
        scored = jax.block_until_ready(scorer(reference, None, batch)[0])
        batch = dataclasses.replace(batch, reference_logprobs=scored, advantage=advantage)
        scored_at = time.perf_counter()
        state, metrics = update(state, batch)
        jax.block_until_ready(metrics)
        ended_at = time.perf_counter()
        return state, {
            "rollout": sampled_at - began_at,
            "reference": scored_at - sampled_at,
            "update": ended_at - scored_at,
            "step": ended_at - began_at,
        }

    return step


def make_grouped_step(shape: Shape, params: Any, optimizer: Any, dtype: str = "float32") -> WholeStep:
    """Return our step in `dtype`: the engine samples, and the batch has each prompt once."""
    load = make_load(shape.b, shape.p, np.full((shape.b, shape.g), shape.t))
    engine = Engine(MODEL, None, Endless(), EngineConfig(shape.b * shape.g, compute_dtype=jnp.dtype(dtype)))

    def rollout(trainable: Any) -> GroupBatch:
        engine.params = trainable
        batch = pack_samples(load, engine_run(engine, load)[1])
        engine.params = None  # the update donates them
        return batch

    advantage = random_batch(*shape[:4]).advantage
    policy = make_policy(MODEL, compute_dtype=jnp.dtype(dtype), attention="auto")
    return make_whole_step(shape, rollout, policy, params, optimizer, advantage)


def make_repeated_step(shape: Shape, params: Any, optimizer: Any) -> WholeStep:
    """Return the step with a prompt per completion: a fixed batch samples, and the update uses plain sequences."""
    load: Load = make_load(shape.b, shape.p, np.full((shape.b, shape.g), shape.t))
    blank = repeat_prompts(random_batch(*shape[:4]))
    prompts = jnp.asarray([prompt.token_ids for prompt in load.prompts]).repeat(shape.g, axis=0)
    blank = dataclasses.replace(blank, shared=(dataclasses.replace(blank.shared[0], tokens=prompts),))

    def rollout(trainable: Any) -> GroupBatch:
        (tokens,) = generate_fixed_batches(trainable, load, shape.b * shape.g)
        return dataclasses.replace(blank, completion=jnp.asarray(tokens)[:, None])

    return make_whole_step(shape, rollout, plain_policy, params, optimizer, blank.advantage)


def time_updates(report: Report, shape: Shape, params: Any, optimizer: Any) -> None:
    """Time only updates on one batch, and check that all variants compute the same loss."""
    loss = partial(grpo_loss, cfg=GrpoConfig(kl=KlConfig(coef=0.04)), on_policy=True)
    steps = {
        "grouped": make_step(make_policy(MODEL), loss, optimizer),
        "repeated": make_step(plain_policy, loss, optimizer),
        "alone": make_step(make_policy(MODEL), loss, optimizer),
    }
    grouped = random_batch(*shape[:4])
    batches = {"grouped": grouped, "repeated": repeat_prompts(grouped), "alone": repeat_prompts(grouped)}
    states = {name: make_state(params, optimizer) for name in steps}
    losses: dict[str, float] = {}

    def update(name: str) -> float:
        step, state, batch = steps[name], states[name], batches[name]
        taken, (states[name], metrics) = time_call(lambda: jax.block_until_ready(step(state, batch)))
        total, weight = metrics["policy/loss"]
        losses.setdefault(name, float(total / weight))
        return taken

    taken = run_turns({name: partial(update, name) for name in steps}, report.turns)
    np.testing.assert_allclose(list(losses.values()), losses["grouped"], rtol=1e-4)
    for name, values in taken.items():
        report.add(f"update, {name}", values, "s", column=str(shape))
    goals = {"repeated": shape.update_goal, "alone": None}
    for name, goal in goals.items():
        over = ratios(taken[name], taken["grouped"])
        report.add(f"update, {name} / grouped", over, "x", goal, column=str(shape))


def time_steps(report: Report, shape: Shape, params: Any, optimizer: Any) -> None:
    """Time whole steps and their parts."""
    steps = {
        "grouped": make_grouped_step(shape, params, optimizer),
        "repeated": make_repeated_step(shape, params, optimizer),
    }
    states = {name: make_state(params, optimizer) for name in steps}

    def step(name: str) -> dict[str, float]:
        states[name], parts = steps[name](states[name])
        return parts

    taken = run_turns({name: partial(step, name) for name in steps}, report.turns)
    for name, values in taken.items():
        for phase in values[0]:
            report.add(f"whole step, {name}: {phase}", [parts[phase] for parts in values], "s", column=str(shape))
    repeated, grouped = ([parts["step"] for parts in taken[name]] for name in ("repeated", "grouped"))
    over = ratios(repeated, grouped)
    report.add("whole step, repeated / grouped", over, "x", shape.step_goal, column=str(shape))


def make_state(params: Any, optimizer: Any) -> TrainState:
    """Return the state before the first update, with a copy of the weights, as updates donate them."""
    return init_state(jax.tree.map(lambda x: x.copy(), params), optimizer)


def main() -> int:
    """Measure the shapes; return the exit code."""
    options = make_parser(__doc__).parse_args()
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    params = init_params(MODEL, jax.random.key(0))
    report = Report(options)
    for measure in (time_updates, time_steps):
        for shape in QUICK if options.quick else SHAPES:
            measure(report, shape, params, optimizer)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
