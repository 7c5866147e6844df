"""Early stopping counts measurements without a sufficient decrease, and remembers the lowest loss."""

from __future__ import annotations

import math

import pytest

from jaxrl_sql.training.sft import EarlyStopping


@pytest.mark.parametrize(
    ("min_delta", "losses", "waited"),
    [
        (0.0, [1.0, 0.999, 0.998], [0, 0, 0]),
        (0.0, [1.0, 1.0, 1.1, 0.9], [0, 1, 2, 0]),
        # Decreases of at most 0.01 are too small, but they lower the loss to compare with.
        (0.01, [1.0, 0.995, 0.988, 0.97], [0, 1, 2, 0]),
        (0.01, [1.0, 0.98, math.nan, 0.975], [0, 0, 1, 2]),
    ],
)
def test_patience_counts_small_decreases(min_delta: float, losses: list[float], waited: list[int]) -> None:
    watch = EarlyStopping(3, min_delta)
    seen = []
    for loss in losses:
        watch.update(loss)
        seen.append(watch.waited)
    assert seen == waited
    assert watch.best == min(loss for loss in losses if not math.isnan(loss))


def test_every_lower_loss_is_the_best() -> None:
    watch = EarlyStopping(2, 0.5)
    assert [watch.update(loss) for loss in (1.0, 0.9, 0.95, 0.8)] == [True, True, False, True]
    assert watch.is_over
