"""The numbers of a run: frozen dataclasses that YAML and `key.sub=value` fill, checked once at the start.

Code names the choices, YAML picks among them and gives the numbers. `load_config` refuses an unknown key with the
nearest valid name, a value of the wrong type, and a choice that does not exist, each in one line.
"""

from jaxrl_sql.config.check import CHOICES, check_config
from jaxrl_sql.config.commands import (
    AugmentConfig,
    DistillConfig,
    EndpointConfig,
    EvaluateConfig,
    FilterConfig,
    VerbalConfig,
)
from jaxrl_sql.config.load import Override, changed, load_config, shipped, to_yaml
from jaxrl_sql.config.sections import (
    DatabasesConfig,
    DataConfig,
    DialectsConfig,
    ExecutorConfig,
    GrpoConfig,
    HealthConfig,
    LoraConfig,
    MeshConfig,
    ModelConfigSection,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    SamplingConfig,
    SecondStageConfig,
    SftConfig,
    TrainConfig,
    ValidationConfig,
)

__all__ = [
    "CHOICES",
    "AugmentConfig",
    "DataConfig",
    "DatabasesConfig",
    "DialectsConfig",
    "DistillConfig",
    "EndpointConfig",
    "EvaluateConfig",
    "ExecutorConfig",
    "FilterConfig",
    "GrpoConfig",
    "HealthConfig",
    "LoraConfig",
    "MeshConfig",
    "ModelConfigSection",
    "OptimConfig",
    "Override",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "SecondStageConfig",
    "SftConfig",
    "TrainConfig",
    "ValidationConfig",
    "VerbalConfig",
    "changed",
    "check_config",
    "load_config",
    "shipped",
    "to_yaml",
]
