"""Families of models by `model_type`: conversion between config.json and ModelConfig, and options of new models.

A family is a kind of architecture, such as Qwen3, whose models differ in sizes only. The options of `ModelConfig`
define the computation of a family, and `spec.param_specs` has the names of its weights.
"""

from __future__ import annotations

from jaxrl_sql.models.families import gemma3
from jaxrl_sql.models.families.dense import LLAMA, QWEN2, QWEN3
from jaxrl_sql.models.families.fields import Family

FAMILIES: dict[str, Family] = {
    "gemma3_text": Family(gemma3.read_config, gemma3.write_config, gemma3.SWITCHES, gemma3.new_sliding),
    **{dense.model_type: dense.family() for dense in (LLAMA, QWEN2, QWEN3)},
}

__all__ = ["FAMILIES", "Family"]
