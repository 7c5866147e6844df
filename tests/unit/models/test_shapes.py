"""Shapes of published models: parameter counts equal the published ones."""

from __future__ import annotations

import pytest

from jaxrl_sql.models import count_params
from jaxrl_sql.models.shapes import PUBLISHED, published_config
from jaxrl_sql.types import InputError


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen2.5-coder-0.5b", 0.494),
        ("qwen2.5-coder-1.5b", 1.544),
        ("qwen2.5-coder-3b", 3.086),
        ("qwen2.5-coder-7b", 7.616),
        ("qwen2.5-coder-14b", 14.770),
        ("qwen2.5-coder-32b", 32.764),
        ("qwen3-0.6b", 0.596),
        ("qwen3-1.7b", 1.721),
        ("qwen3-4b", 4.022),
        ("qwen3-8b", 8.191),
        ("qwen3-14b", 14.768),
        ("qwen3-32b", 32.762),
        ("gemma-3-270m", 0.268),
        ("gemma-3-1b", 1.000),
    ],
)
def test_published_shape_has_the_published_parameter_count(name: str, billions: float) -> None:
    assert count_params(published_config(name)) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_all_published_shapes_are_counted_above() -> None:
    assert len(PUBLISHED) == 14


def test_unknown_shape_is_rejected_with_the_valid_names() -> None:
    with pytest.raises(
        InputError, match=r"model\.shape='qwen9' is unknown; valid are qwen2\.5-coder-0\.5b, .*gemma-3-1b"
    ):
        published_config("qwen9")
