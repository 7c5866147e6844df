"""A script: one of several processes that measure the meshes together, from the weights that another run left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import steps

from jaxrl_sql.models import load_checkpoint, save_checkpoint
from jaxrl_sql.parallel import make_mesh, rows_here
from jaxrl_sql.parallel.processes import exchange, first_process_first, share, start_processes

# The tensors of the second lie over both processes.
MESHES = {(2, 2, 2): ("sft", "grpo"), (1, 1, 8): ("grpo",)}


def main(processes: int, start: Path, folder: Path) -> None:
    """Write `<mesh>.<process>.npz` and `told.<process>.json`, and together `saved/`."""
    start_processes(processes)
    number = jax.process_index()
    told: dict[str, Any] = {"processes": jax.process_count(), "devices": len(jax.devices())}
    with first_process_first("a look"):
        told["seen"] = sorted(path.name for path in folder.iterdir())
        (folder / f"here.{number}").touch()
    for shape, kinds in MESHES.items():
        mesh, name = make_mesh(*shape), "x".join(map(str, shape))
        config, params = load_checkpoint(start, mesh=mesh)
        numbers, misplaced = steps.measure(mesh, params, kinds)
        np.savez(folder / f"{name}.{number}.npz", **numbers)
        told[name] = {"misplaced": misplaced, "rows": rows_here(mesh, steps.B)}
        with jax.set_mesh(mesh):
            save_checkpoint(folder / "saved", config, params)
            told["share"] = list(share(7))
            told["exchanged"] = exchange([number, ["a" if number == 0 else "bb"]])
    (folder / f"told.{number}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
