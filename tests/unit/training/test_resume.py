"""The point from which a run resumes, and its immutable fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jaxrl_sql.training.resume import ResumePoint
from jaxrl_sql.training.training_run import TrainingRun


@pytest.mark.parametrize(
    ("step", "is_within", "is_after"),
    [(0, False, False), (2, False, False), (3, True, False), (5, True, False), (6, False, True)],
)
def test_resume_point_is_within_a_phase_or_after_it(step: int, is_within: bool, is_after: bool) -> None:
    """The phase has steps 3 to 5: a checkpoint of step 2 is the end of the previous phase."""
    point = ResumePoint(step)
    assert (point.is_within(2, 5), point.is_after(5)) == (is_within, is_after)


def test_run_fields_cannot_be_assigned() -> None:
    unused: Any = None
    run = TrainingRun(*[unused] * 9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.config = unused  # type: ignore[misc]
    assert len(dataclasses.fields(TrainingRun)) <= 10
