"""Splash under `shard_map` on eight virtual devices: what one device computes, prompts and heads split or not.

Run as a test it starts itself as a script, since the number of devices is fixed when JAX starts.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

# The last two: four query heads and two key heads on four devices (keys repeated), three prompts on two (not split).
CASES = {"prompts-and-heads": (2, 2, 2, 4), "few-key-heads": (2, 1, 4, 4), "odd-batch": (2, 1, 2, 3)}


def test_a_mesh_computes_what_one_device_computes(together: Any) -> None:
    ((out, _),) = together([__file__], 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured.keys() == CASES.keys()
    assert all(error < 1e-5 for errors in measured.values() for error in errors), measured


def _measure() -> dict[str, list[float]]:
    """Return the relative errors of the value and of every gradient, by case."""
    import math

    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.batch import Segment
    from jaxrl_sql.models import ModelConfig, init_params, prediction_states, shard_params
    from jaxrl_sql.models.attention import splash
    from jaxrl_sql.parallel import make_mesh

    config = ModelConfig("qwen3", 64, 32, 2, 4, 2, 8, 48, 1e4, 1e-6, True, True, False, 64)
    g, p, t = 3, 7, 5
    params = init_params(config, jax.random.key(0))

    def loss(params: Any, batch: Any, attention: Any) -> Any:
        tokens, length, completion, completion_len = batch
        states = prediction_states(
            params, config, (Segment(tokens, length),), completion, completion_len, attention=attention
        )
        inside = jnp.arange(t) < completion_len[..., None]
        return jnp.where(inside[..., None], jnp.sin(jnp.arange(32.0)) * states, 0.0).sum()

    results = {}
    for name, (data, fsdp, tensor, b) in CASES.items():
        r = np.random.default_rng(0)
        batch = (
            r.integers(0, 64, (b, p)),
            r.integers(1, p + 1, b),
            r.integers(0, 64, (b, g, t)),
            r.integers(0, t + 1, (b, g)),
        )
        batch = tuple(jnp.asarray(x, jnp.int32) for x in batch)
        expected = jax.jit(jax.value_and_grad(partial(loss, attention="xla")))(params, batch)
        mesh = make_mesh(data, fsdp, tensor, jax.devices()[: math.prod((data, fsdp, tensor))])
        with jax.set_mesh(mesh):
            own = partial(loss, attention=partial(splash.attend_tree, interpret=True))
            got = jax.jit(jax.value_and_grad(own))(
                shard_params(params, config, mesh), jax.device_put(batch, jax.NamedSharding(mesh, jax.P()))
            )
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
        results[name] = [float(np.abs(np.asarray(a) - np.asarray(e)).max() / np.abs(e).max()) for a, e in pairs]
    return results


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(_measure()))
