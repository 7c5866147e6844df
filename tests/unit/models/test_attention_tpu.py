"""Splash compiles for a TPU without one, if `libtpu` is installed: gradient, mesh, both head layouts.

If remat names the attention output, the forward kernel runs once.

As a test this file runs itself as a script, because libtpu stays loaded in its process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.planning.chips import LIBTPU_ENVIRONMENT

pytestmark = pytest.mark.slow


NEEDS_LIBTPU = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def run(tensor: str, remat: str) -> list[int]:
    """Run this file as a script; return the number of calls of each kernel in the compiled program."""
    env = os.environ | {"JAX_PLATFORMS": "cpu"} | LIBTPU_ENVIRONMENT
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, __file__, tensor, remat]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(word) for word in done.stdout.split()[-3:]]


@NEEDS_LIBTPU
@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param("2", id="heads-split"),
        pytest.param("4", id="key-heads-repeated", marks=pytest.mark.nightly),
    ],
)
def test_gradient_of_a_grouped_pass_compiles_for_four_chips(tensor: str) -> None:
    again, named = run(tensor, "full"), run(tensor, "query,key,value,attended")
    assert min(again) > 0, "a kernel is missing from the compiled program"
    assert named == [again[0] // 2, *again[1:]], "the forward kernel runs again although remat names its output"


def _compile(tensor: int, remat: str) -> tuple[int, ...]:
    """Compile for v5e:2x2 and return the number of calls of each of the three kernels."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies

    from jaxrl_sql.batch import Segment
    from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, param_shardings, prediction_states
    from jaxrl_sql.models.attention import splash
    from jaxrl_sql.parallel import make_mesh

    devices = topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu").devices
    mesh = make_mesh(1, 4 // tensor, tensor, devices)
    config = ModelConfig("qwen2", 512, 256, 1, 4, 2, 64, 512, Rope(1e6), Norms(), True, False, True, 1024)
    b, p, g, t = 4, 160, 2, 48

    def loss(params: Any, prompt: Any, prompt_len: Any, completion: Any, completion_len: Any) -> Any:
        shared = (Segment(prompt, prompt_len),)
        states = prediction_states(
            params, config, shared, completion, completion_len, remat, attention=splash.attend_tree
        )
        return (states.astype(jnp.float32) ** 2).sum()

    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0), jnp.bfloat16))
        params = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            param_shardings(config, mesh),
        )
        split = jax.NamedSharding(mesh, jax.P(("data", "fsdp")))
        ids = [jax.ShapeDtypeStruct(s, jnp.int32, sharding=split) for s in ((b, p), (b,), (b, g, t), (b, g))]
        program = jax.jit(jax.grad(loss)).lower(params, *ids).compile().as_text()
    calls = re.findall(r"%splash_mha_(fwd|dq|dkv)\w*[.\d]* = [^\n]*custom-call\(", program)
    return tuple(calls.count(phase) for phase in ("fwd", "dq", "dkv"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    print(*_compile(int(sys.argv[1]), sys.argv[2]))
