"""A user's reward function gets an answer and its question, and replaces or extends the recipe's reward."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.score import Answer, RewardFunction, ScoredResponse
from jaxrl_sql.types import Example, InputError, Response, Reward

RIGHT = "SELECT name FROM emp"
TEXT = f"<think>so</think>\n<answer>\n```sql\n{RIGHT}\n```\n</answer>"


def score_with(executor: Executor, path: str, function: RewardFunction, *responses: Response) -> list[ScoredResponse]:
    recipe = RECIPES["arctic"]._replace(reward_function=function)
    examples = [Example(f"q{i}", "emp", path, "Who?", RIGHT) for i in range(len(responses))]
    return recipe.collect(recipe.submit(executor, examples, responses, recipe.style("chat")))


def test_function_gets_the_answer_and_its_question(executor: Executor, db: str) -> None:
    seen: list[Answer] = []

    def keep(answer: Answer) -> float:
        seen.append(answer)
        return 0.0

    score_with(executor, db, keep, TEXT, "no query", [("assistant", "<think>"), ("environment", "[rows]")])
    assert [(item.text, item.sql, item.status, item.example.uid) for item in seen] == [
        (TEXT, RIGHT, "ok", "q0"),
        ("no query", None, "no_sql", "q1"),
        ("<think>[rows]", None, "no_sql", "q2"),
    ]
    assert seen[0].reward == Reward(1.0, {"correct": 1.0, "executes": 1.0, "format": 1.0})


def test_number_replaces_the_recipes_total_and_keeps_its_parts(executor: Executor, db: str) -> None:
    right, mute = score_with(executor, db, lambda answer: -len(answer.text), TEXT, "no query")
    assert right.reward == Reward(-len(TEXT), {"correct": 1.0, "executes": 1.0, "format": 1.0, "recipe": 1.0})
    assert mute.reward == Reward(-8.0, {"correct": 0.0, "executes": 0.0, "format": 0.0, "recipe": 0.0})


def test_function_may_add_to_the_recipes_reward(executor: Executor, db: str) -> None:
    (right,) = score_with(executor, db, lambda answer: answer.reward.total + 0.25, TEXT)
    assert right.reward.total == 1.25


def test_reward_may_have_its_own_parts(executor: Executor, db: str) -> None:
    (right,) = score_with(executor, db, lambda _answer: Reward(2, {"short": 1.0}), TEXT)
    assert right.reward == Reward(2.0, {"short": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "much", Reward(math.nan)])
def test_non_finite_reward_is_refused(executor: Executor, db: str, value: object) -> None:
    with pytest.raises(InputError, match=r"^reward: .* for an answer to q0 is not a finite number$"):
        score_with(executor, db, lambda _answer: value, TEXT)  # type: ignore[arg-type, return-value]


def test_answer_without_a_verdict_is_not_rewarded(executor: Executor, tmp_path: Path) -> None:
    (lost,) = score_with(executor, str(tmp_path / "missing.sqlite"), lambda _answer: 5.0, TEXT)
    assert (lost.status, lost.trusted, lost.reward.total) == ("db_error", False, 0.0)
