"""Rows of the metrics reference: the row of each written name, and rows for all parts of shipped recipes."""

from __future__ import annotations

import pytest

from jaxrl_sql.runtime.display import PANEL_METRICS, STEP_METRICS
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import RULES, all_metrics, find_metric, undocumented_names
from jaxrl_sql.runtime.speed import Speed
from jaxrl_sql.runtime.training_metrics import TRAINING
from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.evals import score_predictions
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.text2sql.rewards.score import Answer, apply_reward_function
from jaxrl_sql.types import Example

MATCH = ScoreRow("ok", "ok", dict.fromkeys(RULES, 1.0))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/letters", "reward/<part>"),
        ("eval/dev/status/ok", "eval/<set>/status/<status>"),
        ("eval/dev/accuracy/hard", "eval/<set>/accuracy/<difficulty>"),
        ("policy/sampler_delta_mean/from_256", "policy/sampler_delta_mean/from_<position>"),
        ("policy/sampler_kl/from_256", None),
        ("policy/reward", None),
    ],
)
def test_training_metric_has_its_row(name: str, row: str | None) -> None:
    result = find_metric(name, TRAINING)
    assert (result.name if result else None) == row


def test_evaluation_names_without_a_row_are_listed() -> None:
    names = ["bird/low", "birds/low", "dev/bird/low", "dev/count", "count", "counts", "gain/ex_b/high"]
    assert undocumented_names(names, EVALUATION) == ["birds/low", "counts"]
    assert undocumented_names(Speed().metrics(), EVALUATION) == []


@pytest.mark.parametrize("parts", [TRAINING, EVALUATION], ids=["training", "evaluation"])
def test_row_names_are_unique(parts: tuple) -> None:  # type: ignore[type-arg]
    names = [row.name for row in all_metrics(parts)]
    assert len(set(names)) == len(names)


def test_each_metric_of_the_display_has_a_row() -> None:
    names = [
        name for name, _, _ in (*STEP_METRICS, *PANEL_METRICS) if not name.startswith("spent/")
    ]  # those of endpoints are documented elsewhere
    assert [name for name in names if find_metric(name, TRAINING) is None] == []


def test_rules_equal_those_of_evaluation() -> None:
    assert RULES == score_predictions.RULES


@pytest.mark.parametrize("name", RECIPES)
def test_each_part_of_a_recipe_reward_has_a_row(name: str) -> None:
    reward = RECIPES[name].reward(ParsedResponse("SELECT 1", True, "thought", "SELECT 1"), MATCH)
    rows = [find_metric(f"reward/{part}", TRAINING) for part in reward.parts]
    assert [row.name for row in rows if row is not None] == [f"reward/{part}" for part in reward.parts]
    assert ("reward/length" in [f"reward/{part}" for part in reward.parts]) == (name == "sql_r1")


def test_part_of_a_reward_function_has_a_row() -> None:
    example = Example("a", "one?", "a", "a.sqlite", "SELECT 1")
    paid = RECIPES["arctic"].reward(ParsedResponse("SELECT 1", True), MATCH)
    parts = apply_reward_function(lambda _: 1.0, Answer("SELECT 1", "SELECT 1", example, "ok", paid)).parts
    assert "reward/recipe" in {f"reward/{part}" for part in parts} <= {row.name for row in all_metrics(TRAINING)}
