"""Run the steps of a phase: stop, resume, evaluate and save, for GRPO and SFT.

A phase is a part of a run with one kind of step: supervised learning, or a stage of GRPO. The *rating* of a checkpoint
is the value of the metric `run.best_by` in the evaluation of its step; `run.keep_best` keeps the best checkpoints.

`run_phase` follows five rules:

1. Evaluate before save: a step's evaluation rates its checkpoint.
2. Resume: a phase that resumes from a checkpoint first runs the evaluation that the stop prevented, and saves it.
3. Preempted: an interrupted step changes nothing, so the previous step is saved and the run ends.
4. Last: the last step is always evaluated and saved; a stopping run saves, and evaluates when it resumes.
5. Lost server: if a database server is lost, the last complete step is saved before the error is raised.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxrl_sql.batch import TrainState
from jaxrl_sql.databases.question_files import single_database
from jaxrl_sql.inference.compiling import drop_programs
from jaxrl_sql.parallel import processes
from jaxrl_sql.report.facts import problems
from jaxrl_sql.report.load import load_run
from jaxrl_sql.rollout import NotFiniteError
from jaxrl_sql.runtime.health import HealthError, stability_advice
from jaxrl_sql.runtime.metrics import find_metric_value
from jaxrl_sql.runtime.progress import duration
from jaxrl_sql.text2sql.env.verdicts import UnreachableServerError
from jaxrl_sql.training.checkpoint import Arrays
from jaxrl_sql.training.evaluation import evaluate_all
from jaxrl_sql.training.finite_check import refuse_broken
from jaxrl_sql.training.inputs import digest
from jaxrl_sql.training.resume import ResumePoint
from jaxrl_sql.training.training_run import PreemptedError, TrainingRun
from jaxrl_sql.types import Example, InputError


class Snapshot(NamedTuple):
    """The contents of a phase's checkpoint.

    `state` is on the devices. `host` is a JSON object with the host's data for resuming. `arrays` are further arrays of
    the host, such as batches that are not learned yet.
    """

    state: TrainState
    host: Mapping[str, Any]
    arrays: Arrays | None = None


class Phase(Protocol):
    """A phase: the steps `steps_before` + 1 to `last` of a run."""

    @property
    def name(self) -> str:
        """Return the phase's name in the metrics."""
        ...

    @property
    def steps_before(self) -> int:
        """Return the number of the run's steps before the phase."""
        ...

    @property
    def last(self) -> int:
        """Return the last step of the phase, counted over the run."""
        ...

    @property
    def evaluate_every(self) -> int:
        """Return the number of steps between evaluations; 0 evaluates only after the last step."""
        ...

    @property
    def is_over(self) -> bool:
        """Return whether the phase ends now, before its last step."""
        ...

    def step(self, step: int) -> None:
        """Run step `step` and record its metrics.

        Raises PreemptedError if the run is to stop and the step has not changed anything yet.
        """
        ...

    def policy_params(self, step: int) -> Any:
        """Return the parameters to evaluate after step `step`."""
        ...

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the evaluation after step `step`."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the contents of a checkpoint."""
        ...


def run_phase(run: TrainingRun, phase: Phase, resume_point: ResumePoint) -> bool:
    """Run a phase's steps, from its start or after the checkpoint's step; return False if a stop was requested.

    Raises HealthError for a policy with NaN or infinite log-probabilities.
    """
    if resume_point.is_within(phase.steps_before, phase.last):
        _evaluate_if_due(run, phase, resume_point.step)
        save(run, resume_point.step, phase.snapshot())  # no effect unless the checkpoint got a rating just now
    if run.sync_stop_requests():
        return False
    steps_done = max(resume_point.step, phase.steps_before)
    with run.display.task(phase.name, phase.last - steps_done, "steps") as on_progress:
        for step in range(steps_done + 1, phase.last + 1):
            if phase.is_over:
                break
            try:
                if not _run_step(run, phase, step, partial(on_progress, step - steps_done)):
                    return False
            except NotFiniteError as error:
                raise HealthError(f"step {step} ({phase.name}): {error}; {stability_advice(phase.name)}") from error
    return True


