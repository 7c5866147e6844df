"""Eight virtual devices in a process of their own: the same losses, gradients and tokens on any mesh as on one device.

Run as a test it starts itself as a script, since the number of devices is fixed when JAX starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

MESHES = ((2, 2, 2), (1, 8, 1), (8, 1, 1), (1, 1, 8))
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """Run this file once as a script on eight devices and return what it printed."""
    env = os.environ | {
        # Compiling is most of the time here, and less of it computes the same.
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mesh", ["x".join(map(str, mesh)) for mesh in MESHES])
def test_a_mesh_computes_what_one_device_computes(measured: dict[str, Any], mesh: str) -> None:
    result = measured[mesh]
    assert measured["devices"] == 8
    assert result["split"], "no weight was split or no batch was: the comparison would say nothing"
    for name, error in result["errors"].items():
        assert error <= TOLERANCE, f"{name}: relative error {error}"
    assert result["tokens_equal"]
    assert result["loaded_equal"], "a folder read straight to the mesh differs"


def _measure() -> dict[str, Any]:
    """Compute everything on one device and on each mesh; runs in the process with eight devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.batch import Segment
    from jaxrl_sql.models import (
        ModelConfig,
        decode_step,
        forward,
        init_decode_cache,
        init_params,
        load_checkpoint,
        prediction_states,
        prefill,
        save_checkpoint,
        shard_params,
        unembed,
    )
    from jaxrl_sql.parallel import make_mesh, shard_batch

    config = ModelConfig("qwen3", 64, 32, 2, 8, 4, 8, 48, 1e4, 1e-6, False, True, False, 64)
    b, p, g, t = 8, 6, 4, 5
    rng = np.random.default_rng(0)
    # Numpy on purpose: each case puts it where it belongs.
    batch = {
        "prompt": rng.integers(0, 64, (b, p)).astype(np.int32),
        "prompt_len": rng.integers(1, p + 1, b).astype(np.int32),
        "completion": rng.integers(0, 64, (b, g, t)).astype(np.int32),
        "completion_len": rng.integers(1, t + 1, (b, g)).astype(np.int32),
        "advantage": rng.normal(size=(b, g)).astype(np.float32),
    }

    def nll(logits: Any, tokens: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]

    def grouped_loss(params: Any, x: Any) -> Any:
        shared = (Segment(x["prompt"], x["prompt_len"]),)
        hidden = prediction_states(params, config, shared, x["completion"], x["completion_len"])
        inside = jnp.arange(t) < x["completion_len"][..., None]
        terms = x["advantage"][..., None] * nll(unembed(params, config, hidden), x["completion"])
        return jnp.where(inside, terms, 0.0).sum() / inside.sum(), hidden

    def plain_loss(params: Any, x: Any) -> Any:
        logits = forward(params, config, x["prompt"], x["prompt_len"])
        inside = jnp.arange(1, p) < x["prompt_len"][:, None]
        return jnp.where(inside, nll(logits[:, :-1], x["prompt"][:, 1:]), 0.0).sum() / inside.sum(), logits

    def greedy(params: Any, x: Any) -> Any:
        prefix, last = prefill(params, config, x["prompt"], x["prompt_len"])
        hidden = jnp.broadcast_to(last[:, None], (b, g, config.d_model))
        cache = init_decode_cache(config, b, g, t, jnp.float32)

        def step(carry: Any, _: Any) -> Any:
            hidden, cache = carry
            token = jnp.argmax(unembed(params, config, hidden), axis=-1).astype(jnp.int32)
            return decode_step(params, config, prefix, cache, token, jnp.ones((b, g), bool)), token

        return jax.lax.scan(step, (hidden, cache), length=t)[1]

    def run(params: Any, x: Any) -> dict[str, Any]:
        out = {}
        for name, loss in (("grouped", grouped_loss), ("plain", plain_loss)):
            out[name] = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, x)
        return jax.tree.map(np.asarray, out | {"tokens": jax.jit(greedy)(params, x)})

    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape),
        init_params(config, jax.random.key(0)),
    )
    expected = run(params, batch)
    results: dict[str, Any] = {"devices": len(jax.devices())}
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(folder, config, params)
        for shape in MESHES:
            mesh = make_mesh(*shape)
            with jax.set_mesh(mesh):
                placed, x = shard_params(params, config, mesh), shard_batch(batch, mesh)
                got = run(placed, x)
            _, loaded = load_checkpoint(folder, mesh=mesh)
            same = jax.tree.map(
                lambda a, c: bool(np.array_equal(np.asarray(a), np.asarray(c))) and a.sharding == c.sharding,
                loaded,
                placed,
            )
            errors = {}
            for (path, leaf), other in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
                errors[jax.tree_util.keystr(path)] = float(np.abs(leaf - other).max() / np.abs(other).max())
            weights_split = not placed["layers"]["q"].sharding.is_fully_replicated
            results["x".join(map(str, shape))] = {
                "errors": errors,
                "split": weights_split or not x["prompt"].sharding.is_fully_replicated,
                "tokens_equal": bool(np.array_equal(got["tokens"], expected["tokens"])),
                "loaded_equal": all(jax.tree.leaves(same)),
            }
    return results


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(_measure()))
