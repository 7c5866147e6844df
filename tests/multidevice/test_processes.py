"""Two processes of four virtual devices each give the results of one process with eight.

The real processes connect by an address on this machine. Each packs its own part of the batch, loads its own shards
of a checkpoint, and sends its shards to the process that writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.multidevice

MESHES = {"2x2x2": "grpo", "1x1x8": "sft"}  # the update on each, as in measure_processes.py
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def both(measured: Any, run_processes: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two processes from the weights measured with one process; return the folder that they wrote."""
    folder = tmp_path_factory.mktemp("both")
    script = Path(__file__).with_name("measure_processes.py")
    run_processes([str(script), "2", str(measured.folder / "start"), str(folder)], 2)
    return folder


@pytest.fixture(scope="module")
def reports(both: Path) -> list[dict[str, Any]]:
    return [json.loads((both / f"report.{number}.json").read_text(encoding="utf-8")) for number in (0, 1)]


@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_equal_one_process(measured: Any, both: Path, mesh: str) -> None:
    """Losses, parameters and moments after the updates, and greedy tokens; equal bit for bit on each process."""
    alone = dict(np.load(measured.folder / f"{mesh}.npz"))
    first, second = (dict(np.load(both / f"{mesh}.{number}.npz")) for number in (0, 1))
    assert first.keys() <= alone.keys()
    for part in (*(f"['{MESHES[mesh]}']['{name}']" for name in ("metrics", "parameters", "optimizer")), "['tokens']"):
        assert any(name.startswith(part) for name in first)
    for name, got in first.items():
        np.testing.assert_array_equal(second[name], got, err_msg=name)
        if name.startswith(("['tokens']", "['drawn']")):
            np.testing.assert_array_equal(got, alone[name], err_msg=name)
        else:
            assert np.abs(got - alone[name]).max() <= TOLERANCE * np.abs(alone[name]).max(), name


def test_each_process_packs_and_stores_its_part(reports: list[dict[str, Any]]) -> None:
    assert [(item["processes"], item["devices"]) for item in reports] == [(2, 8)] * 2
    assert [entry["2x2x2"]["rows"] for entry in reports] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # With a tensor axis over all processes, each holds a part of every row's heads, and thus all rows.
    assert [element["1x1x8"]["rows"] for element in reports] == [list(range(8))] * 2
    assert all(report[mesh]["misplaced"] == [] for report in reports for mesh in MESHES)


def test_distributed_work_is_gathered_in_order(reports: list[dict[str, Any]]) -> None:
    assert [item["share"] for item in reports] == [[0, 1, 2], [3, 4, 5, 6]]
    assert reports[0]["exchanged"] == reports[1]["exchanged"] == [0, ["a"], 1, ["bb"]]
    assert [entry["seen"] for entry in reports] == [[], ["here.0"]], "the first entry must be processed first"


def test_each_process_writes_its_checksums_and_all_refuse_damage(reports: list[dict[str, Any]]) -> None:
    for item in reports:
        checkpoint = item["checkpoint"]
        assert (checkpoint["is_equal"], checkpoint["host"]) == (True, {"at": 1})
        assert {"1", "1/state/ocdbt.process_0", "1/state/ocdbt.process_1"} <= set(checkpoint["listed"])
        assert "cannot be read: state/ocdbt.process_1/d/" in checkpoint["refused"]
    assert reports[0]["checkpoint"] == reports[1]["checkpoint"]


def test_a_model_folder_is_read_and_written_completely(measured: Any, both: Path) -> None:
    from jaxrl_sql.models import load_checkpoint

    config, want = load_checkpoint(measured.folder / "start")
    again, got = load_checkpoint(both / "saved")
    assert again == config
    np.testing.assert_array_equal(got["embed"], want["embed"])
    for name, leaf in want["layers"].items():
        np.testing.assert_array_equal(got["layers"][name], leaf, err_msg=name)
