"""Two processes of four virtual devices each compute what one process of eight does.

They are real processes that find each other by an address on this machine; each packs its own part of the batch, loads
its own pieces of a checkpoint, and gives its pieces to the one that writes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.multidevice

MESHES = ((2, 2, 2), (1, 1, 8))
TOLERANCE = 1e-5


def environment(processes: int, number: int, port: int) -> dict[str, str]:
    """Return what tells a process who it is and how many of the eight devices are its own."""
    return os.environ | {
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_PROCESS_ID": str(number),
        "JAX_NUM_CPU_DEVICES": str(8 // processes),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }


def together(command: list[str], processes: int, *, expected: int = 0) -> list[tuple[str, str]]:
    """Run a command as so many processes at once; return what each wrote (stdout, stderr)."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            command, env=environment(processes, i, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(processes)
    ]
    try:
        said = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == expected, errors[-3000:]
    return said


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Run this file as a script in one process and in two; return the folders that they wrote."""
    folders = {}
    for processes in (1, 2):
        folders[processes] = tmp_path_factory.mktemp(f"processes{processes}")
        said = together([sys.executable, __file__, str(processes), str(folders[processes])], processes)
        for output, _ in said:
            # Every process sees all of the devices.
            assert json.loads(output.splitlines()[-1]) == {"processes": processes, "devices": 8}
    return folders


def of(folder: Path, mesh: str, number: int = 0) -> dict[str, Any]:
    return dict(np.load(folder / f"{mesh}.{number}.npz"))


@pytest.mark.parametrize("mesh", ["x".join(map(str, mesh)) for mesh in MESHES])
def test_two_processes_compute_what_one_computes(measured: dict[int, Path], mesh: str) -> None:
    """Losses, parameters and moments of both updates, and greedy tokens."""
    alone, both = of(measured[1], mesh), of(measured[2], mesh)
    assert alone.keys() == both.keys()
    for name, want in alone.items():
        error = np.abs(both[name] - want).max() / max(np.abs(want).max(), 1e-30)
        assert error <= (0 if name.startswith("['tokens']") else TOLERANCE), f"{name}: {error}"


@pytest.mark.parametrize("mesh", ["x".join(map(str, mesh)) for mesh in MESHES])
def test_both_processes_hold_the_same(measured: dict[int, Path], mesh: str) -> None:
    first, second = of(measured[2], mesh, 0), of(measured[2], mesh, 1)
    for name, want in first.items():
        np.testing.assert_array_equal(second[name], want, err_msg=name)


def test_each_process_packs_and_holds_its_part(measured: dict[int, Path]) -> None:
    told = [json.loads((measured[2] / f"told.{i}.json").read_text(encoding="utf-8")) for i in (0, 1)]
    assert [one["2x2x2"]["rows"] for one in told] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # On one axis of tensors over all processes each holds a part of every row's heads, and so all rows.
    assert [one["1x1x8"]["rows"] for one in told] == [list(range(8))] * 2
    assert all(one[mesh]["misplaced"] == [] for one in told for mesh in one)
    assert [one["2x2x2"]["share"] for one in told] == [[0, 1, 2], [3, 4, 5, 6]]
    assert told[0]["2x2x2"]["exchanged"] == told[1]["2x2x2"]["exchanged"] == [0, ["a"], 1, ["bb"]]


def test_a_folder_is_read_and_written_whole(measured: dict[int, Path]) -> None:
    from jaxrl_sql.models import load_checkpoint

    config, want = load_checkpoint(measured[1] / "start")
    again, got = load_checkpoint(measured[2] / "saved")
    assert again == config
    np.testing.assert_array_equal(got["embed"], want["embed"])
    for name, leaf in want["layers"].items():
        np.testing.assert_array_equal(got["layers"][name], leaf, err_msg=name)


def _work(processes: int, folder: Path) -> None:
    """Compute everything on each mesh and write it down; runs in each of the processes."""
    import jax
    import steps

    from jaxrl_sql.models import load_checkpoint, save_checkpoint
    from jaxrl_sql.parallel import make_mesh, rows_here
    from jaxrl_sql.parallel.processes import exchange, first_process_first, share, start_processes

    start_processes(processes)
    number = jax.process_index()
    with first_process_first("start"):
        if number == 0:
            _write_start(folder / "start")
    told = {}
    for shape in MESHES:
        mesh, name = make_mesh(*shape), "x".join(map(str, shape))
        config, params = load_checkpoint(folder / "start", mesh=mesh)
        numbers, misplaced = steps.measure(mesh, params)
        np.savez(folder / f"{name}.{number}.npz", **numbers)
        told[name] = {
            "misplaced": misplaced,
            "rows": rows_here(mesh, steps.B),
            "share": list(share(7)),
            "exchanged": exchange([number, ["a" if number == 0 else "bb"]]),
        }
    (folder / f"told.{number}.json").write_text(json.dumps(told), encoding="utf-8")
    save_checkpoint(folder / "saved", config, params)
    print(json.dumps({"processes": jax.process_count(), "devices": len(jax.devices())}))


def _write_start(folder: Path) -> None:
    """Write the weights that every process then reads; drawn on one of this process's own devices."""
    import jax
    import steps

    from jaxrl_sql.models import hf

    with jax.default_device(jax.local_devices()[0]):
        params = jax.tree.map(np.asarray, steps.make_params())
    folder.mkdir()
    # Not `save_checkpoint`, which is the work of all processes together.
    hf._write_weights(folder, hf._hf_tensors(steps.CONFIG, params, np.dtype("float32")), hf.SHARD_BYTES)
    hf._write_json(folder / hf.CONFIG_FILE, {**hf.FAMILIES["qwen3"].write(steps.CONFIG), "dtype": "float32"})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    _work(int(sys.argv[1]), Path(sys.argv[2]))
