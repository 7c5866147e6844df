"""An open run as a value: its configuration, prompt format, questions, devices, executor and outputs.

`trainer` opens it, `build` makes its parameters, and `lifecycle` runs its steps. No field changes while the run is
open; `status` alone holds changing state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_sql.algo.step import LogprobFn
from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.config import TrainConfig, load_config, to_yaml
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.parallel import processes, rules
from jaxrl_sql.planning.chips import machine_memory
from jaxrl_sql.runtime.display import Display
from jaxrl_sql.runtime.folder import CONFIG, write_config
from jaxrl_sql.runtime.health import UNHEALTHY, Health, HealthError
from jaxrl_sql.runtime.memory import MemoryTrimmer
from jaxrl_sql.runtime.metrics import MetricsWriter, SampleWriter
from jaxrl_sql.runtime.progress import CompileStats
from jaxrl_sql.runtime.rollouts import RolloutWriter
from jaxrl_sql.runtime.signals import EXIT_ENDED, StopRequest
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.recipes import Recipe
from jaxrl_sql.training.batching.sft_dataset import SftDataset
from jaxrl_sql.training.caller import NO_CALLER_INPUTS, CallerInputs
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.types import Example, Fields, JaxrlSqlError


class PreemptedError(JaxrlSqlError):
    """A step or evaluation was abandoned while answers were sampled, because the run stops; nothing has changed."""


class PromptFormat(NamedTuple):
    """The prompt and answer format of a run.

    `ends` are the ids of the tokens that end an answer. Supervised targets end with the last of them.
    """

    recipe: Recipe
    style: PromptStyle
    tokenizer: Any
    ends: tuple[int, ...] = ()


class QuestionSets(NamedTuple):
    """The questions of a run: the training set, and the held-out sets `evals` by name.

    `rules` has the comparison rule of each held-out set, such as `bird` (rows compared as sets). `inputs` has hashes of
    the run's files and questions by name, with which a resumed run is compared. `make_sft` makes the supervised data
    set at its first call and returns the same afterwards. `lines` has the place (`file:line`) of each held-out set's
    questions in a user's file, by uid.
    """

    train: PromptSet
    evals: Mapping[str, PromptSet]
    rules: Mapping[str, str]
    make_sft: Callable[[], SftDataset]
    inputs: Mapping[str, str]
    lines: Mapping[str, Mapping[str, str]] = {}

    @property
    def sft(self) -> SftDataset:
        """Return the data set of the supervised phase."""
        return self.make_sft()


class Outputs(NamedTuple):
    """A run's outputs: the display of progress, and the files of its folder.

    `samples` has a few answers per step for readers, `rollouts` all answers.
    """

    display: Display
    metrics: MetricsWriter
    samples: SampleWriter
    rollouts: RolloutWriter
    checkpoints: Checkpoints


@dataclass
class RunStatus:
    """The state that changes while a run is open; only its own methods and those of `TrainingRun` assign to it.

    - `request` is the request of this process to stop, if any. `is_stopping` is True once all processes know that the
      run stops (`sync_stop_requests`). `stop_reason` is the reason of a run that stops because it no longer learns.
    - `evaluation` is (step, metrics) of the last evaluation, which rates the checkpoint of its step.
    - `policies` are the functions that compute log-probabilities, by temperature.
    """

    health: Health
    request: StopRequest = field(default_factory=StopRequest)
    memory_trimmer: MemoryTrimmer = field(default_factory=lambda: MemoryTrimmer(machine_memory()))
    evaluation: tuple[int, dict[str, float]] | None = None
    stop_reason: str = ""
    is_stopping: bool = False
    policies: dict[float, LogprobFn] = field(default_factory=dict)

    def evaluation_of(self, step: int) -> dict[str, float] | None:
        """Return the metrics of the evaluation of a step; None without one."""
        return self.evaluation[1] if self.evaluation is not None and self.evaluation[0] == step else None

    def keep_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Keep the evaluation of a step in place of the previous one."""
        self.evaluation = (step, metrics)

    def policy(self, temperature: float, make: Callable[[], LogprobFn]) -> LogprobFn:
        """Return the function that computes log-probabilities at a temperature; `make` makes it at the first call."""
        if temperature not in self.policies:
            self.policies[temperature] = make()
        return self.policies[temperature]

    def resume(self, counts: Mapping[str, int], evaluation: tuple[int, dict[str, float]] | None) -> None:
        """Restore the `counts` of the run's health checks and its last evaluation from a checkpoint."""
        self.health.counts |= counts
        self.evaluation = (evaluation[0], evaluation[1]) if evaluation else None

    def sync_stop_requests(self) -> bool:
        """Exchange the processes' requests to stop and set `is_stopping`, so that all stop after the same step.

        Return `is_stopping`. Every process must call it at the same place.
        """
        codes = [code for code in processes.exchange([self.request.exit_code]) if code is not None]
        if codes:
            self.is_stopping, self.request.exit_code = True, min(codes)
        return self.is_stopping

    def check_health(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Request a stop if the run no longer learns; raises HealthError for numbers that are not finite."""
        if stop_reason := self.health.check(step, phase, metrics):
            self.stop_reason, self.request.exit_code = stop_reason, UNHEALTHY


@dataclass(frozen=True)
class TrainingRun:
    """An open run.

    A loop over steps calls `sync_stop_requests` between steps. If it returns True, the loop ends, and the run returns
    the exit code of `report_stop`. `caller` are the Python values that the caller of `train` passed.
    """

    config: TrainConfig
    folder: Path
    prompt_format: PromptFormat
    model: ModelConfig
    mesh: jax.sharding.Mesh
    executor: Executor
    questions: QuestionSets
    outputs: Outputs
    status: RunStatus
    caller: CallerInputs = NO_CALLER_INPUTS

    @property
    def display(self) -> Display:
        """Return the display of the run's progress."""
        return self.outputs.display

    @property
    def compile_stats(self) -> CompileStats:
        """Return the counts of programs compiled for the run."""
        return self.display.activity.compile_stats

    def write_config(self, **sections: Any) -> None:
        """Replace sections of the configuration in the run's folder, by name.

        The run computed some of their settings at its start, such as the layout of the rollout engines.
        """
        if processes.is_first():
            saved_config = load_config(TrainConfig, self.folder / CONFIG)
            write_config(self.folder, to_yaml(dataclasses.replace(saved_config, **sections)))

    def note(self, text: str) -> None:
        """Print a line outside of the progress display."""
        self.display.note(text)

    @cached_property
    def max_prompt_bucket(self) -> int:
        """Return the length in tokens to which all prompts are padded, or 0 to pad each to its own bucket.

        Buckets are the few lengths for which programs are compiled (`batch.bucket`).
        """
        return self.longest_prompt if self.config.run.pad_to_max else 0

    @cached_property
    def longest_prompt(self) -> int:
        """Return the number of tokens of the longest prompt of all sets."""
        sets = (self.questions.train, *self.questions.evals.values())
        return max(length for prompts in sets for length in prompts.lengths())

    def local_rows(self, rows: int) -> list[int]:
        """Return the indices of this process's share of B = `rows` prompts of a batch."""
        return rules.local_rows(self.mesh, rows)

    def to_mesh(self, batch: GroupBatch, rows: int) -> GroupBatch:
        """Put a packed batch, this process's part of B = `rows` prompts, on the devices, split along B."""
        return rules.shard_batch(batch, self.mesh, rows)

    def sync_stop_requests(self) -> bool:
        """Exchange the processes' requests to stop; return whether the run stops, and set `status.is_stopping`."""
        return self.status.sync_stop_requests()

    def should_abort(self, code: int | None = None) -> bool:
        """Return whether to abandon work now that a resumed run would repeat, because a stop was requested.

        If `code` is given, only a request with this exit code counts. The result is False in a run of several
        processes: they must stop after the same step.
        """
        request = self.status.request
        return request.is_made and code in {None, request.exit_code} and jax.process_count() == 1

    def report_stop(self) -> int:
        """Report that the run was stopped and return its exit code; raise HealthError for a run that cannot learn."""
        if self.status.stop_reason:
            raise HealthError(self.status.stop_reason)
        self.outputs.checkpoints.wait()  # whoever reads the message below may turn the machine off
        self.note(f"stopped; {self.caller.resume_advice(self.folder)}")
        return self.status.request.exit_code or 0

    def record(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, show them, check the run's health, and call the caller's callback.

        Metrics of the programs that were compiled since the last record are added. Raises HealthError if metrics are
        not finite. The method requests a stop if the run no longer learns, or the callback returns a true value.
        """
        metrics = {**metrics, **self.compile_stats.take_recent()}
        self.outputs.metrics.write(step, {"phase": phase, **metrics})
        self.display.update(step, {"phase": phase, **metrics})
        self.status.check_health(step, phase, metrics)
        callback, request = self.caller.callback, self.status.request
        if callback is not None and callback(step, {"phase": phase, **metrics}) and not request.is_made:
            request.exit_code, request.source = EXIT_ENDED, "the callback"

    def write_sample(
        self,
        step: int,
        phase: str,
        example: Example,
        text: str,
        about: Fields,
    ) -> None:
        """Write an answer to `samples.jsonl`, and to trackers that support traces.

        `about` has further fields: the answer's SQL, status, reward and whether it is right.
        """
        self.outputs.metrics.trace(step, example.question, text, {"phase": phase, **about})
        self.outputs.samples.write(
            {
                "step": step,
                "phase": phase,
                "uid": example.uid,
                "question": example.question,
                "gold": example.gold_sql,
                "text": text,
                **about,
                **({"dialect": example.dialect} if example.dialect != "sqlite" else {}),
            }
        )
