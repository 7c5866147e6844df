"""An open run as a value: its configuration, prompt format, questions, devices, executor and outputs.

`trainer` makes it, `build` makes its parameters, and `lifecycle` makes its steps. No field changes while the run is
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
    """A step was abandoned while its answers were sampled, with nothing changed, before the machine stops."""


class PromptFormat(NamedTuple):
    """The prompt and answer format; `ends` are the tokens that end an answer, the trained one last."""

    recipe: Recipe
    style: PromptStyle
    tokenizer: Any
    ends: tuple[int, ...] = ()


class QuestionSets(NamedTuple):
    """The questions of a run; `rules` judges the answers of each set of `evals`.

    `inputs` has hashes of files and questions. `make_sft` makes the supervised data set at its first call.
    """

    train: PromptSet
    evals: Mapping[str, PromptSet]
    rules: Mapping[str, str]
    make_sft: Callable[[], SftDataset]
    inputs: Mapping[str, str]

    @property
    def sft(self) -> SftDataset:
        """Return the data set of the supervised phase."""
        return self.make_sft()


class Outputs(NamedTuple):
    """A run's outputs: the display, and the files of its folder."""

    display: Display
    metrics: MetricsWriter
    samples: SampleWriter
    rollouts: RolloutWriter
    checkpoints: Checkpoints


@dataclass
class RunStatus:
    """The state that changes while a run is open; only its own methods and those of `TrainingRun` assign to it.

    `evaluation` is the (step, numbers) of the last evaluation, which is made once and rates the checkpoint of its step.
    `policies` are the scoring functions by temperature.
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

    def keep_evaluation(self, step: int, numbers: dict[str, float]) -> None:
        """Keep the evaluation of a step in place of the last."""
        self.evaluation = (step, numbers)

    def policy(self, temperature: float, make: Callable[[], LogprobFn]) -> LogprobFn:
        """Return the cached scoring function of a temperature."""
        if temperature not in self.policies:
            self.policies[temperature] = make()
        return self.policies[temperature]

    def resume(self, counts: Mapping[str, int], evaluation: tuple[int, dict[str, float]] | None) -> None:
        """Restore the run's health and its last evaluation from a checkpoint."""
        self.health.counts |= counts
        self.evaluation = (evaluation[0], evaluation[1]) if evaluation else None

    def agree_to_stop(self) -> bool:
        """Exchange requests to stop, so that all processes stop after the same step; return whether they do."""
        codes = [code for code in processes.exchange([self.request.exit_code]) if code is not None]
        if codes:
            self.is_stopping, self.request.exit_code = True, min(codes)
        return self.is_stopping

    def check_health(self, step: int, phase: str, numbers: Mapping[str, float]) -> None:
        """Request a stop if the run no longer learns; raises HealthError for numbers that are not finite."""
        if stop_reason := self.health.check(step, phase, numbers):
            self.stop_reason, self.request.exit_code = stop_reason, UNHEALTHY


@dataclass(frozen=True)
class TrainingRun:
    """An open run. Loops call `agree_to_stop` between steps, and end by `report_stop` when it returns True."""

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
        """Write sections, with numbers that were found at the start, to the configuration in the run's folder."""
        if processes.is_first():
            saved_config = load_config(TrainConfig, self.folder / CONFIG)
            write_config(self.folder, to_yaml(dataclasses.replace(saved_config, **sections)))

    def note(self, text: str) -> None:
        """Print a line outside of the progress display."""
        self.display.note(text)

    @cached_property
    def max_prompt_bucket(self) -> int:
        """Return the padding length of all prompts in tokens, or 0 to pad each to its own bucket."""
        return self.longest_prompt if self.config.run.pad_to_max else 0

    @cached_property
    def longest_prompt(self) -> int:
        """Return the number of tokens of the longest prompt of all sets."""
        sets = (self.questions.train, *self.questions.evals.values())
        return max(length for prompts in sets for length in prompts.lengths())

    def local_rows(self, rows: int) -> list[int]:
        """Return this process's share of B = `rows` prompts to pack."""
        return rules.local_rows(self.mesh, rows)

    def to_mesh(self, batch: GroupBatch, rows: int) -> GroupBatch:
        """Put a packed batch, this process's part of B = `rows` prompts, on the devices, split along B."""
        return rules.shard_batch(batch, self.mesh, rows)

    def agree_to_stop(self) -> bool:
        """Exchange requests to stop, so that all processes stop after the same step; return whether they do."""
        return self.status.agree_to_stop()

    def should_abort(self, code: int | None = None) -> bool:
        """Return whether to leave work that a resumed run makes again: a stop was requested (of exit code `code`).

        Only in a run of one process: several stop after the same step.
        """
        request = self.status.request
        return request.is_made and code in {None, request.exit_code} and jax.process_count() == 1

    def report_stop(self) -> int:
        """Report that the run was stopped and return its exit code; raise HealthError for a run that cannot learn."""
        if self.status.stop_reason:
            raise HealthError(self.status.stop_reason)
        self.outputs.checkpoints.wait()  # a reader of the next line may stop the machine
        self.note(f"stopped; {self.caller.resume_advice(self.folder)}")
        return self.status.request.exit_code or 0

    def record(self, step: int, phase: str, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step, show them, check the run's health, and call the caller's callback.

        Metrics of the programs that were compiled since the last record are added. Raises HealthError when numbers are
        not finite; a stop is requested for a run that no longer learns, and if the callback returns a true value.
        """
        numbers = {**numbers, **self.compile_stats.take_recent()}
        self.outputs.metrics.write(step, {"phase": phase, **numbers})
        self.display.update(step, {"phase": phase, **numbers})
        self.status.check_health(step, phase, numbers)
        callback, request = self.caller.callback, self.status.request
        if callback is not None and callback(step, {"phase": phase, **numbers}) and not request.is_made:
            request.exit_code, request.source = EXIT_ENDED, "the callback"

    def write_sample(
        self,
        step: int,
        phase: str,
        example: Example,
        text: str,
        about: Fields,
    ) -> None:
        """Keep an answer with its SQL, status, reward and verdict (`about`), as a trace if a tracker has traces."""
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
