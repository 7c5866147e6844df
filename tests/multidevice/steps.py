"""The real updates and the real engine on a mesh, as arrays to compare; imported by scripts for many devices.

All values are drawn from fixed seeds, so each process of a run has the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_step
from jaxrl_sql.algo.updates import make_advantage_fn, make_updates
from jaxrl_sql.batch import GroupBatch, TrainState
from jaxrl_sql.config import GrpoConfig, KlConfig, LossConfig, OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, param_shardings, shard_params
from jaxrl_sql.models.attention.paged import POOL
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.value import add_value_head
from jaxrl_sql.parallel import batch_sharding, rows_here, shard_batch, sharding_of
from jaxrl_sql.parallel.processes import gathered
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.training.batching.pack import pack_groups, pack_rows
from jaxrl_sql.training.batching.sft_batches import SftCompletion, SftRow
from jaxrl_sql.types import Prompt, Trajectory, Turn

CONFIG = ModelConfig("qwen3", 64, 32, 2, 8, 4, 8, 48, Rope(1e4), Norms(), False, True, False, 96)
B, G, T = 8, 2, 6
END = "<end>"
# A large epsilon: for an almost zero gradient, Adam's step must not be its sign.
OPTIM = OptimConfig(lr=1e-2, warmup_steps=1, eps=1e-2)
GRPO = GrpoConfig(kl=KlConfig(coef=0.05), loss=LossConfig(agg_mode="token_mean"))
PPO = GrpoConfig(
    kl=KlConfig(coef=0.05, placement="reward"), loss=LossConfig(importance_sampling_level="sequence"), algorithm="ppo"
)


class Letters:
    """The engine's interface to a tokenizer: an end token and texts."""

    eos_token = END

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(48 + i): i for i in range(63)}, END: 63}

    def decode(self, ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(chr(48 + i) for i in ids)


def make_params() -> Any:
    """Draw parameters whose norms are not all ones."""
    noisy = jax.jit(lambda x, key: x + 0.1 * jax.random.normal(key, x.shape))
    return jax.tree.map(lambda leaf: noisy(leaf, jax.random.key(1)), init_params(CONFIG, jax.random.key(0)))


def make_prompts() -> list[Prompt]:
    rng = np.random.default_rng(3)
    return [Prompt(str(i), tuple(rng.integers(0, 60, 3 + i % 5).tolist()), "") for i in range(B)]


def answer(tokens: tuple[int, ...]) -> SftCompletion:
    """Return a completion whose last three tokens are trained on."""
    return SftCompletion(tokens, tuple(i >= len(tokens) - 3 for i in range(len(tokens))))


def make_batch(kind: str, here: list[int]) -> GroupBatch:
    """Pack this process's part of a batch."""
    rng = np.random.default_rng(7)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, 60, rng.integers(low, high)).tolist())

    if kind == "sft":
        # One row is missing: a row of weight 0 is on one of the devices.
        rows = [SftRow(ids(3, 9), tuple(answer(ids(4, T + 1)) for _ in range(G))) for _ in range(B - 1)]
        return pack_rows(rows, B, G, 16, here)
    groups = []
    for prompt in make_prompts():
        turns = [
            Turn("assistant", tokens, (-3.0,) * len(tokens), (-2.9,) * len(tokens)) for tokens in (ids(2, T), ids(2, T))
        ]
        groups.append([Trajectory(prompt, g, (turn,), "stop") for g, turn in enumerate(turns)])
    reward = rng.normal(size=(B, G)).astype(np.float32)
    return pack_groups(groups, reward, np.ones((B, G), np.float32), T, here)


