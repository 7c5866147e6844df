"""Rollouts: the engine that samples completions of prompts from a policy.

A prompt is prefilled once (its keys and values are computed in parallel), and all of its samples read this KV cache.
"""

from jaxrl_sql.rollout.engine import Engine
from jaxrl_sql.rollout.engine_config import EngineConfig
from jaxrl_sql.rollout.replicated import AnyEngine, ReplicatedEngine
from jaxrl_sql.rollout.sampling import NotFiniteError, Sample, SamplingParams
from jaxrl_sql.text2sql.env.turns import (
    SQL_STOPS,
    Action,
    Environment,
    EnvironmentFactory,
    PendingObservation,
    SqlTurns,
)

__all__ = [
    "SQL_STOPS",
    "Action",
    "AnyEngine",
    "Engine",
    "EngineConfig",
    "Environment",
    "EnvironmentFactory",
    "NotFiniteError",
    "PendingObservation",
    "ReplicatedEngine",
    "Sample",
    "SamplingParams",
    "SqlTurns",
]
