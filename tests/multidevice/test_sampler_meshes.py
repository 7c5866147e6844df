"""The sampler and the trainer agree on a trained model's answers, in both types, on one device and on a mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice


def test_sampler_and_trainer_give_the_same_log_probabilities(together: Any, tmp_path: Path) -> None:
    """In bfloat16 to what rounding leaves of an answer's tokens; a mean of nothing would not be in bfloat16."""
    together([str(Path(__file__).with_name("measure_sampler.py")), str(tmp_path)], 1)
    found = json.loads((tmp_path / "sampler.json").read_text(encoding="utf-8"))
    assert set(found) == {f"{dtype} {mesh}" for dtype in ("float32", "bfloat16") for mesh in ("alone", "1x2x2")}
    for case, numbers in found.items():
        low, high = (1e-8, 1e-5) if case.startswith("float32") else (1e-5, 1e-2)
        assert low < numbers["policy/sampler_delta_mean"] < high, case
        assert numbers["policy/sampler_kl"] < high, case
