"""Sampler and trainer agree on a trained model's answers, in both types, on one device and on a mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice


@pytest.mark.parametrize("mesh", ["1x2x2", pytest.param("1x1x1", marks=pytest.mark.nightly)])
def test_sampler_and_trainer_log_probabilities_agree(run_processes: Any, tmp_path: Path, mesh: str) -> None:
    """In bfloat16 up to rounding of an answer's tokens; a lower limit ensures that bfloat16 is used."""
    run_processes([str(Path(__file__).with_name("measure_sampler.py")), str(tmp_path), mesh], 1)
    result = json.loads((tmp_path / "sampler.json").read_text(encoding="utf-8"))
    for dtype, low, high in (("float32", 1e-8, 1e-5), ("bfloat16", 1e-5, 1e-2)):
        assert low < result[dtype]["policy/sampler_delta_mean"] < high, dtype
        assert result[dtype]["policy/sampler_kl"] < high, dtype
