"""Llama 3, 3.1, 3.2 and 3.3: no biases, no norms on queries and keys, stretched rotary positions (arXiv 2407.21783)."""

from __future__ import annotations

from typing import Any

from jaxrl_sql.models.families.fields import HfConfig, common_fields, common_values, number, refuse
from jaxrl_sql.models.families.rope import flat_rope, read_flat_rope
from jaxrl_sql.models.rope import SCALINGS
from jaxrl_sql.models.spec import ModelConfig

SWITCHES: dict[str, Any] = {"qk_norm": False, "qkv_bias": False}


def read_config(hf: HfConfig) -> ModelConfig:
    """Turn a `llama` config.json into a ModelConfig; raises InputError naming what is missing or unsupported."""
    refuse(hf, "hidden_act", "silu")
    refuse(hf, "attention_bias", supported=False)
    refuse(hf, "mlp_bias", supported=False)
    common = common_values(hf, is_tied=False, max_positions=2048)
    width, heads = common["d_model"], common["n_heads"]
    theta, scaling = read_flat_rope(hf, 10_000.0, kinds=SCALINGS)
    return ModelConfig(
        family="llama",
        n_kv_heads=number(hf, "num_key_value_heads", heads),
        head_dim=number(hf, "head_dim", width // heads),
        rope_theta=theta,
        rope_scaling=scaling,
        **common,
        **SWITCHES,
    )


def write_config(config: ModelConfig) -> HfConfig:
    """Turn a ModelConfig into the fields of a `llama` config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "mlp_bias": False,
        **common_fields(config),
        **flat_rope(config),
    }
