"""How Hugging Face spells each family's config: `model_type` -> a reader, a writer, and a new model's switches.

A family is pure functions between the dict of `config.json` and `ModelConfig`; what the family computes is in
the switches of `ModelConfig`, and its weights' names are in `spec.param_specs`.
"""

from __future__ import annotations

from jaxrl_sql.models.families import gemma3
from jaxrl_sql.models.families.dense import LLAMA, QWEN2, QWEN3
from jaxrl_sql.models.families.fields import Family

FAMILIES: dict[str, Family] = {
    "gemma3_text": Family(gemma3.read_config, gemma3.write_config, gemma3.SWITCHES, gemma3.new_sliding),
    **{one.model_type: one.family() for one in (LLAMA, QWEN2, QWEN3)},
}

__all__ = ["FAMILIES", "Family"]
