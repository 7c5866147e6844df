"""Eight virtual devices: updates and tokens on any mesh equal one device's, from arrays that are really sharded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.multidevice

TOLERANCE = 1e-5


@pytest.fixture(
    params=[
        "2x2x2", "1x1x8", *(pytest.param(mesh, marks=pytest.mark.nightly) for mesh in ("8x1x1", "1x8x1"))
    ]
)  # fmt: skip
def mesh(request: pytest.FixtureRequest) -> Any:
    """Return a mesh's name and its measurements."""
    further = request.param in ("8x1x1", "1x8x1")
    return request.param, request.getfixturevalue("further_measured" if further else "measured")


def test_updates_and_tokens_on_a_mesh_equal_one_device(mesh: Any) -> None:
    """Losses, parameters and moments (the first is the gradient) after SFT and GRPO updates, and greedy tokens."""
    name, measured = mesh
    assert measured.results["devices"] == 8
    want, got = (dict(np.load(measured.folder / f"{name}.npz")) for name in ("alone", name))
    assert want.keys() == got.keys()
    for part in ("['sft']['parameters']", "['grpo']['parameters']", "['grpo']['optimizer']", "['tokens']"):
        assert any(key.startswith(part) for key in want)
    for key, leaf in want.items():
        if key.startswith(("['tokens']", "['drawn']")):
            np.testing.assert_array_equal(got[key], leaf, err_msg=key)
        else:
            assert np.abs(got[key] - leaf).max() <= TOLERANCE * np.abs(leaf).max(), key
    assert measured.results[name]["loaded_equal"], "a folder loaded directly to the mesh differs"


def test_ppo_steps_on_a_mesh_equal_one_device(measured: Any) -> None:
    """Values, advantages over the whole batch, a sequence ratio, and the KL in the reward."""
    want, got = (dict(np.load(measured.folder / f"ppo.{name}.npz")) for name in ("alone", "2x2x2"))
    assert want.keys() == got.keys()
    assert np.abs(want["['parameters'].value['weight']"]).max() > 0
    for name, leaf in want.items():
        assert np.abs(got[name] - leaf).max() <= TOLERANCE * np.abs(leaf).max(), name


def test_parameters_moments_caches_and_batches_are_split(mesh: Any) -> None:
    name, measured = mesh
    assert measured.results[name]["misplaced"] == []
    copies = int(name[0])
    assert measured.results[name]["pieces"] == {"layers/q": 8 // copies, "embed": 8 // copies}


def test_an_update_and_a_chunk_compile_once(mesh: Any) -> None:
    """Two updates and many chunks of one shape: outputs have the sharding of inputs."""
    name, measured = mesh
    compiled = measured.results[name]["compiled"]
    assert compiled["update"] == 2, "one for SFT, one for GRPO"
    assert compiled["decode_chunk"] == 2, "one for sampling, one for greedy decoding"
