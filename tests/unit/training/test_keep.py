"""The lines of `samples.jsonl`: an answer is right, wrong, or without a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import HealthConfig, TrainConfig
from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.runtime.health import Health
from jaxrl_sql.runtime.metrics import MetricsWriter, SampleWriter
from jaxrl_sql.runtime.rollouts import RolloutWriter
from jaxrl_sql.text2sql.evals.records import QuestionAnswers
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.text2sql.rewards.score import ScoredResponse
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.collect import ScoredGroup
from jaxrl_sql.training.keep import keep_evaluation, keep_groups
from jaxrl_sql.training.training_run import Outputs, QuestionSets, RunStatus, TrainingRun
from jaxrl_sql.types import Example, Prompt, Reward, Trajectory, Turn

EXAMPLES = tuple(Example(uid, "shop", "shop.sqlite", "How many?", "SELECT 1") for uid in ("a", "b", "c"))


def written(folder: Path, keep: Any) -> list[dict[str, Any]]:
    """Return the lines that `keep` writes for a run whose evaluation set is `dev`."""
    unused: Any = None
    with (
        make_display("none", 1, title="") as display,
        MetricsWriter(folder) as metrics,
        SampleWriter(folder) as samples,
        Checkpoints(folder / "checkpoints") as checkpoints,
    ):
        keep(
            TrainingRun(
                config=TrainConfig(), folder=folder, prompt_format=unused, model=unused, mesh=unused, executor=unused,
                questions=QuestionSets(
                    PromptSet((), (), ()), {"dev": PromptSet(EXAMPLES, (), ())}, {"dev": "bird"}, unused, {}
                ),
                outputs=Outputs(display, metrics, samples, RolloutWriter(None, 0), checkpoints),
                status=RunStatus(Health(HealthConfig())),
            )
        )  # fmt: skip
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("parts", "gold_status", "right"),
    [
        ({"correct": 1.0}, "ok", True),
        ({"correct": 0.0, "executes": 1.0}, "ok", False),
        ({"executes": 1.0}, "ok", None),
        ({"correct": 0.0}, "timeout", None),
    ],
)
def test_sampled_answer_has_the_verdict_of_its_reward(
    parts: dict[str, float], gold_status: str, right: bool | None, tmp_path: Path
) -> None:
    turns = (Turn("assistant", (5,), (-0.1,), (-0.1,), "SELECT 2"),)
    trajectory = Trajectory(Prompt("a", (1,), ""), 0, turns, "stop")
    scored = ScoredResponse(Reward(0.5, parts), "SELECT 2", "ok", gold_status)
    group = ScoredGroup(EXAMPLES[0], [trajectory], ["SELECT 2"], [scored])
    (line,) = written(tmp_path, lambda run: keep_groups(run, 3, "grpo", [group], [group]))
    assert line == {
        "step": 3, "phase": "grpo", "uid": "a", "question": "How many?", "gold": "SELECT 1", "text": "SELECT 2",
        "finish_reason": "stop", "sql": "SELECT 2", "status": "ok", "reward": 0.5, "right": right,
    }  # fmt: skip


def test_evaluated_answer_has_the_verdict_of_the_rule_of_its_set(tmp_path: Path) -> None:
    sqls = ("SELECT 1", "SELECT 2", "SELECT 3")
    answered = [QuestionAnswers((sql,), (sql,), finish_reasons=("stop",)) for sql in sqls]
    scores = ({"bird": 1.0, "spider": 0.0}, {"bird": 0.5, "spider": 1.0}, {})
    verdicts = [
        Verdict(example.uid, answer.sqls[0], "ok", scores=score)
        for example, answer, score in zip(EXAMPLES, answered, scores, strict=True)
    ]
    lines = written(tmp_path, lambda run: keep_evaluation(run, 3, "dev", answered, verdicts))
    assert [(line["phase"], line["uid"], line["reward"], line["right"]) for line in lines] == [
        ("eval/dev", "a", 1.0, True), ("eval/dev", "b", 0.5, False), ("eval/dev", "c", 0.0, None),
    ]  # fmt: skip
