"""ModelConfigs without checkpoint files: of published models, from their `config.json`, and of new models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxrl_sql.config import ModelConfigSection
from jaxrl_sql.models.families import FAMILIES
from jaxrl_sql.models.rope import Rope
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import InputError

# Keys of `config.json` that differ between the models of a family.
COLUMNS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip

QWEN2: Mapping[str, Any] = {"model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6}
QWEN3: Mapping[str, Any] = {**QWEN2, "model_type": "qwen3", "attention_bias": False}
GEMMA3: Mapping[str, Any] = {
    "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "rope_local_base_freq": 1e4, "sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
}  # fmt: skip

# Name -> common keys of its family's `config.json`, whether embeddings are tied, and the values of COLUMNS.
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], bool, tuple[int, ...]]] = {
    "qwen2.5-coder-0.5b": (QWEN2, True, (896, 24, 14, 2, 64, 4864, 151_936, 32_768)),
    "qwen2.5-coder-1.5b": (QWEN2, True, (1536, 28, 12, 2, 128, 8960, 151_936, 32_768)),
    "qwen2.5-coder-3b": (QWEN2, True, (2048, 36, 16, 2, 128, 11_008, 151_936, 32_768)),
    "qwen2.5-coder-7b": (QWEN2, False, (3584, 28, 28, 4, 128, 18_944, 152_064, 32_768)),
    "qwen2.5-coder-14b": (QWEN2, False, (5120, 48, 40, 8, 128, 13_824, 152_064, 32_768)),
    "qwen2.5-coder-32b": (QWEN2, False, (5120, 64, 40, 8, 128, 27_648, 152_064, 32_768)),
    "qwen3-0.6b": (QWEN3, True, (1024, 28, 16, 8, 128, 3072, 151_936, 40_960)),
    "qwen3-1.7b": (QWEN3, True, (2048, 28, 16, 8, 128, 6144, 151_936, 40_960)),
    "qwen3-4b": (QWEN3, True, (2560, 36, 32, 8, 128, 9728, 151_936, 40_960)),
    "qwen3-8b": (QWEN3, False, (4096, 36, 32, 8, 128, 12_288, 151_936, 40_960)),
    "qwen3-14b": (QWEN3, False, (5120, 40, 40, 8, 128, 17_408, 151_936, 40_960)),
    "qwen3-32b": (QWEN3, False, (5120, 64, 64, 8, 128, 25_600, 151_936, 40_960)),
    "gemma-3-270m": (GEMMA3, True, (640, 18, 4, 1, 256, 2048, 262_144, 32_768)),
    "gemma-3-1b": (GEMMA3, True, (1152, 26, 4, 1, 256, 6912, 262_144, 32_768)),
}

# The hub's names of these models: the owner of each, and the endings of its pretrained and tuned variants.
_HUB = re.compile(r"(?:Qwen/(qwen.+?)(?:-instruct|-base)?|google/(gemma.+?)(?:-it|-pt)?)(?:@.*)?", re.IGNORECASE)


def name_of_hub_model(name: str) -> str:
    """Return the name in PUBLISHED of a hub model such as `Qwen/Qwen2.5-Coder-7B-Instruct`; empty if unknown."""
    match = _HUB.fullmatch(name)
    shape = (match[1] or match[2]).lower() if match else ""
    return shape if shape in PUBLISHED else ""


def published_config(name: str) -> ModelConfig:
    """Return the ModelConfig of a published model; raises InputError with the valid names for an unknown name."""
    if name not in PUBLISHED:
        raise InputError(f"model.shape={name!r} is unknown; valid are {', '.join(PUBLISHED)}")
    family_fields, is_tied, sizes = PUBLISHED[name]
    fields = dict(zip(COLUMNS, sizes, strict=True))
    return FAMILIES[family_fields["model_type"]].read({**family_fields, "tie_word_embeddings": is_tied, **fields})


def new_config(model: ModelConfigSection, vocab_size: int) -> ModelConfig:
    """Return the ModelConfig of a new model from the settings `model.*`."""
    family = FAMILIES[model.family]
    return ModelConfig(
        family=model.family,
        vocab_size=vocab_size,
        d_model=model.d_model,
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_dim,
        d_ff=model.d_ff,
        rope=Rope(model.rope_theta),
        tie_embeddings=model.tie_embeddings,
        max_positions=model.max_positions,
        sliding=family.new_sliding(model.n_layers) if family.new_sliding else None,
        **family.switches,
    )
