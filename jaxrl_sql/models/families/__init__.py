"""How Hugging Face spells each family's config: `model_type` -> a reader and a writer.

A family is two pure functions between the dict of `config.json` and `ModelConfig`; what the family computes is in
the switches of `ModelConfig`, and its weights' names are in `spec.param_specs`.
"""

from __future__ import annotations

from jaxrl_sql.models.families import qwen2, qwen3
from jaxrl_sql.models.families.fields import Family

FAMILIES: dict[str, Family] = {
    "qwen2": Family(qwen2.read_config, qwen2.write_config),
    "qwen3": Family(qwen3.read_config, qwen3.write_config),
}

__all__ = ["FAMILIES", "Family"]
