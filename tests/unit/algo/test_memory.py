"""Memory savings change no result: micro-batches, recomputation, bfloat16 activations, adapters, donation."""

from __future__ import annotations

import itertools
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

from jaxrl_sql.algo.loss import grpo_loss, sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import LossFn, init_state, make_scorer, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import GrpoConfig, KlConfig, LossConfig, OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.lora import init_adapters, policy_params
from jaxrl_sql.models.policy import make_policy

CONFIG = ModelConfig("qwen3", 64, 32, 4, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
OPTIM = OptimConfig(lr=1e-2, warmup_steps=0, schedule="constant", weight_decay=0.01)
B, G, P, T = 4, 3, 11, 16
# Small arrays, compiled often and run once: optimizing the programs would take longer than it saves.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def random_batch(seed: int = 0) -> GroupBatch:
    """Make groups with very unequal token counts: the last prompt's answers are the longest, one has weight 0."""
    r = np.random.default_rng(seed)
    shape = (B, G, T)
    weight = np.ones((B, G), np.float32)
    weight[0, :2] = 0
    arrays: dict[str, Any] = {
        "completion": r.integers(0, 64, shape).astype(np.int32),
        "completion_len": np.minimum(r.integers(1, 4, (B, G)) * 2 ** np.arange(B)[:, None], T).astype(np.int32),
        "loss_mask": r.random(shape) < 0.8,
        **{
            name: r.normal(-4, 0.3, shape).astype(np.float32)
            for name in ("behavior_logprobs", "rollout_logprobs", "old_logprobs", "reference_logprobs")
        },
        "reward": r.random((B, G)).astype(np.float32),
        "advantage": r.normal(0, 1, (B, G, 1)).astype(np.float32),
        "weight": weight,
        "truncated": r.random((B, G)) < 0.2,
    }
    prompt: Any = r.integers(0, 64, (B, P)).astype(np.int32)
    length: Any = np.array([11, 5, 8, 1], np.int32)
    return GroupBatch(shared=(Segment(prompt, length),), **arrays)


LOSSES: dict[str, LossFn] = {
    "sft": sft_loss,
    **{
        kind: partial(
            grpo_loss,
            cfg=GrpoConfig(kl=KlConfig(coef=0.05), loss=LossConfig(agg_mode=kind, mask_truncated=True)),
            on_policy=False,
        )
        for kind in ("token_mean", "sequence_mean", "constant")
    },
}


def assert_close(got: Any, want: Any, tolerance: float) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        scale = float(np.abs(np.asarray(b, np.float64)).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(scale, 1e-3), err_msg=str(path))


@pytest.mark.parametrize(
    ("loss", "cuts"),
    [
        pytest.param("sft", (4,), marks=pytest.mark.nightly),
        pytest.param("token_mean", (4,), marks=pytest.mark.nightly),
        pytest.param("token_mean", (2,), marks=pytest.mark.nightly),
        pytest.param("sequence_mean", (2,), marks=pytest.mark.nightly),
        pytest.param("constant", (4,), marks=pytest.mark.nightly),
    ],
)
def test_micro_batches_give_the_update_of_the_whole_batch(loss: str, cuts: tuple[int, ...]) -> None:
    """Denominators are global: token counts of parts differ by up to eight times, so a mean of means would differ."""
    # SGD: Adam's division would amplify differences in gradients near zero, or hide a factor.
    optimizer = optax.sgd(1.0)
    results = []
    for parts in (1, *cuts):
        update = jit(make_step(make_policy(CONFIG), LOSSES[loss], optimizer, accumulate=parts))
        results.append(update(init_state(init_params(CONFIG, jax.random.key(0)), optimizer), random_batch()))
    (whole, expected), *others = results
    for state, metrics in others:
        # CPUs sum in different orders: 1.1e-6 was measured; a wrong denominator is off by a tenth or more.
        assert_close(state.trainable, whole.trainable, 3e-6)
        assert metrics.keys() == expected.keys()
        for name, (amount, weight) in metrics.items():
            np.testing.assert_allclose(amount, expected[name][0], rtol=2e-5, atol=1e-5, err_msg=name)
            np.testing.assert_allclose(weight, expected[name][1], err_msg=name)


@pytest.mark.nightly
def test_micro_batches_need_less_memory_and_must_divide_the_batch() -> None:
    optimizer = make_optimizer(OPTIM, 10)
    state = init_state(init_params(CONFIG, jax.random.key(0)), optimizer)
    sizes = [
        jax.jit(make_step(make_policy(CONFIG), sft_loss, optimizer, parts))
        .lower(state, random_batch()).compile().memory_analysis().temp_size_in_bytes
        for parts in (1, 4)
    ]  # fmt: skip
    assert sizes[1] < 0.6 * sizes[0]
    with pytest.raises(ValueError, match="4 prompts are not divisible by 3 parts"):
        make_step(make_policy(CONFIG), sft_loss, optimizer, 3)(state, random_batch())


@cache
def gradient(remat: str, compute_dtype: Any = None) -> Any:
    """Return the compiled loss and gradient of a batch."""
    policy = make_policy(CONFIG, remat=remat, compute_dtype=compute_dtype)

    def mean_loss(params: Any, batch: GroupBatch) -> jax.Array:
        result = sft_loss(policy(params, None, batch), batch)
        return result.sum / result.weight

    return (
        jax.jit(jax.value_and_grad(mean_loss)).lower(init_params(CONFIG, jax.random.key(0)), random_batch()).compile()
    )


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(("query,key",), marks=pytest.mark.slow),
        pytest.param(("query,key,value,attended,gate,up", "query,key"), marks=pytest.mark.nightly),
    ],
    ids=len,
)
def test_recomputation_reduces_memory_and_changes_no_gradient(named: tuple[str, ...]) -> None:
    params, batch = init_params(CONFIG, jax.random.key(0)), random_batch()
    bytes_by_remat: dict[str, int] = {}
    expected = gradient("none")(params, batch)
    for remat in ("none", *named, "full"):
        compiled = gradient(remat)
        bytes_by_remat[remat] = compiled.memory_analysis().temp_size_in_bytes
        assert_close(compiled(params, batch), expected, 1e-5)
    assert all(more > less for more, less in itertools.pairwise(bytes_by_remat.values())), bytes_by_remat


