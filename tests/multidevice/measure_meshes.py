"""Script: measure one device and every mesh of eight in one process, and write the results for the tests."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import steps

from jaxrl_sql.models import load_checkpoint, save_checkpoint
from jaxrl_sql.parallel import make_mesh


def main(folder: Path, shapes: list[str]) -> None:
    """Write `start/` (the weights), and per mesh such as `2x2x2` `<mesh>.npz`; for the first also `ppo.<mesh>.npz`."""
    compiled: Counter[str] = Counter()

    def count(event: str, _seconds: float, **names: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled[str(names.get("fun_name")).removeprefix("jit(").removesuffix(")")] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    params = steps.make_params()
    save_checkpoint(folder / "start", steps.CONFIG, params)
    alone = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    expected, _ = steps.measure(alone, steps.place_params(alone, params))
    np.savez(folder / "alone.npz", **expected)
    results: dict[str, Any] = {"devices": len(jax.devices())}
    meshes = {shape: make_mesh(*map(int, shape.split("x"))) for shape in shapes}
    for name, mesh in meshes.items():
        compiled.clear()
        placed = steps.place_params(mesh, params)
        got, misplaced = steps.measure(mesh, placed)
        np.savez(folder / f"{name}.npz", **got)
        _, loaded = load_checkpoint(folder / "start", mesh=mesh)
        same = jax.tree.map(
            lambda a, b: bool(np.array_equal(np.asarray(a), np.asarray(b))) and a.sharding == b.sharding, loaded, placed
        )
        weights = {"layers/q": placed["layers"]["q"], "embed": placed["embed"]}
        results[name] = {
            "misplaced": misplaced,
            "pieces": {key: len({str(s.index) for s in leaf.addressable_shards}) for key, leaf in weights.items()},
            "compiled": dict(compiled),
            "loaded_equal": all(jax.tree.leaves(same)),
        }
    for mesh, name in ((alone, "ppo.alone"), (meshes[shapes[0]], f"ppo.{shapes[0]}")):
        np.savez(folder / f"{name}.npz", **steps.measure_ppo(mesh, steps.place_params(mesh, params)))
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
