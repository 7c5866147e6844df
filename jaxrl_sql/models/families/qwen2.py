"""Qwen2 and Qwen2.5 (Coder too): biases on queries, keys and values, no norms on them (arXiv 2412.15115)."""

from __future__ import annotations

from typing import Any

from jaxrl_sql.models.families.fields import HfConfig, common_fields, common_values, number, refuse, refuse_windows
from jaxrl_sql.models.families.rope import flat_rope, read_flat_rope
from jaxrl_sql.models.spec import ModelConfig

SWITCHES: dict[str, Any] = {"qk_norm": False, "qkv_bias": True}


def read_config(hf: HfConfig) -> ModelConfig:
    """Turn a `qwen2` config.json into a ModelConfig; raises InputError naming what is missing or unsupported."""
    refuse(hf, "hidden_act", "silu")
    refuse_windows(hf)
    common = common_values(hf, is_tied=False, max_positions=32_768)
    width, heads = common["d_model"], common["n_heads"]
    return ModelConfig(
        family="qwen2",
        n_kv_heads=number(hf, "num_key_value_heads", heads),
        head_dim=width // heads,
        rope_theta=read_flat_rope(hf, 10_000.0)[0],
        **common,
        **SWITCHES,
    )


def write_config(config: ModelConfig) -> HfConfig:
    """Turn a ModelConfig into the fields of a `qwen2` config.json, which has no head size of its own."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        **common_fields(config),
        **flat_rope(config),
    }
