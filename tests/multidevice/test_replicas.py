"""Replicas of a policy give the samples of one engine on the whole mesh, for any number of replicas and processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.multidevice, pytest.mark.nightly]

GRIDS = ("4x2", "2x4", "8x1")
SAMPLED = [
    ("4x2", "greedy"), ("4x2", "drawn"), ("4x2", "turns"), ("4x2", "ahead"), ("2x4", "drawn"), ("8x1", "turns"),
]  # fmt: skip


@pytest.fixture(scope="module")
def reports(run_processes: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Return by number of processes each process's output, by grid."""
    result = {}
    for processes in (1, 2):
        folder = tmp_path_factory.mktemp(f"replicas{processes}")
        run_processes([str(Path(__file__).with_name("measure_replicas.py")), str(processes), str(folder)], processes)
        result[processes] = [
            {grid: json.loads((folder / f"{grid}.{number}.json").read_text(encoding="utf-8")) for grid in GRIDS}
            for number in range(processes)
        ]
    return result


@pytest.mark.parametrize(("grid", "kind"), SAMPLED)
def test_samples_of_two_processes_equal_one_process(reports: Any, grid: str, kind: str) -> None:
    """Bit-equal, also in several turns; each process gets all samples, and computed its part of them.

    For a replica over four devices the order of summation varies.
    """
    (alone,), both = reports[1], reports[2]
    assert len(alone[grid][kind]) == 16
    assert both[0][grid][kind] == both[1][grid][kind]
    if grid == "2x4":
        assert_close(both[0][grid][kind], alone[grid][kind])
    else:
        assert both[0][grid][kind] == alone[grid][kind]
    first, second = (set(item[grid][f"{kind}: own"]) for item in both)
    assert first, second
    assert not first & second or grid == "8x1"
    assert first | second == set(range(8))


def test_each_process_runs_the_replicas_on_its_devices(reports: Any) -> None:
    assert [item["4x2"]["replicas"] for item in reports[2]] == [[0, 1], [2, 3]]
    assert [entry["8x1"]["replicas"] for entry in reports[2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(("grid", "kind"), SAMPLED[4:])
def test_samples_do_not_depend_on_the_number_of_replicas(reports: Any, grid: str, kind: str) -> None:
    """Equal tokens, and log-probabilities up to the order of sums over `tensor`."""
    assert_close(reports[1][0][grid][kind], reports[1][0]["4x2"][kind])


def test_samples_begun_ahead_equal_those_of_the_next_call(reports: Any) -> None:
    """A call leaves samples of the next one unfinished on each replica; they end as if begun by the next call."""
    alone, both = reports[1][0]["4x2"], reports[2]
    assert_close(alone["ahead"], alone["not ahead"])
    assert alone["ahead: unfinished"] > 0
    assert alone["not ahead: unfinished"] == 0
    assert [item["4x2"]["ahead: unfinished"] for item in both] == [alone["ahead: unfinished"]] * 2


def assert_close(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    """Assert that samples have equal tokens, and log-probabilities up to rounding."""
    assert [item["token_ids"] for item in got] == [entry["token_ids"] for entry in want]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a["logprobs"], b["logprobs"], atol=1e-5)


def test_weights_of_many_layers_are_transferred(run_processes: Any) -> None:
    """With one thread per device, a collective deadlocks if too much work is queued behind it."""
    ((output, _),) = run_processes([str(Path(__file__).with_name("measure_bringing.py"))], 1, devices=2, threads=2)
    assert output.split() == ["8"] * 20


def test_some_answers_have_several_turns(reports: Any) -> None:
    turns = [[turn["role"] for turn in item["turns"]] for item in reports[1][0]["4x2"]["turns"]]
    assert max(map(len, turns)) == 5
    assert min(map(len, turns)) == 1


def test_replica_samples_equal_training_mesh_samples(reports: Any, measured: Any) -> None:
    """The same prompts and keys in one engine on 2x2x2 (`measure_meshes.py`) give the same tokens."""
    numbers = np.load(measured.folder / "2x2x2.npz")
    for kind, name in (("greedy", "tokens"), ("drawn", "drawn")):
        for item in reports[1][0]["4x2"][kind]:
            place = f"['{name}']['{item['prompt_index']}.{item['index']}']"
            assert numbers[place].tolist() == item["token_ids"]
