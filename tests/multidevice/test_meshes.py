"""Eight virtual devices in a process of their own: the same updates and tokens on any mesh as on one device.

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
    """Losses, parameters and moments (whose first is the gradient) of an SFT and a GRPO update, and greedy tokens."""
    result = measured[mesh]
    assert measured["devices"] == 8
    for part in ("sft", "grpo"):
        assert any(name.startswith(f"['{part}']['optimizer']") for name in result["errors"])
    for name, error in result["errors"].items():
        assert error <= (0 if name.startswith("['tokens']") else TOLERANCE), f"{name}: relative error {error}"
    assert result["loaded_equal"], "a folder read straight to the mesh differs"


@pytest.mark.parametrize("mesh", ["x".join(map(str, mesh)) for mesh in MESHES])
def test_parameters_moments_caches_and_batches_are_split(measured: dict[str, Any], mesh: str) -> None:
    assert measured[mesh]["misplaced"] == []
    assert measured[mesh]["pieces"]["layers/q"] == 8 // int(mesh.split("x")[0])
    assert measured[mesh]["pieces"]["embed"] == 8 // int(mesh.split("x")[0])


@pytest.mark.parametrize("mesh", ["x".join(map(str, mesh)) for mesh in MESHES])
def test_an_update_and_a_chunk_compile_once(measured: dict[str, Any], mesh: str) -> None:
    """Two updates and many chunks of one shape: what comes out lies as it went in."""
    compiled = measured[mesh]["compiled"]
    assert compiled["step"] == 2, "one for SFT, one for GRPO"
    assert compiled["decode_chunk"] == 2, "the engine's width and that of the look at the caches"


def _measure() -> dict[str, Any]:
    """Compute everything on one device and on each mesh; runs in the process with eight devices."""
    import jax
    import numpy as np
    import steps

    from jaxrl_sql.models import load_checkpoint, save_checkpoint
    from jaxrl_sql.parallel import make_mesh

    counts: dict[str, int] = {}

    def count(_event: str, _seconds: float, **names: Any) -> None:
        if (name := names.get("fun_name")) and _event.endswith("backend_compile_duration"):
            name = name.removeprefix("jit(").removesuffix(")")
            counts[name] = counts.get(name, 0) + 1

    jax.monitoring.register_event_duration_secs_listener(count)
    params = steps.make_params()
    alone = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    expected, _ = steps.measure(alone, steps.place_params(alone, params))
    results: dict[str, Any] = {"devices": len(jax.devices())}
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(folder, steps.CONFIG, params)
        for shape in MESHES:
            counts.clear()
            mesh = make_mesh(*shape)
            placed = steps.place_params(mesh, params)
            got, misplaced = steps.measure(mesh, placed)
            _, loaded = load_checkpoint(folder, mesh=mesh)
            same = jax.tree.map(
                lambda a, c: bool(np.array_equal(np.asarray(a), np.asarray(c))) and a.sharding == c.sharding,
                loaded,
                placed,
            )
            assert got.keys() == expected.keys()
            weights = {"layers/q": placed["layers"]["q"], "embed": placed["embed"]}
            results["x".join(map(str, shape))] = {
                "errors": {
                    name: float(np.abs(leaf - expected[name]).max() / max(np.abs(expected[name]).max(), 1e-30))
                    for name, leaf in got.items()
                },
                "misplaced": misplaced,
                "pieces": {n: len({str(s.index) for s in w.addressable_shards}) for n, w in weights.items()},
                "compiled": dict(counts),
                "loaded_equal": all(jax.tree.leaves(same)),
            }
    return results


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(_measure()))
