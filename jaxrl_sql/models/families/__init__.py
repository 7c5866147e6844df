"""How Hugging Face spells each family's config: `model_type` -> a reader, a writer, and a new model's switches.

A family is pure functions between the dict of `config.json` and `ModelConfig`; what the family computes is in
the switches of `ModelConfig`, and its weights' names are in `spec.param_specs`.
"""

from __future__ import annotations

from jaxrl_sql.models.families import gemma3, llama, qwen2, qwen3
from jaxrl_sql.models.families.fields import Family

FAMILIES: dict[str, Family] = {
    "gemma3_text": Family(gemma3.read_config, gemma3.write_config, gemma3.SWITCHES, gemma3.new_sliding),
    "llama": Family(llama.read_config, llama.write_config, llama.SWITCHES),
    "qwen2": Family(qwen2.read_config, qwen2.write_config, qwen2.SWITCHES),
    "qwen3": Family(qwen3.read_config, qwen3.write_config, qwen3.SWITCHES),
}

__all__ = ["FAMILIES", "Family"]
