"""Scripts with eight virtual devices, in separate processes: JAX fixes the number of devices at start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DEVICES = 8
# Compilation dominates the run time here; fewer optimizations give the same results.
QUICK = os.environ["XLA_FLAGS"]  # from tests/conftest.py
# A device that waits for the others at a collective blocks one of XLA's threads, of which there is one per device.
# The last to arrive may find none for its part of a product, and XLA aborts. NPROC sets a larger number of threads.
SPARE = 64
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=300"


class Measured(NamedTuple):
    """The output of `measure_meshes.py` in one process with all devices: its folder, and results by mesh."""

    folder: Path
    results: dict[str, Any]


def run_together(
    command: Sequence[str], processes: int, devices: int = DEVICES, threads: int = SPARE
) -> list[tuple[str, str]]:
    """Run a Python command in several processes that share the devices; return (stdout, stderr) of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = os.environ | {
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_CPU_DEVICES": str(devices // processes),
        "JAX_PLATFORMS": "cpu",
        "NPROC": str(threads),
        "XLA_FLAGS": f"{QUICK} {PATIENT}",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *(entry for entry in sys.path if entry)]),
    }
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            env=env | {"JAX_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        output = [process.communicate(timeout=900) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * processes, "\n".join(e[-3000:] for _, e in output)
    return output


def measure(folder: Path, *meshes: str) -> Measured:
    run_together([str(Path(__file__).with_name("measure_meshes.py")), str(folder), *meshes], 1)
    return Measured(folder, json.loads((folder / "results.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measure a mesh with all axes and a mesh with only a tensor axis, in one process."""
    return measure(tmp_path_factory.mktemp("measured"), "2x2x2", "1x1x8")


@pytest.fixture(scope="session")
def further_measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measure meshes with one axis, of data and of weights."""
    return measure(tmp_path_factory.mktemp("further"), "8x1x1", "1x8x1")


@pytest.fixture(scope="session")
def run_processes() -> Any:
    """Return `run_together`, which test modules cannot import."""
    return run_together