@pytest.mark.slow
def test_bfloat16_activations_leave_weights_gradients_moments_and_losses_in_float32() -> None:
    optimizer = make_optimizer(OPTIM, 10)
    params, batch = init_params(CONFIG, jax.random.key(0)), random_batch()
    wide, narrow = (gradient("none", dtype) for dtype in (None, "bfloat16"))
    loss, grads = narrow(params, batch)
    expected, right = wide(params, batch)
    assert abs(loss - expected) < 0.01 * expected
    assert float(loss) != float(expected), "the loss was computed in float32"
    for (path, got), want in zip(jax.tree.leaves_with_path(grads), jax.tree.leaves(right), strict=True):
        assert got.dtype == jnp.float32, path
        assert np.linalg.norm(np.asarray(got) - np.asarray(want)) < 0.05 * np.linalg.norm(want), path
    update = make_step(make_policy(CONFIG, compute_dtype="bfloat16"), LOSSES["token_mean"], optimizer)
    state, metrics = update(init_state(params, optimizer), batch)
    kinds = {leaf.dtype for leaf in jax.tree.leaves((state.trainable, state.opt_state, metrics))}
    assert kinds <= {jnp.dtype("float32"), jnp.dtype("int32")}


def test_weight_gradients_are_not_rounded_to_the_activation_dtype() -> None:
    """The gradient of float32 weights is float32: few of its values are representable in bfloat16."""
    params = init_params(CONFIG, jax.random.key(0))
    _, grads = gradient("none", "bfloat16")(params, random_batch())
    for name in ("q", "o", "gate", "down"):
        leaf = np.asarray(grads["layers"][name])
        assert float(np.mean(leaf == leaf.astype(jnp.bfloat16).astype(np.float32))) < 0.1, name


def test_only_updated_arrays_are_donated() -> None:
    """A sampler may read the frozen base and the reference across updates, and must drop the rest."""
    optimizer = make_optimizer(OPTIM, 10)
    base = init_params(CONFIG, jax.random.key(0))
    before = jax.tree.map(np.array, base)
    adapters = init_adapters(CONFIG, 2, 4.0, ["*"], jax.random.key(1))
    state = init_state(adapters, optimizer, base, jax.tree.map(jnp.copy, adapters))
    update = make_step(make_policy(CONFIG), LOSSES["token_mean"], optimizer)
    later, _ = update(state, random_batch())
    for part, gone in ((state.trainable, True), (state.frozen, False), (state.reference, False)):
        assert all(leaf.is_deleted() == gone for leaf in jax.tree.leaves(part))
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert all(leaf.is_deleted() for leaf in moments)
    # The next state holds the same base: no copy, and every bit unchanged.
    assert all(a is b for a, b in zip(jax.tree.leaves(later.frozen), jax.tree.leaves(base), strict=True))
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(later.frozen), jax.tree.leaves(before), strict=True)
    )
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(policy_params(later.trainable, later.frozen)))
    assert all(pair.b.any() for pair in later.trainable.pairs.values())


def test_reference_of_adapters_is_the_base() -> None:
    base = init_params(CONFIG, jax.random.key(0))
    adapters = init_adapters(CONFIG, 2, 4.0, ["q", "down"], jax.random.key(1))
    moved = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.1), adapters)
    score = make_scorer(make_policy(CONFIG))
    plain = score(base, None, random_batch())[0]
    np.testing.assert_array_equal(score(adapters, base, random_batch())[0], plain)
    assert np.abs(score(moved, base, random_batch())[0] - plain).max() > 0.01


def loops(jaxpr: Any) -> list[Any]:
    """Return the scans of a program, including nested scans."""
    inner = [loop for equation in jaxpr.eqns for part in jaxprs_in_params(equation.params) for loop in loops(part)]
    return [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"] + inner


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.nightly)])
def test_adapter_update_holds_no_gradient_and_no_copy_of_the_base(remat: str) -> None:
    """Weights are inputs of the loops over layers and not outputs, neither as gradients nor as residuals."""
    base = init_params(CONFIG, jax.random.key(0))
    adapters = init_adapters(CONFIG, 2, 4.0, ["*"], jax.random.key(1))
    policy = make_policy(CONFIG, remat=remat, compute_dtype="bfloat16")

    def loss(trainable: Any, frozen: Any) -> jax.Array:
        return sft_loss(policy(trainable, frozen, random_batch()), random_batch()).sum

    def weights_out(trainable: Any, frozen: Any) -> set[tuple[int, ...]]:
        program = jax.make_jaxpr(jax.grad(loss))(trainable, frozen)
        out = {variable.aval.shape for loop in loops(program.jaxpr) for variable in loop.outvars}
        return out & {base["layers"][name].shape for name in adapters.pairs}

    assert weights_out(adapters, base) == set()
    assert len(weights_out(base, None)) > 3