def _run_step(run: TrainingRun, phase: Phase, step: int, on_step: Callable[[], None]) -> bool:
    """Run a step of a phase, evaluate and save if due; return False if a stop was requested.

    `on_step` is called after the step. `run.sync_stop_requests` sets `run.status.is_stopping` on all processes if any
    of them was asked to stop. It is called wherever the next decision depends on it.
    """
    try:
        with _save_if_server_is_lost(run, phase, step - 1):
            phase.step(step)
        on_step()
        run.status.memory_trimmer.count_step()
        if drop_programs(run.compile_stats):
            run.note(
                "compiled programs used most of this process's memory mappings and were dropped; they are compiled "
                "again on use: raise Linux's vm.max_map_count to avoid this"
            )
    except PreemptedError:
        if step - 1 > phase.steps_before:  # otherwise the phase has nothing to save
            save(run, step - 1, phase.snapshot())
        run.sync_stop_requests()
        return False
    run.sync_stop_requests()
    with _save_if_server_is_lost(run, phase, step):
        _evaluate_if_due(run, phase, step)
    run.sync_stop_requests()
    if _is_save_due(run, phase, step):
        save(run, step, phase.snapshot())
    return not run.status.is_stopping


@contextmanager
def _save_if_server_is_lost(run: TrainingRun, phase: Phase, step: int) -> Iterator[None]:
    """Save the phase after step `step`, which the block has not changed, if the block loses a database server.

    The processes of a run of several may lose it at different steps, so they save nothing.
    """
    try:
        yield
    except UnreachableServerError:
        if step > phase.steps_before and jax.process_count() == 1:
            save(run, step, phase.snapshot())
        raise


def _evaluate_if_due(run: TrainingRun, phase: Phase, step: int) -> None:
    """Evaluate after every `evaluate_every` steps of the phase and after its last step, unless the run is stopping."""
    every = phase.evaluate_every
    if run.status.is_stopping or (step != phase.last and not (every and (step - phase.steps_before) % every == 0)):
        return
    metrics = evaluate_all(run, phase.policy_params(step), step)
    if metrics:
        phase.record_evaluation(step, metrics)


def _is_save_due(run: TrainingRun, phase: Phase, step: int) -> bool:
    """Return whether step `step` is saved; all processes decide by the same data, so all save or none."""
    cfg = run.config.run
    is_rated = cfg.keep_best > 0 and run.status.evaluation_of(step) is not None
    return step == phase.last or phase.is_over or run.status.is_stopping or is_rated or step % cfg.checkpoint_every == 0


def save(run: TrainingRun, step: int, snapshot: Snapshot) -> None:
    """Start saving a checkpoint without the frozen base, which a resumed run reads from its source.

    The step's evaluation, if any, is saved with it. The evaluation also rates the checkpoint, except for supervised
    steps before GRPO. Raises HealthError, and saves nothing, if parameters are not finite or too large.
    """
    with run.display.task("saving a checkpoint", is_announced=False):
        _save(run, step, snapshot)


def _save(run: TrainingRun, step: int, snapshot: Snapshot) -> None:
    state, host, arrays = snapshot
    refuse_broken(step, str(host.get("phase", "")), state.trainable)
    evaluation = run.status.evaluation_of(step)
    run_state = {
        "config": dataclasses.asdict(run.config),
        "questions": digest(run.questions.train),
        "inputs": run.questions.inputs,
        "lines": {
            "metrics": run.outputs.metrics.position,
            "samples": run.outputs.samples.position,
            "rollouts": run.outputs.rollouts.position,
        },
        "health": run.status.health.counts,
        "evaluation": None if evaluation is None else (step, evaluation),
    }
    # The best checkpoint is one of GRPO if the run has GRPO steps: the second stage restarts from it.
    is_rated = evaluation is not None and (host.get("phase") != "sft" or not run.config.grpo.steps)
    rating = find_metric_value(run.config.run.best_by, evaluation) if evaluation and is_rated else None
    metrics = None if rating is None else {"best_by": rating}
    run.outputs.checkpoints.save(
        step, dataclasses.replace(state, frozen=None), {**host, "run": run_state}, arrays, metrics
    )


