"""The configuration of each command: the sections that it reads, and the constraints between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

from jaxrl_sql.config.augment import AugmentSettings
from jaxrl_sql.config.data import DataConfig
from jaxrl_sql.config.distill import DistillSettings
from jaxrl_sql.config.evaluate import EvaluateSettings
from jaxrl_sql.config.executor import ExecutorConfig
from jaxrl_sql.config.fields import Synonyms
from jaxrl_sql.config.filtering import FilterSettings
from jaxrl_sql.config.grpo import GrpoConfig
from jaxrl_sql.config.health import HealthConfig
from jaxrl_sql.config.mesh import MeshConfig
from jaxrl_sql.config.model import ModelConfigSection
from jaxrl_sql.config.rollout import RolloutConfig
from jaxrl_sql.config.run import RunConfig
from jaxrl_sql.config.sampling import SamplingConfig
from jaxrl_sql.config.second_stage import SecondStageConfig
from jaxrl_sql.config.sft import SftConfig
from jaxrl_sql.config.validation import ValidationConfig
from jaxrl_sql.config.verbal import VerbalSettings

Seed = Annotated[
    int,
    "Seed of a run, for the order of questions, new weights and sampled tokens.",
    Synonyms(
        trl="seed", verl="data.seed", note="verl's is for the order only; data.seed is for generated questions here"
    ),
]
RecipeName = Annotated[
    str,
    "Prompt, answer format and reward: a published system by name, or a custom one as `FILE.py:NAME` or `module:NAME`, "
    "which is imported.",
    Synonyms(verl="custom_reward_function.path", note="the reward only"),
]


_ADAPTER_LEARNING_RATES = {"sft.optim.lr": 2e-4, "grpo.optim.lr": 1e-5}
"""The default learning rates of adapters, ten times those of full training."""


@dataclass(frozen=True)
class RootConfig:
    """The configuration of one or several commands; its fields are the sections that they read."""

    commands: ClassVar[str] = ""
    """Names of the commands, as in "train, sft", for messages."""

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        yield from ()

    def derive_defaults(self) -> dict[str, Any]:
        """Return the defaults that follow from other values, by dotted key; a key that is set keeps its value."""
        data = getattr(self, "data", None)
        if isinstance(data, DataConfig) and data.source == "synth":
            return {"data.dir": f"data-cache/synth-{data.seed}"}
        return {}


class WorkloadSections(NamedTuple):
    """The sections that determine the computations of a run, and the number of tokens of its longest prompt."""

    sft: SftConfig
    grpo: GrpoConfig
    sampling: SamplingConfig
    rollout: RolloutConfig
    validation: ValidationConfig
    longest: int


@dataclass(frozen=True)
class TrainConfig(RootConfig):
    """A training run: a supervised phase, GRPO or PPO, and a second stage, each of them optional."""

    commands: ClassVar[str] = "train, sft, plan, launch"

    seed: Seed = 0
    recipe: RecipeName = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    sft: SftConfig = field(default_factory=SftConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    second_stage: SecondStageConfig = field(default_factory=SecondStageConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run: RunConfig = field(default_factory=RunConfig)
    health: HealthConfig = field(default_factory=HealthConfig)

    def workload(self, longest: int) -> WorkloadSections:
        """Return the sections that determine the computations of a run with prompts of up to `longest` tokens."""
        return WorkloadSections(self.sft, self.grpo, self.sampling, self.rollout, self.validation, longest)

    def phases(self) -> list[tuple[str, int]]:
        """Return (name, last step) of each phase that a run has; steps are counted over all phases."""
        phases, last = [], 0
        for name, steps in (("sft", self.sft.steps), ("grpo", self.grpo.steps), ("grpo2", self.second_stage.steps)):
            last += steps
            phases += [(name, last)] if steps else []
        return phases

    def total_steps(self) -> int:
        """Return the steps of all phases of a run."""
        return self.sft.steps + self.grpo.steps + self.second_stage.steps

    def derive_defaults(self) -> dict[str, Any]:
        """Return the defaults that follow from other values, by dotted key; a key that is set keeps its value."""
        return {
            **super().derive_defaults(),
            "validation.sampling.max_new_tokens": self.sampling.max_new_tokens,
            **(_ADAPTER_LEARNING_RATES if self.model.lora.rank else {}),
        }

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        data, sft, grpo, model = self.data, self.sft, self.grpo, self.model
        if sft.formats and data.prompt == "compact":
            yield f"sft.formats={sft.formats} need data.prompt=tagged or chat: compact answers are SQL only"
        if sft.formats and data.prompt == "given":
            yield (f"sft.formats={sft.formats} needs a prompt per answer format: data.prompt=given has one per row")
        yield from _sampling_errors(self.sampling)
        yield from _objective_errors(self.sampling, self.rollout, grpo)
        yield from _turn_errors(self)
        yield from _shot_errors(
            data,
            max(self.sampling.turns, self.validation.sampling.turns),
            "sampling.turns and validation.sampling.turns",
        )
        yield from _stage_errors(self)
        yield from _dialect_errors(data, self.executor)
        if model.init and not (model.checkpoint or model.shape):
            yield from _length_errors(self)
        yield from self.missing()

    def missing(self) -> Iterator[str]:
        """Yield a line for each required value that is not set."""
        yield from _model_errors(self.model)
        yield from _folder_errors(self.data)


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """The configuration of a planned training run, which needs no questions."""

    def missing(self) -> Iterator[str]:
        """Yield a line for each required value that is not set."""
        if not self.model.shape:
            yield from _model_errors(self.model)


@dataclass(frozen=True)
class EvaluateConfig(RootConfig):
    """Commands that answer questions with a model or an endpoint, or score existing answers."""

    commands: ClassVar[str] = "evaluate, ask, serve, mcp"

    seed: Seed = 0
    recipe: RecipeName = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=lambda: ModelConfigSection(compute_dtype="same"))
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run: RunConfig = field(default_factory=RunConfig)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        turns = self.evaluate.sampling.turns
        yield from _shot_errors(self.data, turns, "evaluate.sampling.turns")
        yield from _dialect_errors(self.data, self.executor)
        if turns > 1 and self.data.prompt == "compact":
            yield "data.prompt=compact has answers of SQL only, in one turn: evaluate.sampling.turns must be 1"


@dataclass(frozen=True)
class FilterConfig(RootConfig):
    """A selection of training questions."""

    commands: ClassVar[str] = "data filter"

    seed: Seed = 0
    recipe: RecipeName = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run: RunConfig = field(default_factory=RunConfig)
    filter: FilterSettings = field(default_factory=FilterSettings)

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        yield from _sampling_errors(self.sampling)
        turns = self.sampling.turns
        yield from _multi_turn_errors(self.data, self.sampling, turns, turns)
        yield from _shot_errors(self.data, turns, "sampling.turns")
        yield from _dialect_errors(self.data, self.executor)
        if self.filter.samples and not self.model.checkpoint:
            yield f"filter.samples={self.filter.samples} samples answers from a model: set model.checkpoint"
        yield from _folder_errors(self.data)


@dataclass(frozen=True)
class DistillConfig(RootConfig):
    """Answers of a teacher model behind an endpoint to training questions."""

    commands: ClassVar[str] = "distill"

    recipe: RecipeName = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    run: RunConfig = field(default_factory=RunConfig)
    distill: DistillSettings = field(default_factory=DistillSettings)

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        yield from _dialect_errors(self.data, self.executor)
        yield from _folder_errors(self.data)


@dataclass(frozen=True)
class AugmentConfig(RootConfig):
    """More questions and rows from a set of questions, with the help of a model behind an endpoint."""

    commands: ClassVar[str] = "data augment"

    seed: Seed = 0
    data: DataConfig = field(default_factory=DataConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    filter: FilterSettings = field(default_factory=FilterSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        yield from _dialect_errors(self.data, self.executor)
        asks = self.augment.correct or self.augment.reword or self.augment.fill_tries
        if asks and not (self.distill.base_url and self.distill.model):
            yield (
                "augment.correct, augment.reword and augment.fill_tries request a model: set distill.base_url and "
                "distill.model"
            )
        yield from _folder_errors(self.data)


@dataclass(frozen=True)
class VerbalConfig(RootConfig):
    """Verbal reinforcement learning: candidates and the model's own choice among them."""

    commands: ClassVar[str] = "verbal"

    seed: Seed = 0
    recipe: RecipeName = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run: RunConfig = field(default_factory=RunConfig)
    verbal: VerbalSettings = field(default_factory=VerbalSettings)

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each contradiction between values of different sections."""
        if self.data.prompt == "given":
            yield "data.prompt=given is for train, evaluate, data filter and distill: "
            "the rows have no prompts for the judge, the model that rates answers in verbal RL"
        yield from _dialect_errors(self.data, self.executor)
        yield from _folder_errors(self.data)


ROOTS: tuple[type[RootConfig], ...] = (
    TrainConfig, EvaluateConfig, FilterConfig, DistillConfig, AugmentConfig, VerbalConfig,
)  # fmt: skip
"""The configurations of all commands that share sections."""


def _sampling_errors(sampling: SamplingConfig) -> Iterator[str]:
    """Reject zeros that only `validation.sampling` accepts: temperature (greedy) and turns (those of `sampling`)."""
    if not sampling.temperature:
        yield f"sampling.temperature={sampling.temperature} must be above 0"
    if not sampling.turns:
        yield "sampling.turns=0 must be above 0"


def _multi_turn_errors(data: DataConfig, sampling: SamplingConfig, turns: int, limited_turns: int) -> Iterator[str]:
    """Yield the errors of answers with up to `turns` turns.

    limited_turns: the most turns of an answer whose total length `sampling.max_total_tokens` limits.
    """
    if limited_turns > 1 and sampling.max_total_tokens <= sampling.max_new_tokens:
        yield (
            f"sampling.max_total_tokens={sampling.max_total_tokens} limits all {limited_turns} turns: it must be above "
            f"sampling.max_new_tokens={sampling.max_new_tokens}"
        )
    if turns > 1 and data.prompt == "compact":
        yield "data.prompt=compact has answers of SQL only, in one turn: several turns need data.prompt=tagged or chat"


def _turn_errors(config: TrainConfig) -> Iterator[str]:
    """Yield the errors of multi-turn answers in training and validation."""
    sampling, validation_sampling = config.sampling, config.validation.sampling
    validation = config.validation.sampling_in(sampling)
    turns = max(sampling.turns, validation_sampling.turns)
    # The limit of `sampling` also applies to validation, unless that has its own.
    limited_turns = sampling.turns if validation_sampling.max_total_tokens else turns
    yield from _multi_turn_errors(config.data, sampling, turns, limited_turns)
    if turns > 1 and config.mesh.processes != 1 and config.rollout.mesh == "training":
        yield (
            f"{turns} turns on mesh.processes={config.mesh.processes} need replicas of the model: rollout.mesh must be "
            "auto, or replicas x tensor such as 8x1, not training"
        )
    if validation.turns > 1 and validation.max_new_tokens > validation.max_total_tokens:
        section = "validation.sampling" if validation_sampling.max_total_tokens else "sampling"
        yield (
            f"validation.sampling.max_new_tokens={validation.max_new_tokens} must be at most "
            f"{section}.max_total_tokens={validation.max_total_tokens}"
        )


def _model_errors(model: ModelConfigSection) -> Iterator[str]:
    """Yield the error of a run without a model."""
    if not (model.checkpoint or model.init):
        yield (
            "model.checkpoint is empty: set a hub name, a folder or a GGUF file (model.init=plain creates a small "
            "model from scratch)"
        )


def _folder_errors(data: DataConfig) -> Iterator[str]:
    """Yield the error of questions without a folder."""
    if not data.dir:
        yield "data.dir is empty: set the folder with the questions and databases (data.source=synth generates some)"


def _shot_errors(data: DataConfig, turns: int, keys: str) -> Iterator[str]:
    """Yield the error of few-shot examples with several turns."""
    if data.shots and turns > 1:
        yield f"data.shots={data.shots} shows answers of one turn: {keys} must be 1, not {turns}"


def _stage_errors(config: TrainConfig) -> Iterator[str]:
    """Yield the errors of a second stage of reinforcement learning."""
    grpo, second_stage = config.grpo, config.second_stage
    if second_stage.steps % grpo.steps_per_generation:
        yield (
            f"grpo.steps_per_generation={grpo.steps_per_generation} must divide second_stage.steps={second_stage.steps}"
        )
    if second_stage.steps and not (config.validation.every > 0 and config.run.keep_best > 0):
        yield (
            f"second_stage.steps={second_stage.steps} starts from the best evaluated checkpoint: set "
            "validation.every and run.keep_best"
        )
    if second_stage.steps and not grpo.steps:
        yield "second_stage.steps needs a first stage: grpo.steps must be above 0"


def _dialect_errors(data: DataConfig, executor: ExecutorConfig) -> Iterator[str]:
    """Yield the errors of questions in dialects other than SQLite's, whose SQL needs a database of that dialect."""
    shares, addresses = dataclasses.asdict(data.dialects), dataclasses.asdict(executor.databases)
    if executor.sqlite_version and shares["mysql"] > 0 and addresses["mysql"] == "translated":
        yield (
            f"executor.sqlite_version={executor.sqlite_version} is incompatible with "
            f"data.dialects.mysql={shares['mysql']} and executor.databases.mysql=translated: the translation calls "
            "functions of later versions. Clear executor.sqlite_version, or set executor.databases.mysql to copies on "
            "a server"
        )
    for dialect, share in shares.items():
        if share and dialect != "sqlite" and not addresses[dialect]:
            translated = ", or to translated (runs on SQLite)" if dialect == "mysql" else ""
            yield (
                f"data.dialects.{dialect}={share} needs a database: set executor.databases.{dialect} to the --out of "
                f"`jaxrl-sql data copy`{translated}"
            )


