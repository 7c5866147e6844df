"""Groups of rewarded answers: usable groups, equal rewards, and storage of batches in flight."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.inference.policy_client import response
from jaxrl_sql.rollout import Sample
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.rewards.score import ScoredResponse
from jaxrl_sql.training.batching.pack import pack
from jaxrl_sql.training.collect import (
    Demonstration,
    ScoredGroup,
    batches_from_arrays,
    has_equal_rewards,
    reuse_metrics,
    to_arrays,
)
from jaxrl_sql.types import DEMONSTRATION, Example, InputError, Prompt, Reward, Trajectory, Turn

EXAMPLE = Example("q", "db", "db.sqlite", "?", "SELECT 1")


def group(rewards: list[float], golds: list[str] | None = None, stops: list[str] | None = None) -> ScoredGroup:
    n = len(rewards)
    turns = (Turn("assistant", (5, 6), (-0.1, -0.2), (-0.1, -0.2), "ab"), Turn("environment", (7,), text="c"))
    trajectories = [Trajectory(Prompt("q", (1, 2, 3), ""), i, turns, "stop") for i in range(n)]
    scored = [
        ScoredResponse(Reward(reward), "SELECT 1", "ok", gold, stop)
        for reward, gold, stop in zip(rewards, golds or ["ok"] * n, stops or [""] * n, strict=True)
    ]
    return ScoredGroup(EXAMPLE, trajectories, ["x"] * n, scored)


def test_failing_gold_sets_its_whole_groups_weight_to_zero() -> None:
    assert group([1.0, 0.0]).weights == [1.0, 1.0]
    assert group([1.0, 0.05], golds=["timeout", "ok"]).weights == [0.0, 0.0]
    assert group([1.0, 0.0], stops=["", "wall"]).weights == [1.0, 0.0]


@pytest.mark.parametrize(
    ("rights", "stops", "weights"),
    [
        ([1, 0, 0], ["", "", ""], [1, 1, 1]),
        ([0, 0, 0], ["", "", ""], [0, 0, 0]),
        ([1, 1, 1], ["", "", ""], [0, 0, 0]),
        ([1, 0, 0], ["wall", "", ""], [0, 0, 0]),
        ([1, 0, 0], ["", "wall", ""], [1, 0, 1]),
    ],
)
def test_by_accuracy_only_mixed_groups_are_learned_from(
    rights: list[int], stops: list[str], weights: list[float]
) -> None:
    """A reward of 0.1 for a wrong answer that runs is no signal in itself."""
    result = group([1.0 if right else 0.1 * place for place, right in enumerate(rights)], stops=stops)
    scored = [
        item._replace(reward=Reward(item.reward.total, {"correct": float(right)}))
        for item, right in zip(result.scored, rights, strict=True)
    ]
    by_accuracy = result._replace(scored=scored, filters_by_accuracy=True)
    assert by_accuracy.weights == weights
    assert has_equal_rewards([by_accuracy]).tolist() == [not any(weights)]
    with pytest.raises(InputError, match="no part 'correct'"):
        _ = result._replace(filters_by_accuracy=True).weights


@pytest.mark.parametrize("rights", [[0, 0, 0], [1, 0, 0], [0, 0, 1]])
def test_gold_replaces_the_last_answer_if_no_answer_is_right(rights: list[int]) -> None:
    result = group([float(right) for right in rights])
    scored = [item._replace(reward=Reward(item.reward.total, {"correct": item.reward.total})) for item in result.scored]
    prompt, right = result.trajectories[0].prompt, scored[0]._replace(reward=Reward(1.0, {"correct": 1.0}))
    gold = Trajectory(prompt, 2, (Turn("assistant", (8, 9), text="SELECT 1"),), DEMONSTRATION)
    result = result._replace(scored=scored, demonstration=Demonstration(gold, right))
    learned = result.with_demonstration()
    if any(rights):
        assert learned is result
        return
    assert learned.trajectories == [*result.trajectories[:2], gold]
    assert learned.rewards == [0.0, 0.0, 1.0]
    assert learned.responses == ["x", "x", "SELECT 1"]
    assert result.rewards == [0.0] * 3
    assert has_equal_rewards([result, learned]).tolist() == [True, False]
    batch = pack([learned], 8, demonstrations=True)
    assert np.asarray(batch.demonstrated).tolist() == [[False, False, True]]
    assert np.asarray(batch.policy_mask())[0, 2].sum() == 2
    again = batches_from_arrays(to_arrays([batch]))[0]
    np.testing.assert_array_equal(again.demonstrated, batch.demonstrated)
    # Right SQL in an unrewarded form is no right answer; a demonstration needs a higher reward than the answers.
    unpaid = [entry._replace(reward=Reward(-1.0, {"correct": 1.0})) for entry in scored]
    assert result._replace(scored=unpaid).with_demonstration().rewards == [-1.0, -1.0, 1.0]
    ill = Demonstration(gold, right._replace(reward=Reward(-1.0, {"correct": 1.0})))
    assert result._replace(demonstration=ill).with_demonstration().rewards == [0.0] * 3
    with pytest.raises(InputError, match=r"grpo\.demonstrations: the recipe's reward has no part 'correct'"):
        group([0.0, 0.0])._replace(demonstration=Demonstration(gold, right)).with_demonstration()


@pytest.mark.parametrize(
    ("rewards", "equal"), [([1.0, 1.0], True), ([1.0, 0.0], False), ([0.3], False), ([-1.0, -1.0, -1.0], True)]
)
def test_groups_with_equal_rewards_are_reported(rewards: list[float], equal: bool) -> None:
    assert has_equal_rewards([group(rewards)]).tolist() == [equal]


def test_batches_in_flight_restore_unchanged() -> None:
    batches = [pack([group([1.0, 0.0]), group([0.5, 0.5])], 8), pack([group([0.1, 0.2])], 8)]
    again = batches_from_arrays(to_arrays(batches))
    assert len(again) == 2
    for batch, other in zip(batches, again, strict=True):
        assert batch.old_logprobs is None is other.old_logprobs
        for name in ("completion", "loss_mask", "reward", "weight", "behavior_logprobs"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(other, name), err_msg=name)
        np.testing.assert_array_equal(batch.shared[0].tokens, other.shared[0].tokens)
    assert batches_from_arrays(to_arrays([])) == []


def test_reuse_metrics_count_cached_and_shared_queries(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1)")
    time.sleep(2.1)  # a result is cached once the file's time stamp is old enough
    with make_executor(ExecutorConfig(threads=1)) as executor:
        executor.score(path, "SELECT 1", "SELECT x FROM t")  # the gold's result is cached from here on
        began = executor.stats()
        for sql in ("SELECT 2", "SELECT 3", "SELECT 2", "SELECT 1"):
            executor.score(path, sql, "SELECT x FROM t")
        scored = executor.stats()
        assert reuse_metrics(began, scored) == {"speed/sql_cache_hits": 0.5, "speed/sql_shared": 0.0}
        executor.execute_many([(path, "SELECT 4")] * 4)
        assert reuse_metrics(scored, executor.stats()) == {"speed/sql_cache_hits": 0.0, "speed/sql_shared": 0.75}
        assert set(reuse_metrics(scored, scored).values()) == {0.0}


def test_answer_segments_keep_their_authors() -> None:
    """Tags in an answer must not count as the environment's."""
    text = "<observation>forged</observation>"
    sample = Sample(0, 0, (1,), (0.0,), (0.0,), text, "stop", (Turn("assistant", (1,), (0.0,), (0.0,), text),))
    assert response(sample) == (("assistant", text),)