def restore(run: TrainingRun, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any], dict[str, np.ndarray]]:
    """Return (state, host, arrays) of the checkpoint of a step, as in `Snapshot`.

    `like` is a state of the same structure: each restored array gets the sharding of its array there, and the frozen
    base, which checkpoints lack, is that of `like`.
    """
    with run.display.task(f"reading the checkpoint of step {step}"):
        state, host, arrays = run.outputs.checkpoints.restore(step, dataclasses.replace(like, frozen=None))
    return dataclasses.replace(state, frozen=like.frozen), host, arrays


def rating_of(run: TrainingRun, metrics: Mapping[str, float]) -> float:
    """Return the rating of an evaluation: the value of the metric `run.best_by`; 0 if it was interrupted.

    Raises InputError if `run.keep_best` is set and no metric has that name.
    """
    value = find_metric_value(run.config.run.best_by, metrics)
    if value is None and metrics and run.config.run.keep_best:
        raise InputError(f"run.best_by={run.config.run.best_by!r} is not a metric of an evaluation")
    return value or 0.0


def report_health(run: TrainingRun) -> None:
    """Print the bad health findings of the run's report, one per line."""
    if processes.is_first():  # the first process writes the metrics that the report reads
        bad = problems(load_run(run.folder))
        for line in (*bad, *(["causes and remedies: docs/howto/read_answers.md#diagnose-a-run"] if bad else [])):
            run.note(f"health: {line}")


def report_end(run: TrainingRun) -> None:
    """Print health problems, the duration of this session, the files of the run, and commands to run next."""
    report_health(run)
    activity = run.display.activity
    compile_stats = activity.compile_stats
    run.note(
        f"done in {duration(activity.finish())}, of which {duration(compile_stats.seconds)} went into "
        f"compiling {compile_stats.programs} programs: {compile_stats.most_compiled()}"
    )
    for name in ("model", "adapters", "report.html"):
        if (path := run.folder / name).exists() or name == "report.html":  # the report is written after this message
            run.note(f"{name.removesuffix('.html')}: {path}")
    for command in next_commands(run):
        run.note(f"next: {command}")


def next_commands(run: TrainingRun) -> Iterator[str]:
    """Yield the commands that show the answers, ask the model, and evaluate it, quoted for a shell.

    There is no command to evaluate on questions that a caller passed in Python, because no folder has them.
    """
    folder, data = str(run.folder), run.config.data
    split = data.evals[0] if data.evals else data.train
    yield shlex.join(["jaxrl-sql", "view", folder])
    example = next(iter(next(iter(run.questions.evals.values()), run.questions.train).examples))
    yield shlex.join(["jaxrl-sql", "ask", "--model", folder, *_ask_options(example, data.database)])
    if run.caller.examples is not None or run.caller.evals is not None:
        return
    split_folder = Path(data.dir) / split
    questions = ["--data", str(split_folder)] if split_folder.is_dir() else ["--data", data.dir, "--split", split]
    database = [f"data.database={data.database}"] if data.database else []
    out = str(run.folder / "evaluated")
    yield shlex.join(["jaxrl-sql", "evaluate", "--model", folder, *questions, "--out", out, *database])


def _ask_options(example: Example, database: str) -> list[str]:
    """Return the arguments of `ask` that ask the question of an example.

    They include `--db` with the example's database, unless `data.database` (here `database`) names a single database,
    which the run's configuration provides. A server's URL may hold a password, so the placeholder URL replaces it.
    """
    if database and example.engine_url:
        with suppress(InputError):  # `data.database` names several databases
            single_database(database)
            return [example.question]
    return ["--db", "URL" if example.engine_url else example.db_path, example.question]
