"""Settings of all commands: frozen dataclasses, filled from YAML and `key.sub=value`, validated once at the start.

Each section has a file, whose fields declare their rules and help texts; `roots` lists the sections of each command.
`load_config` rejects an unknown key (and suggests the nearest), a value of the wrong type, and an invalid choice, each
with a one-line error.
"""

from jaxrl_sql.config.augment import AugmentSettings
from jaxrl_sql.config.check import check_config
from jaxrl_sql.config.data import ChatConfig, DataConfig, DialectsConfig, RetrievalConfig, SelectConfig, TokenizerConfig
from jaxrl_sql.config.distill import DistillSettings
from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.evaluate import EvaluateSettings
from jaxrl_sql.config.executor import DatabasesConfig, ExecutorConfig
from jaxrl_sql.config.filtering import FilterSettings
from jaxrl_sql.config.grpo import ClipConfig, DynamicSamplingConfig, GrpoConfig, KlConfig, LossConfig, PpoConfig
from jaxrl_sql.config.health import HealthConfig
from jaxrl_sql.config.load import Override, find_shipped, load_config, replace_values
from jaxrl_sql.config.mesh import MeshConfig
from jaxrl_sql.config.model import LoraConfig, ModelConfigSection
from jaxrl_sql.config.optim import OptimConfig
from jaxrl_sql.config.reading import to_yaml
from jaxrl_sql.config.rollout import RolloutConfig
from jaxrl_sql.config.roots import (
    AugmentConfig,
    DistillConfig,
    EvaluateConfig,
    FilterConfig,
    PlanConfig,
    RootConfig,
    TrainConfig,
    VerbalConfig,
    WorkloadSections,
)
from jaxrl_sql.config.run import RunConfig
from jaxrl_sql.config.sampling import SamplingConfig
from jaxrl_sql.config.second_stage import SecondStageConfig
from jaxrl_sql.config.sft import SftConfig
from jaxrl_sql.config.validation import ValidationConfig
from jaxrl_sql.config.verbal import VerbalSettings

__all__ = [
    "AugmentConfig",
    "AugmentSettings",
    "ChatConfig",
    "ClipConfig",
    "DataConfig",
    "DatabasesConfig",
    "DialectsConfig",
    "DistillConfig",
    "DistillSettings",
    "DynamicSamplingConfig",
    "EndpointConfig",
    "EvaluateConfig",
    "EvaluateSettings",
    "ExecutorConfig",
    "FilterConfig",
    "FilterSettings",
    "GrpoConfig",
    "HealthConfig",
    "KlConfig",
    "LoraConfig",
    "LossConfig",
    "MeshConfig",
    "ModelConfigSection",
    "OptimConfig",
    "Override",
    "PlanConfig",
    "PpoConfig",
    "RetrievalConfig",
    "RolloutConfig",
    "RootConfig",
    "RunConfig",
    "SamplingConfig",
    "SecondStageConfig",
    "SelectConfig",
    "SftConfig",
    "TokenizerConfig",
    "TrainConfig",
    "ValidationConfig",
    "VerbalConfig",
    "VerbalSettings",
    "WorkloadSections",
    "check_config",
    "find_shipped",
    "load_config",
    "replace_values",
    "to_yaml",
]
