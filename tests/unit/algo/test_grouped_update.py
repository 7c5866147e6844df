"""The grouped update equals the repeated-prompt update in loss and in every gradient leaf."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from jaxrl_sql.algo.loss import grpo_loss, sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_scorer, make_step
from jaxrl_sql.algo.updates import make_advantage_fn, make_updates
from jaxrl_sql.batch import GroupBatch, Segment, TrainState
from jaxrl_sql.config import ClipConfig, GrpoConfig, KlConfig, LossConfig, OptimConfig, PpoConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.lora import init_adapters
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.value import add_value_head

CONFIG = ModelConfig("qwen3", 64, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
B, G, P, T = 3, 4, 11, 16
# Small arrays, compiled often and run once: optimizing the programs would take longer than it saves.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def random_batch(seed: int, width: int = P) -> GroupBatch:
    r = np.random.default_rng(seed)
    shape = (B, G, T)
    return GroupBatch(
        shared=(Segment(r.integers(0, 64, (B, width)).astype(np.int32), np.array([11, 5, 8], np.int32)),),  # type: ignore[arg-type]
        completion=r.integers(0, 64, shape).astype(np.int32),  # type: ignore[arg-type]
        completion_len=r.integers(1, T + 1, (B, G)).astype(np.int32),  # type: ignore[arg-type]
        loss_mask=r.random(shape) < 0.8,  # type: ignore[arg-type]
        behavior_logprobs=r.normal(-4, 0.3, shape).astype(np.float32),  # type: ignore[arg-type]
        rollout_logprobs=r.normal(-4, 0.3, shape).astype(np.float32),  # type: ignore[arg-type]
        old_logprobs=r.normal(-4.2, 0.2, shape).astype(np.float32),  # type: ignore[arg-type]
        reference_logprobs=r.normal(-4.2, 0.2, shape).astype(np.float32),  # type: ignore[arg-type]
        advantage=r.normal(0, 1, (B, G, 1)).astype(np.float32),  # type: ignore[arg-type]
        reward=r.random((B, G)).astype(np.float32),  # type: ignore[arg-type]
        weight=np.ones((B, G), np.float32),  # type: ignore[arg-type]
        truncated=np.zeros((B, G), bool),  # type: ignore[arg-type]
    )


def repeated(batch: GroupBatch) -> GroupBatch:
    """Give every completion its own prompt: B·G groups of one."""
    alone = jax.tree.map(lambda x: np.asarray(x).reshape(B * G, 1, *x.shape[2:]), dataclasses.replace(batch, shared=()))
    (prompt,) = batch.shared
    local = Segment(np.repeat(prompt.tokens, G, axis=0), np.repeat(prompt.length, G, axis=0))
    return dataclasses.replace(alone, shared=(local,))


@pytest.mark.parametrize(
    ("objective", "remat"),
    [
        pytest.param("grpo", "none", marks=pytest.mark.nightly),
        pytest.param("sft", "none", marks=pytest.mark.nightly),
        pytest.param("grpo", "full", marks=pytest.mark.nightly),
        pytest.param("sft", "full", marks=pytest.mark.nightly),
    ],
)
def test_grouped_equals_repeated_in_loss_and_every_gradient_leaf(objective: str, remat: str) -> None:
    params = init_params(CONFIG, jax.random.key(0))
    policy = make_policy(CONFIG, temperature=0.9, remat=remat)
    cfg = GrpoConfig(kl=KlConfig(coef=0.05), loss=LossConfig(entropy_bonus=0.01), clip=ClipConfig(high=0.3))

    def mean_loss(p: Any, batch: GroupBatch) -> jax.Array:
        scored = policy(p, None, batch)
        result = sft_loss(scored, batch) if objective == "sft" else grpo_loss(scored, batch, cfg, on_policy=False)
        return result.sum / result.weight

    batch, gradient = random_batch(0), jit(jax.value_and_grad(mean_loss))
    together, grads = gradient(params, batch)
    alone, expected = gradient(params, repeated(batch))
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    for (path, got), want in zip(jax.tree.leaves_with_path(grads), jax.tree.leaves(expected), strict=True):
        scale = float(np.abs(np.asarray(want)).max())
        assert scale > 0, path
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * scale, err_msg=str(path))


def test_step_moves_the_policy_toward_the_better_answer() -> None:
    policy = make_policy(CONFIG)
    optimizer = make_optimizer(OptimConfig(lr=1e-2, warmup_steps=0, schedule="constant"), 10)
    cfg = GrpoConfig(loss=LossConfig(tis_clip_max=0.0))
    batch = dataclasses.replace(
        random_batch(1), advantage=np.tile(np.array([1.0, -1.0, 0.0, 0.0], np.float32), (B, 1))[..., None],  # type: ignore[arg-type]
        loss_mask=np.ones((B, G, T), bool),  # type: ignore[arg-type]
    )  # fmt: skip
    params = init_params(CONFIG, jax.random.key(0))
    score = jit(lambda params: policy(params, None, batch).logprob)
    before = np.asarray(score(params))
    update = make_step(policy, lambda scored, b: grpo_loss(scored, b, cfg, on_policy=True), optimizer)
    state, metrics = update(init_state(params, optimizer), batch)
    after = np.asarray(score(state.trainable))
    mask = np.asarray(batch.policy_mask())
    gain = np.where(mask, after - before, 0).sum(axis=-1)
    assert (gain[:, 0] > gain[:, 1]).all()
    assert int(state.step) == 1
    total, weight = metrics["policy/ratio_mean"]
    assert float(total / weight) == pytest.approx(1.0)


class Case(NamedTuple):
    """An objective, and how the policy is built and run."""

    cfg: GrpoConfig
    rank: int = 0
    remat: str = "none"
    kept_bytes: int = 1 << 20


CASES = {
    "sequence ratio, remat": Case(
        GrpoConfig(loss=LossConfig(importance_sampling_level="sequence", agg_mode="sequence_mean"), num_iterations=2),
        remat="full",
    ),
    "kl in the reward, chunks": Case(
        GrpoConfig(kl=KlConfig(coef=0.3, placement="reward", estimator="k1")), kept_bytes=4 * 64 * 30
    ),
    "kl as a loss, adapters": Case(GrpoConfig(kl=KlConfig(coef=0.3, estimator="k2"), num_iterations=2), rank=3),
    "ppo": Case(GrpoConfig(algorithm="ppo", ppo=PpoConfig(gae_lambda=0.9, value_clip=0.0)), remat="query,key"),
    "ppo, adapters, chunks, remat": Case(
        GrpoConfig(algorithm="ppo", kl=KlConfig(coef=0.3, placement="reward"), loss=LossConfig(mask_truncated=True)),
        3,
        "full",
        4 * 64 * 30,
    ),
}
ALWAYS = {"ppo, adapters, chunks, remat"}
MARKED = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.nightly) for name in CASES]


def make_case(case: Case) -> tuple[Any, Any, Any, Any]:
    """Return a case's policy and (trainable, frozen, reference), all moved away from their initial values."""

    def moved(tree: Any, seed: int) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        noise = np.random.default_rng(seed)
        noisy = [np.asarray(x) + noise.normal(0, 0.05, x.shape).astype(np.float32) for x in leaves]
        return jax.tree.unflatten(structure, noisy)

    policy = make_policy(CONFIG, 0.9, case.remat, kept_bytes=case.kept_bytes)
    base = init_params(CONFIG, jax.random.key(0))
    start = init_adapters(CONFIG, case.rank, 6.0, ["*"], jax.random.key(1)) if case.rank else base
    trainable = add_value_head(start, CONFIG) if case.cfg.algorithm == "ppo" else start
    return policy, moved(trainable, 2), base if case.rank else None, moved(start, 3)


