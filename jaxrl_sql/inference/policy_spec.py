"""The specification of a policy: its model, prompts and engine."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config import DataConfig, MeshConfig, ModelConfigSection, RolloutConfig


@dataclass(frozen=True)
class PolicySpec:
    """A model, the recipe and settings of its prompts, and the rollout engine that samples its answers.

    A recipe is the prompt, the parsing and the reward of a published system; `recipe` is its name. `seed` is that of
    sampling. `compilation_cache` and `pad_to_max` are settings of the section `run`. For an endpoint, which has its own
    model, only `recipe` and `data` matter.
    """

    recipe: str
    seed: int
    data: DataConfig
    model: ModelConfigSection
    rollout: RolloutConfig
    mesh: MeshConfig
    compilation_cache: str = "auto"
    pad_to_max: bool = False