def measure(
    mesh: jax.sharding.Mesh, params: Any, kinds: Sequence[str] = ("sft", "grpo")
) -> tuple[dict[str, Any], list[str]]:
    """Make two updates of each kind and decode greedily -> arrays by name, and the misplaced arrays."""
    numbers: dict[str, Any] = {}
    misplaced: list[str] = []
    here = rows_here(mesh, B)
    with jax.set_mesh(mesh):
        for kind in kinds:
            optimizer = make_optimizer(OPTIM, 10)
            local = jax.tree.map(lambda x: x.copy(), params)  # the update donates its state
            state = init_state(local, optimizer, reference=make_reference(params))
            batch = shard_batch(make_batch(kind, here), mesh, B)
            misplaced += [
                f"batch {leaf.shape}" for leaf in jax.tree.leaves(batch) if not _lies(leaf, batch_sharding(mesh))
            ]
            policy = make_policy(CONFIG)
            step = make_step(policy, sft_loss, optimizer) if kind == "sft" else grpo_step(policy, GRPO, optimizer)
            for number in range(2):  # the first warms up from a small rate; the second must not compile
                misplaced += _misplaced(f"{kind} before step {number}", state, mesh)
                state, metrics = step(state, batch)
            misplaced += _misplaced(f"{kind} at the end", state, mesh)
            numbers[kind] = {"metrics": metrics, "parameters": state.trainable, "optimizer": state.opt_state}
        engine = Engine(CONFIG, params, Letters(), EngineConfig(B * G))
        for name, temperature in (("tokens", 0.0), ("drawn", 1.0)):
            samples = engine.generate(make_prompts(), SamplingParams(temperature=temperature, max_new_tokens=T, n=G))
            numbers[name] = {f"{s.prompt_index}.{s.index}": np.array(s.token_ids) for s in samples}
        misplaced += _pools(engine, mesh)
    named = jax.tree.leaves_with_path(numbers)
    host = {jax.tree_util.keystr(path): _on_host(leaf) for path, leaf in named}
    return host, misplaced


def make_reference(params: Any) -> Any:
    """Return a policy so far from the parameters that their KL divergence exceeds rounding."""
    return jax.tree.map(lambda x: 1.2 * x, params)


def grpo_step(policy: Any, cfg: GrpoConfig, optimizer: Any) -> Any:
    """Return a step's scoring and updates, in order."""
    compare, update = make_advantage_fn(policy, cfg), make_updates(policy, cfg, optimizer)

    def step(state: Any, batch: GroupBatch) -> tuple[Any, Any]:
        batch, result = compare(state, batch)
        state, metrics = update(state, batch)
        return state, {**metrics, **result}

    return step


def measure_ppo(mesh: jax.sharding.Mesh, params: Any) -> dict[str, Any]:
    """Make two PPO steps with a sequence ratio and the KL in the reward -> arrays by name."""
    optimizer = make_optimizer(OPTIM, 10)
    with jax.set_mesh(mesh):
        local = add_value_head(jax.tree.map(lambda x: x.copy(), params), CONFIG, mesh)
        state = init_state(local, optimizer, reference=make_reference(params))
        batch = shard_batch(make_batch("ppo", rows_here(mesh, B)), mesh, B)
        updates = grpo_step(make_policy(CONFIG), PPO, optimizer)
        for _ in range(2):
            state, metrics = updates(state, batch)
    named = jax.tree.leaves_with_path({"metrics": metrics, "parameters": state.trainable})
    return {jax.tree_util.keystr(path): _on_host(leaf) for path, leaf in named}


def place_params(mesh: jax.sharding.Mesh, params: Any) -> Any:
    return shard_params(params, CONFIG, mesh)


def _on_host(leaf: Any) -> np.ndarray:
    return gathered(leaf) if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _lies(leaf: jax.Array, sharding: Any) -> bool:
    return leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def _misplaced(when: str, state: TrainState, mesh: jax.sharding.Mesh) -> list[str]:
    """Name the parameters and moments whose shards violate the rule table."""
    wanted = param_shardings(CONFIG, mesh)
    wrong = []
    for what, tree in (
        ("parameter", state.trainable),
        ("mu", optax.tree.get(state.opt_state, "mu")),
        ("nu", optax.tree.get(state.opt_state, "nu")),
    ):
        for (path, leaf), sharding in zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(wanted), strict=True):
            piece = leaf.addressable_shards[0].data.shape
            if not _lies(leaf, sharding) or piece != sharding.shard_shape(leaf.shape):
                wrong.append(f"{when}: {what} {jax.tree_util.keystr(path)} {leaf.sharding}")
    return wrong


def _pools(engine: Engine, mesh: jax.sharding.Mesh) -> list[str]:
    """Name the pools of KV blocks with the wrong sharding after the engine has run."""
    wrong = []
    for name, pool in (("prompts", engine.runner.prompt_pool), ("completions", engine.runner.completion_pool)):
        assert pool is not None
        leaves = [leaf for leaf in (*pool.k, *pool.v) if not _lies(leaf, sharding_of(mesh, POOL, leaf.shape))]
        wrong += [f"{name}: {leaf.shape} {leaf.sharding}" for leaf in leaves]
    return wrong
