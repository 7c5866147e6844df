"""The specification of a policy: its model, prompts and engine."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config import DataConfig, MeshConfig, ModelConfigSection, RolloutConfig


@dataclass(frozen=True)
class PolicySpec:
    """A model, the recipe and settings of its prompts, and the engine that samples its answers.

    `compilation_cache` and `pad_to_max` are those of the section `run`. An endpoint needs only `recipe` and `data`.
    """

    recipe: str
    seed: int
    data: DataConfig
    model: ModelConfigSection
    rollout: RolloutConfig
    mesh: MeshConfig
    compilation_cache: str = "auto"
    pad_to_max: bool = False
