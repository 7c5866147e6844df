"""The order of a phase's steps, evaluations and checkpoints: the five rules of `run_phase`, on real checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl_sql.batch import TrainState
from jaxrl_sql.config import HealthConfig, RunConfig, TrainConfig
from jaxrl_sql.rollout import NotFiniteError
from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.runtime.health import Health, HealthError
from jaxrl_sql.runtime.metrics import MetricsWriter, SampleWriter
from jaxrl_sql.runtime.rollouts import RolloutWriter
from jaxrl_sql.text2sql.env.verdicts import UnreachableServerError
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.lifecycle import Snapshot, report_health, run_phase
from jaxrl_sql.training.resume import ResumePoint
from jaxrl_sql.training.training_run import Outputs, PreemptedError, QuestionSets, RunStatus, TrainingRun

Event = tuple[str, int]


class Recorded(Checkpoints):
    """Real checkpoints that record each save."""

    events: list[Event]

    def save(self, step: int, *rest: Any) -> None:
        self.events.append(("save", step))
        super().save(step, *rest)


@dataclasses.dataclass
class Counting:
    """A phase whose step adds one to its only number."""

    run: TrainingRun
    events: list[Event]
    name: str = "counting"
    last: int = 4
    evaluate_every: int = 2
    steps_before: int = 0
    is_over: bool = False
    preempted_at: int = 0
    stopped_at: int = 0
    count: int = 0

    def step(self, step: int) -> None:
        if step == self.preempted_at:
            self.run.status.request.exit_code = 0
            raise PreemptedError
        self.count += 1
        self.events.append(("step", step))
        if step == self.stopped_at:
            self.run.status.request.exit_code = 130

    def policy_params(self, _at: int) -> Any:
        return None

    def record_evaluation(self, step: int, _numbers: Mapping[str, float]) -> None:
        self.events.append(("evaluate", step))

    def snapshot(self) -> Snapshot:
        number = {"w": jnp.full(2, float(self.count))}
        return Snapshot(TrainState(jnp.asarray(self.count), number, None, None, ()), {"phase": "grpo"})


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingRun]:
    config = dataclasses.replace(TrainConfig(), run=RunConfig(checkpoint_every=1))
    with (
        make_display("none", 4, title="") as display,
        MetricsWriter(tmp_path) as metrics,
        SampleWriter(tmp_path) as samples,
        Recorded(tmp_path / "checkpoints", keep=9) as checkpoints,
    ):
        checkpoints.events = []
        unused: Any = None
        yield TrainingRun(
            config=config, folder=tmp_path, prompt_format=unused, model=unused, mesh=unused, executor=unused,
            questions=QuestionSets(PromptSet((), (), ()), {}, {}, unused, {}),
            outputs=Outputs(display, metrics, samples, RolloutWriter(None, 0), checkpoints),
            status=RunStatus(Health(HealthConfig())),
        )  # fmt: skip


def with_checkpoints_every(training: TrainingRun, steps: int) -> TrainingRun:
    config = dataclasses.replace(training.config, run=RunConfig(checkpoint_every=steps))
    return dataclasses.replace(training, config=config)


def run(training: TrainingRun, begin: int = 0, **options: Any) -> tuple[bool, list[Event]]:
    events = training.outputs.checkpoints.events  # type: ignore[attr-defined]
    return run_phase(training, Counting(training, events, **options), ResumePoint(begin)), events


def test_step_is_evaluated_before_it_is_saved(training: TrainingRun) -> None:
    went_on, events = run(training)
    assert went_on
    assert events == [
        ("step", 1), ("save", 1), ("step", 2), ("evaluate", 2), ("save", 2),
        ("step", 3), ("save", 3), ("step", 4), ("evaluate", 4), ("save", 4),
    ]  # fmt: skip


def test_resumed_run_first_makes_the_due_evaluation(training: TrainingRun) -> None:
    assert run(training, begin=2) == (True, [
        ("evaluate", 2), ("save", 2), ("step", 3), ("save", 3), ("step", 4), ("evaluate", 4), ("save", 4),
    ])  # fmt: skip


def test_preemption_saves_the_previous_step(training: TrainingRun) -> None:
    training = with_checkpoints_every(training, 100)
    went_on, events = run(training, preempted_at=2, evaluate_every=0)
    assert not went_on
    assert events == [("step", 1), ("save", 1)]


@pytest.mark.parametrize(("lost_in", "saved"), [(("step", 1), []), (("step", 3), [2]), (("evaluate", 2), [2])])
def test_lost_server_saves_the_last_complete_step(lost_in: Event, saved: list[int], training: TrainingRun) -> None:
    def lose(kind: str, step: int) -> None:
        if (kind, step) == lost_in:
            raise UnreachableServerError("the server is away", "Start it")

    class Lost(Counting):
        def step(self, step: int) -> None:
            lose("step", step)
            super().step(step)

        def record_evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
            lose("evaluate", step)
            super().record_evaluation(step, numbers)

    training = with_checkpoints_every(training, 100)
    phase = Lost(training, training.outputs.checkpoints.events)  # type: ignore[attr-defined]
    with pytest.raises(UnreachableServerError, match=r"^the server is away\. Start it and repeat the command$"):
        run_phase(training, phase, ResumePoint())
    assert [step for kind, step in phase.events if kind == "save"] == saved


def test_last_step_is_evaluated_and_saved_at_any_interval(training: TrainingRun) -> None:
    training = with_checkpoints_every(training, 100)
    assert run(training, evaluate_every=0, last=2) == (True, [
        ("step", 1), ("step", 2), ("evaluate", 2), ("save", 2),
    ])  # fmt: skip


def test_stopping_run_saves_without_an_evaluation(training: TrainingRun) -> None:
    went_on, events = run(training, stopped_at=2)
    assert not went_on
    assert events[-2:] == [("step", 2), ("save", 2)]


def test_non_finite_policy_ends_the_run_with_a_health_error(training: TrainingRun) -> None:
    class Broken(Counting):
        def step(self, step: int) -> None:
            super().step(step)
            if step == 2:
                raise NotFiniteError("float32")

    with pytest.raises(
        HealthError, match=r"^step 2 \(counting\): model: .* in float32; restart, or begin from a checkpoint"
    ):
        run_phase(training, Broken(training, training.outputs.checkpoints.events), ResumePoint())  # type: ignore[attr-defined]


def test_end_prints_health_problems_of_the_report(training: TrainingRun, capsys: pytest.CaptureFixture[str]) -> None:
    training.outputs.metrics.write(1, {"phase": "grpo", "reward/zero_variance": 1.0, "length/truncated": 0.1})
    with make_display("plain", 4, title="a run") as display:
        report_health(dataclasses.replace(training, outputs=training.outputs._replace(display=display)))
    text = "health: 100 % of the groups have no signal: their answers have equal rewards (the last step; "
    link = "health: causes and remedies: docs/howto/read_answers.md#diagnose-a-run"
    assert capsys.readouterr().out.splitlines() == ["a run", f"{text}bound: at most 60 %)", link]
