"""Qwen2 and Qwen2.5 (Coder too): biases on queries, keys and values, no norms on them (arXiv 2412.15115)."""

from __future__ import annotations

from typing import Any

from jaxrl_sql.models.families.fields import HfConfig, common_fields, number, refuse, refuse_windows
from jaxrl_sql.models.families.rope import flat_rope, read_flat_rope
from jaxrl_sql.models.spec import ModelConfig

SWITCHES: dict[str, Any] = {"qk_norm": False, "qkv_bias": True}


def read_config(hf: HfConfig) -> ModelConfig:
    """Turn a `qwen2` config.json into a ModelConfig; raises InputError naming what is missing or unsupported."""
    refuse(hf, "hidden_act", "silu")
    refuse_windows(hf)
    width, heads = number(hf, "hidden_size"), number(hf, "num_attention_heads")
    return ModelConfig(
        family="qwen2",
        vocab_size=number(hf, "vocab_size"),
        d_model=width,
        n_layers=number(hf, "num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=number(hf, "num_key_value_heads", heads),
        head_dim=width // heads,
        d_ff=number(hf, "intermediate_size"),
        rope_theta=read_flat_rope(hf, 10_000.0)[0],
        norm_eps=number(hf, "rms_norm_eps", 1e-6),
        tie_embeddings=bool(hf.get("tie_word_embeddings", False)),
        max_positions=number(hf, "max_position_embeddings", 32_768),
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
