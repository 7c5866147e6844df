"""The fused backends on eight virtual devices equal one device, with prompts and heads sharded or not.

cuDNN is replaced by a function that also rejects queries and keys sharded by tokens or head size.

Tests start this file as a script, since JAX fixes the number of devices at start.
"""

from __future__ import annotations

import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

# The last two: four query heads and two key heads on four devices (repeated keys), three prompts on two (unsharded).
CASES = {"prompts-and-heads": (2, 2, 2, 4), "few-key-heads": (2, 1, 4, 4), "odd-batch": (2, 1, 2, 3)}

BACKENDS = ("splash", "cudnn", "cudnn, windows")
ALL = [f"{backend}: {case}" for case in CASES for backend in BACKENDS]
# Each backend with prompts and heads sharded, and each other case with some backend.
SOME = [*ALL[:3], "splash: few-key-heads", "cudnn: few-key-heads", "splash: odd-batch"]


@pytest.mark.parametrize(
    "names", [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.nightly)]
)
def test_attention_on_a_mesh_equals_one_device(run_processes: Any, names: list[str]) -> None:
    ((out, _),) = run_processes([__file__, *names], 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured.keys() == set(names)
    assert all(error < 1e-5 for errors in measured.values() for error in errors), measured


def _measure(names: list[str]) -> dict[str, list[float]]:
    """Return the relative errors of the value and of each gradient, by backend and case."""
    import dataclasses
    import math

    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.batch import Segment
    from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, prediction_states, shard_params
    from jaxrl_sql.models.attention import cudnn, splash
    from jaxrl_sql.models.spec import SlidingWindow
    from jaxrl_sql.parallel import make_mesh

    full = ModelConfig("qwen3", 64, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 64)
    kernels = {
        "splash": (full, partial(splash.attend_tree, interpret=True)),
        "cudnn": (full, partial(cudnn.attend_tree, kernel=_strict_kernel())),
        "cudnn, windows": (
            dataclasses.replace(full, sliding=SlidingWindow(3, (True, False), 100.0)),
            partial(cudnn.attend_tree, kernel=_strict_kernel()),
        ),
    }
    g, p, t = 3, 7, 5
    params = init_params(full, jax.random.key(0))

    def loss(params: Any, batch: Any, config: Any, attention: Any) -> Any:
        tokens, length, completion, completion_len = batch
        states = prediction_states(
            params, config, (Segment(tokens, length),), completion, completion_len, attention=attention
        )
        inside = jnp.arange(t) < completion_len[..., None]
        return jnp.where(inside[..., None], jnp.sin(jnp.arange(32.0)) * states, 0.0).sum()

    @cache
    def value_and_gradient(config: Any, attention: Any) -> Any:
        return jax.jit(jax.value_and_grad(partial(loss, config=config, attention=attention)))

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
        mesh = make_mesh(data, fsdp, tensor, jax.devices()[: math.prod((data, fsdp, tensor))])
        for backend, (config, attention) in kernels.items():
            if f"{backend}: {name}" not in names:
                continue
            expected = value_and_gradient(config, "xla")(params, batch)
            with jax.set_mesh(mesh):
                got = value_and_gradient(config, attention)(
                    shard_params(params, config, mesh), jax.device_put(batch, jax.NamedSharding(mesh, jax.P()))
                )
            pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
            errors = [float(np.abs(np.asarray(a) - np.asarray(e)).max() / np.abs(e).max()) for a, e in pairs]
            results[f"{backend}: {name}"] = errors
    return results


def _strict_kernel() -> Any:
    """Return a kernel of plain products with cuDNN's shardings: rows and heads, equal for q, k and v."""
    import jax
    import plain_kernel
    from jax.experimental.custom_partitioning import custom_partitioning

    from jaxrl_sql.models.attention.cudnn import AttentionMask, Kernel

    queries, keys, values, sums = "b t h d", "b s k e", "b s k f", "b h t"

    def sharded(compute: Any, arguments: list[str], result: str) -> Any:
        """Return a function sharded by the partitioner, with JAX's checks of cuDNN's shardings."""

        def partition(mesh: Any, operands: Any, results: Any) -> Any:
            specs = [(*x.sharding.spec, None, None, None, None)[:4] for x in operands[:3]]
            if any(spec != specs[0] or spec[1] is not None or spec[3] is not None for spec in specs):
                raise ValueError(f"queries, keys and values are split as {specs}")
            row, _, head, _ = specs[0]
            splits = {4: jax.P(*specs[0]), 3: jax.P(row, head)}
            out = tuple(jax.NamedSharding(mesh, splits[x.ndim]) for x in results)
            return mesh, compute, out, tuple(x.sharding for x in operands)

        call = custom_partitioning(compute)
        call.def_partition(partition=partition, sharding_rule=f"{', '.join(arguments)} -> {result}")
        return call

    def mask_arguments(mask: Any) -> tuple[Any, list[str], list[Any]]:
        """Return a function that rebuilds the mask from arrays, the arrays' axes, and the arrays."""
        if mask.bias is not None:
            return lambda x: AttentionMask(bias=x), ["b o t s"], [mask.bias]
        return (
            (AttentionMask, [], [])
            if mask.length is None
            else (lambda x: AttentionMask(length=x), ["b"], [mask.length])
        )

    def forward(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
        rebuild_mask, axes, arrays = mask_arguments(mask)
        call = sharded(
            lambda q, k, v, *x: plain_kernel.forward(q, k, v, rebuild_mask(*x), scale),
            [queries, keys, values, *axes], f"{queries}, {sums}",
        )  # fmt: skip
        return call(q, k, v, *arrays)

    def backward(q: Any, k: Any, v: Any, mask: Any, scale: float, results_of_forward: Any, gradient: Any) -> Any:
        rebuild_mask, axes, arrays = mask_arguments(mask)
        call = sharded(
            lambda q, k, v, out, total, g, *x: plain_kernel.backward(q, k, v, rebuild_mask(*x), scale, (out, total), g),
            [queries, keys, values, queries, sums, queries, *axes], f"{queries}, {keys}, {values}",
        )  # fmt: skip
        return call(q, k, v, *results_of_forward, gradient, *arrays)

    return Kernel(forward, backward)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[levels]) for levels in (2, 1)]
    print(json.dumps(_measure(sys.argv[1:])))
