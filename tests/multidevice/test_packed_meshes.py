"""Packed updates on eight virtual devices equal unpacked ones on one: whole, in parts, by tokens, and with splash.

Tests start this file as a script, since JAX fixes the number of devices at start.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

B, G, P, T = 8, 6, 8, 16
# Parts, tokens per shard (0: by parts), and the attention backend.
CASES = {
    "in-two-parts": (2, 0, "xla"),
    "in-two-parts-under-splash": (2, 0, "splash"),
    "in-two-parts-under-cudnn": (2, 0, "cudnn"),
    "all-rows-of-a-prompt-at-a-time": (1, P + 3 * T, "xla"),
    "a-row-at-a-time": (1, P + T, "xla"),
}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(("in-two-parts-under-splash", "a-row-at-a-time"), id="one-of-each-kind"),
        pytest.param(tuple(CASES), id="all", marks=pytest.mark.nightly),
    ],
)
def test_packed_updates_on_a_mesh_equal_unpacked_updates_on_one_device(
    run_processes: Any, cases: tuple[str, ...]
) -> None:
    ((out, _),) = run_processes([__file__, *cases], 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured.keys() == set(cases)
    assert all(error < 2e-5 for errors in measured.values() for error in errors.values()), measured


def _batch() -> Any:
    """Return answers of all lengths, which need one to three rows per prompt."""
    import numpy as np

    from jaxrl_sql.batch import GroupBatch, Segment

    r = np.random.default_rng(0)
    length = r.integers(0, 9, (B, G)).astype(np.int32)
    length[0], length[5] = 1, [16, 9, 7, 5, 3, 1]
    numbers = r.normal(size=(3, B, G, T)).astype(np.float32)
    prompt = Segment(r.integers(0, 64, (B, P)).astype(np.int32), r.integers(1, P + 1, B).astype(np.int32))
    return GroupBatch(
        shared=(prompt,), completion=r.integers(0, 64, (B, G, T)).astype(np.int32), completion_len=length,
        loss_mask=r.random((B, G, T)) < 0.8, behavior_logprobs=numbers[0] - 3, rollout_logprobs=numbers[0] - 3,
        reward=numbers[1, :, :, 0], weight=(r.random((B, G)) < 0.9).astype(np.float32),
        truncated=np.zeros((B, G), bool), old_logprobs=numbers[0] - 3, advantage=numbers[2, :, :, :1],
    )  # fmt: skip


def _measure(cases: list[str]) -> dict[str, dict[str, float]]:
    """Return by case the error of updates and scores on the mesh against one device, relative to the largest."""
    import jax
    import numpy as np
    import optax
    import plain_kernel

    from jaxrl_sql.algo.loss import grpo_loss
    from jaxrl_sql.algo.step import init_state, make_scorer, make_step
    from jaxrl_sql.config import GrpoConfig, LossConfig
    from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, shard_params
    from jaxrl_sql.models.attention import cudnn, splash
    from jaxrl_sql.models.ops.micro_batches import MicroBatches
    from jaxrl_sql.models.policy import make_policy
    from jaxrl_sql.parallel import make_mesh, shard_batch
    from jaxrl_sql.training.batching.pack import with_packed_rows

    config = ModelConfig("qwen3", 64, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 64)
    # Steps so large that the new weights are the gradients: rounding against weights of 1 gave an error of 5e-5.
    params, rate, batch = init_params(config, jax.random.key(0)), optax.sgd(2.0**20), _batch()
    packed, inside = with_packed_rows(batch), np.arange(T) < batch.completion_len[..., None]
    assert packed.packed_length is not None
    assert packed.packed_length.shape[1] < G
    objective = partial(grpo_loss, cfg=GrpoConfig(loss=LossConfig(entropy_bonus=0.1)), on_policy=False)

    def learned(params: Any, batch: Any, by: MicroBatches, attention: Any) -> tuple[Any, Any]:
        policy = make_policy(config, attention=attention)
        scores = np.asarray(make_scorer(policy, by)(params, None, batch)[0])
        state = init_state(jax.tree.map(lambda x: x.copy(), params), rate)
        moved = make_step(policy, objective, rate, by)(state, batch)[0].trainable
        return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), moved, jax.device_get(params)), scores

    want, scores = learned(params, batch, MicroBatches(), "xla")
    kernel = cudnn.Kernel(plain_kernel.forward, plain_kernel.backward)
    backends: dict[str, Any] = {
        "xla": "xla",
        "splash": partial(splash.attend_tree, interpret=True),
        "cudnn": partial(cudnn.attend_tree, kernel=kernel),
    }
    mesh, result = make_mesh(2, 2, 2), {}
    for name in cases:
        parts, tokens, backend = CASES[name]
        with jax.set_mesh(mesh):
            got, scored = learned(
                shard_params(params, config, mesh),
                shard_batch(packed, mesh),
                MicroBatches(parts, tokens, 4),
                backends[backend],
            )
        moved = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
        result[name] = {
            "moved": max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in moved),
            "scores": float(np.abs(scored - scores)[inside].max() / np.abs(scores).max()),
        }
    return result


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[levels]) for levels in (2, 1)]
    print(json.dumps(_measure(sys.argv[1:])))
