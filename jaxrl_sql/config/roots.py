"""Root configurations: the sections that a command reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxrl_sql.config.augment import AugmentSettings
from jaxrl_sql.config.data import DataConfig
from jaxrl_sql.config.distill import DistillSettings
from jaxrl_sql.config.evaluate import EvaluateSettings
from jaxrl_sql.config.executor import ExecutorConfig
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


@dataclass(frozen=True)
class TrainConfig:
    """A whole run; `configs/*.yaml` are overlays of this.

    `recipe` is the name of a published system, or `FILE.py:NAME` or `module:NAME` of one's own, which is imported.
    """

    seed: int = 0
    recipe: str = "arctic"
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
    filter: FilterSettings = field(default_factory=FilterSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    verbal: VerbalSettings = field(default_factory=VerbalSettings)
