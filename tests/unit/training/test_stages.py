"""The sequence of GRPO stages."""

from __future__ import annotations

import pytest

from jaxrl_sql.config import OptimConfig
from jaxrl_sql.training.stages import Stage, has_risen


def test_stage_reports_the_rate_of_each_of_its_updates() -> None:
    """The last update has a rate, though the schedule ends after it; before the first update the first rate holds."""
    stage = Stage("grpo", 10, 2, OptimConfig(lr=1.0, schedule="linear", warmup_steps=0, final_lr_ratio=0.0))
    assert [stage.rate(update, 2) for update in range(-1, 5)] == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(
    ("ratings", "rose"),
    [
        ([0.2, 0.3, 0.4, 0.41, 0.4, 0.41], True),
        ([0.3, 0.35, 0.28, 0.34, 0.29, 0.33], False),
        ([0.4, 0.39, 0.3, 0.2], False),
        ([0.5, 0.5], False),
        ([0.5], False),
        ([], False),
    ],
)
def test_rising_accuracy_is_distinguished_from_fluctuation(ratings: list[float], rose: bool) -> None:
    assert has_risen(ratings) is rose
