"""Copies of a policy sample what one engine over the whole mesh samples, on any number of copies and processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.multidevice

GRIDS = ("4x2", "2x4", "8x1")
KINDS = ("greedy", "drawn", "turns")


@pytest.fixture(scope="module")
def told(together: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Return by number of processes what each process wrote, by grid."""
    found = {}
    for processes in (1, 2):
        folder = tmp_path_factory.mktemp(f"replicas{processes}")
        together([str(Path(__file__).with_name("measure_replicas.py")), str(processes), str(folder)], processes)
        found[processes] = [
            {grid: json.loads((folder / f"{grid}.{number}.json").read_text(encoding="utf-8")) for grid in GRIDS}
            for number in range(processes)
        ]
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_sample_what_one_samples(told: Any, grid: str, kind: str) -> None:
    """Each bit, several turns too; each process has all samples in the end, and made its part of them."""
    (alone,), both = told[1], told[2]
    assert len(alone[grid][kind]) == 16
    assert both[0][grid][kind] == both[1][grid][kind] == alone[grid][kind]
    first, second = (set(one[grid][f"{kind}: own"]) for one in both)
    assert first, second
    assert not first & second or grid == "8x1"
    assert first | second == set(range(8))


def test_each_process_drives_the_replicas_on_its_devices(told: Any) -> None:
    assert [one["4x2"]["replicas"] for one in told[2]] == [[0, 1], [2, 3]]
    assert [one["8x1"]["replicas"] for one in told[2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_does_not_depend_on_the_replicas(told: Any, kind: str) -> None:
    """Equal tokens, and log-probabilities but for the order of sums over `tensor`."""
    want, *others = ([(one["token_ids"], one["logprobs"]) for one in told[1][0][grid][kind]] for grid in GRIDS)
    for got in others:
        assert [ids for ids, _ in got] == [ids for ids, _ in want]
        for (_, a), (_, b) in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_some_answers_have_several_turns(told: Any) -> None:
    turns = [[turn["role"] for turn in one["turns"]] for one in told[1][0]["4x2"]["turns"]]
    assert max(map(len, turns)) == 5
    assert min(map(len, turns)) == 1


def test_copies_sample_what_the_mesh_that_trains_samples(told: Any, measured: Any) -> None:
    """The same prompts and keys by one engine over 2x2x2 (`measure_meshes.py`): the same tokens."""
    numbers = np.load(measured.folder / "2x2x2.npz")
    for kind, name in (("greedy", "tokens"), ("drawn", "drawn")):
        for one in told[1][0]["2x4"][kind]:
            place = f"['{name}']['{one['prompt_index']}.{one['index']}']"
            assert numbers[place].tolist() == one["token_ids"]
