"""A model and how it is asked: what a policy client is opened with, and what of it decides answers."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config import DataConfig, MeshConfig, ModelConfigSection, RolloutConfig


@dataclass(frozen=True)
class PolicySpec:
    """A model, the recipe and prompts that it is asked by, and the engine that samples its answers.

    `compilation_cache` and `pad_to_max` are those of the section `run`. For an endpoint `recipe` and `data` alone are
    read.
    """

    recipe: str
    seed: int
    data: DataConfig
    model: ModelConfigSection
    rollout: RolloutConfig
    mesh: MeshConfig
    compilation_cache: str = "auto"
    pad_to_max: bool = False