def _objective_errors(sampling: SamplingConfig, rollout: RolloutConfig, grpo: GrpoConfig) -> Iterator[str]:
    """Yield the errors of sampling settings that the objective of `grpo` does not support."""
    changes_distribution = {
        f"sampling.top_k={sampling.top_k}": sampling.top_k > 0,
        f"sampling.top_p={sampling.top_p}": sampling.top_p < 1,
        f"sampling.min_p={sampling.min_p}": sampling.min_p > 0,
        f"sampling.repetition_penalty={sampling.repetition_penalty}": sampling.repetition_penalty != 1,
    }
    changes = ", ".join(setting for setting, is_set in changes_distribution.items() if is_set)
    # The importance weight (`tis_clip_max`) corrects the difference.
    if changes and not grpo.loss.tis_clip_max and grpo.steps:
        yield f"{changes} samples from another distribution than the policy: grpo.loss.tis_clip_max=0 must be above 0"
    incompatible = {
        f"sampling.turns={sampling.turns}: a gold is one answer, not a dialogue": sampling.turns > 1,
        "rollout.exact=true: a gold has no log-probabilities of a sampler": rollout.exact,
    }
    for setting, is_set in incompatible.items():
        if grpo.demonstrations and is_set:
            yield f"grpo.demonstrations is incompatible with {setting}"
    extra = grpo.dynamic_sampling.max_extra_generations
    incompatible = {
        f"sampling.turns={sampling.turns}, because a call cannot continue a dialogue: it must be 1": sampling.turns > 1,
        f"grpo.dynamic_sampling.max_extra_generations={extra}, because rounds are not known ahead: it must be 0": extra
        > 0,
        "rollout.exact=true, because an answer may include tokens of an older policy: it must be false": rollout.exact,
        "grpo.loss.tis_clip_max=0, which would not correct tokens of an older policy: it must be above 0": (
            grpo.loss.tis_clip_max == 0
        ),
    }
    for setting, is_set in incompatible.items():
        if rollout.ahead and is_set:
            yield f"rollout.ahead=1 is incompatible with {setting}"


def _length_errors(config: TrainConfig) -> Iterator[str]:
    """Yield the error of a model from scratch with too few positions for the longest prompt and answer."""
    answer = max(
        config.sampling.max_new_tokens, config.sft.max_completion_tokens, config.validation.sampling.max_new_tokens
    )
    total = config.data.max_prompt_tokens + answer
    if total > config.model.max_positions:
        yield (
            f"model.max_positions={config.model.max_positions} is below the longest prompt and completion together, "
            f"{total} tokens"
        )
