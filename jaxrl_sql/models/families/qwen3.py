"""Qwen3 (dense): norms on queries and keys, no biases, a head size of its own (arXiv 2505.09388)."""

from __future__ import annotations

from typing import Any

from jaxrl_sql.models.families.fields import HfConfig, common_fields, common_values, number, refuse, refuse_windows
from jaxrl_sql.models.families.rope import flat_rope, read_flat_rope
from jaxrl_sql.models.spec import ModelConfig

SWITCHES: dict[str, Any] = {"qk_norm": True, "qkv_bias": False}


def read_config(hf: HfConfig) -> ModelConfig:
    """Turn a `qwen3` config.json into a ModelConfig; raises InputError naming what is missing or unsupported."""
    refuse(hf, "hidden_act", "silu")
    refuse(hf, "attention_bias", supported=False)
    refuse_windows(hf)
    common = common_values(hf, is_tied=False, max_positions=32_768)
    return ModelConfig(
        family="qwen3",
        n_kv_heads=number(hf, "num_key_value_heads", common["n_heads"]),
        head_dim=number(hf, "head_dim", 128),
        rope_theta=read_flat_rope(hf, 10_000.0)[0],
        **common,
        **SWITCHES,
    )


def write_config(config: ModelConfig) -> HfConfig:
    """Turn a ModelConfig into the fields of a `qwen3` config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "use_sliding_window": False,
        **common_fields(config),
        **flat_rope(config),
    }
