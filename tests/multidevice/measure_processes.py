"""Script: one of several processes that measure the meshes together, from the weights of another run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import steps

from jaxrl_sql.models import load_checkpoint, save_checkpoint
from jaxrl_sql.models.formats.checksums import SUMS
from jaxrl_sql.parallel import local_rows, make_mesh
from jaxrl_sql.parallel.processes import (
    exchange,
    first_process_first,
    is_first,
    share,
    start_processes,
    wait_for_all,
)
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.types import InputError

# The tensor axis of the second spans both processes.
MESHES = {(2, 2, 2): ("grpo",), (1, 1, 8): ("sft",)}


def main(processes: int, start: Path, folder: Path) -> None:
    """Write `<mesh>.<process>.npz` and `report.<process>.json`, and together `saved/`."""
    start_processes(processes)
    number = jax.process_index()
    report: dict[str, Any] = {"processes": jax.process_count(), "devices": len(jax.devices())}
    with first_process_first("a look"):
        report["seen"] = sorted(path.name for path in folder.iterdir())
        (folder / f"here.{number}").touch()
    for shape, kinds in MESHES.items():
        mesh, name = make_mesh(*shape), "x".join(map(str, shape))
        config, params = load_checkpoint(start, mesh=mesh)
        numbers, misplaced = steps.measure(mesh, params, kinds)
        np.savez(folder / f"{name}.{number}.npz", **numbers)
        report[name] = {"misplaced": misplaced, "rows": local_rows(mesh, steps.B)}
        with jax.set_mesh(mesh):
            save_checkpoint(folder / "saved", config, params)
            report["share"] = list(share(7))
            report["exchanged"] = exchange([number, ["a" if number == 0 else "bb"]])
            if shape == (2, 2, 2):
                report["checkpoint"] = measure_checkpoint(folder / "checkpoints", params)
    (folder / f"report.{number}.json").write_text(json.dumps(report), encoding="utf-8")


def measure_checkpoint(folder: Path, params: Any) -> dict[str, Any]:
    """Save a checkpoint and read it, intact and with a flipped bit in the second process's part."""
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, params, {"at": 1})
        restored, host, _ = checkpoints.restore(1, params)
    pairs = zip(jax.tree.leaves(restored), jax.tree.leaves(params), strict=True)
    pieces = [pair for a, b in pairs for pair in zip(a.addressable_shards, b.addressable_shards, strict=True)]
    is_equal = all(np.array_equal(a.data, b.data) for a, b in pieces)
    listed = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob(SUMS))
    if is_first():
        path = max((folder / "1/state/ocdbt.process_1").rglob("d/*"), key=lambda path: path.stat().st_size)
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    wait_for_all("a flipped bit")
    refused = ""
    with Checkpoints(folder) as checkpoints:
        try:
            checkpoints.host(1)
        except InputError as error:
            refused = str(error)
    return {"is_equal": is_equal, "host": host, "listed": listed, "refused": refused}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
