"""Training, validation and evaluation share one type of sampling section."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import EvaluateConfig, SamplingConfig, TrainConfig, ValidationConfig, load_config
from jaxrl_sql.inference.policy_client import make_sampling_params
from jaxrl_sql.rollout import SamplingParams

SMALL = Path(__file__).parents[2] / "small.yaml"

DIALOGUES = SamplingConfig(temperature=0.7, top_k=5, stop=["END"], max_new_tokens=50, turns=4, max_total_tokens=700)


def test_three_sampling_sections_share_a_type_with_their_own_defaults() -> None:
    config = TrainConfig()
    sections = (config.sampling, config.validation.sampling, EvaluateConfig().evaluate.sampling)
    assert [type(section) for section in sections] == [SamplingConfig] * 3
    assert [section.temperature for section in sections] == [1.0, 0.0, 0.0]
    assert [section.turns for section in sections] == [1, 0, 1]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], SamplingConfig(temperature=0.0, stop=["END"], max_new_tokens=96, turns=4, max_total_tokens=700)),
        (
            ["turns=1", "temperature=0.3", "top_p=0.9", "min_p=0.1", "repetition_penalty=1.1", "max_new_tokens=20"],
            SamplingConfig(0.3, 0, 0.9, 0.1, 1.1, ["END"], 20, 1, 700),
        ),
        (
            ["stop=[;]", "max_total_tokens=300"],
            SamplingConfig(0.0, stop=[";"], max_new_tokens=96, turns=4, max_total_tokens=300),
        ),
    ],
    ids=["defaults", "own numbers", "own ends"],
)
def test_validation_inherits_turns_stops_and_total_length_from_training(
    overrides: list[str], expected: SamplingConfig
) -> None:
    validation = load_config(
        TrainConfig, SMALL, [f"validation.sampling.{override}" for override in overrides]
    ).validation
    assert validation.sampling_in(DIALOGUES) == expected


def test_validation_default_is_greedy_with_one_turn_and_no_total_limit() -> None:
    greedy = ValidationConfig().sampling_in(SamplingConfig(max_total_tokens=700))
    assert make_sampling_params(greedy, n=1, seed=0, stop=("END",)) == SamplingParams(
        temperature=0.0, max_new_tokens=1024, stop=("END",)
    )