def several_turns(width: int = P) -> GroupBatch:
    """Make a batch whose answers contain environment tokens, from the third to the seventh token of each."""
    at = np.arange(T)
    mask = np.broadcast_to((at < 3) | (at >= 7), (B, G, T))
    batch = random_batch(4, width)
    truncated = np.zeros((B, G), bool)
    truncated[1, 1] = True
    return dataclasses.replace(batch, loss_mask=mask, truncated=truncated, old_logprobs=None, reference_logprobs=None)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", MARKED)
def test_updates_of_a_step_equal_repeated_prompts_with_every_option(name: str) -> None:
    """Compare old and reference log-probabilities, values and gradients under SGD, which hides no factor."""
    case = CASES[name]
    policy, trainable, frozen, reference = make_case(case)
    optimizer = optax.sgd(1.0)
    # Groups of one have no advantage, so the raw rewards are used instead.
    add_advantages = make_advantage_fn(policy, case.cfg, advantage=lambda reward, weight: (reward - 0.5) * weight)
    update = make_updates(policy, case.cfg, optimizer)

    @jit
    def updates(state: TrainState, batch: GroupBatch) -> tuple[TrainState, Any]:
        batch, result = add_advantages(state, batch)
        state, metrics = update(state, batch)
        return state, {**metrics, **result}

    batch = several_turns()
    results = [
        updates(init_state(trainable, optimizer, frozen, reference), arguments)
        for arguments in (batch, repeated(batch))
    ]
    (together, metrics), (alone, expected) = results
    start = jax.tree.leaves_with_path(trainable)
    for (path, first), got, want in zip(start, *(jax.tree.leaves(s.trainable) for s, _ in results), strict=True):
        scale = float(np.abs(np.asarray(want - first)).max())
        assert scale > 0, path
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * scale + 1e-6, err_msg=str(path))
    assert int(together.step) == int(alone.step) == case.cfg.num_iterations
    for key, (amount, weight) in metrics.items():
        np.testing.assert_allclose(amount, expected[key][0], rtol=1e-4, atol=1e-5, err_msg=key)
        np.testing.assert_allclose(weight, expected[key][1], rtol=1e-4, err_msg=key)


@pytest.mark.nightly
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", MARKED)
def test_scores_and_gradients_run_each_prompt_once_with_every_option(name: str) -> None:
    """With prompts four times as long as answers, G copies would cost more than twice as much."""
    case = CASES[name]
    policy, trainable, frozen, _ = make_case(case)
    batch = dataclasses.replace(several_turns(64), advantage=np.ones((B, G, 1), np.float32))  # type: ignore[arg-type]

    def gradient(trainable: Any, frozen: Any, batch: GroupBatch) -> Any:
        return jax.grad(lambda t: grpo_loss(policy(t, frozen, batch), batch, GrpoConfig(), True).sum)(trainable)

    for program in (make_scorer(policy), jit(gradient)):
        flops = [
            program.lower(trainable, frozen, arguments).cost_analysis()["flops"]  # type: ignore[attr-defined]
            for arguments in (batch, repeated(batch))
        ]
        assert flops[0] < 0.55 * flops[1]
