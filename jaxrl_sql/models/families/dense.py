"""Families with identical layers: Qwen2.5, Qwen3 and Llama 3, as a table of their differences.

Llama 3 to 3.3 (arXiv 2407.21783) scale rotary frequencies. Qwen2.5 (arXiv 2412.15115) has biases on queries, keys and
values, and no setting for the head size. Qwen3 (arXiv 2505.09388) normalizes queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_sql.models.families.fields import (
    Family,
    HfConfig,
    common_fields,
    common_values,
    read_count,
    require_no_windows,
    require_value,
)
from jaxrl_sql.models.families.rope import flat_rope, read_flat_rope
from jaxrl_sql.models.rope import SCALINGS
from jaxrl_sql.models.spec import ModelConfig, Norms
from jaxrl_sql.types import Fields


class Dense(NamedTuple):
    """The properties of a family.

    model_type, architecture: its names in config.json (`model_type`, `architectures`).
    switches: fields of ModelConfig that all its models share; norms.eps is a default.
    fixed: fields of config.json with their only supported value: it is written, and other values are rejected.
    max_positions: default of max_position_embeddings.
    head_dim: default of the field `head_dim`; 0: d_model / n_heads.
    has_head_dim: whether the field `head_dim` is read and written.
    scalings: supported kinds of rope scaling.
    """

    model_type: str
    architecture: str
    switches: Fields
    fixed: Fields
    max_positions: int
    head_dim: int = 0
    has_head_dim: bool = True
    scalings: Sequence[str] = ()

    def read_config(self, hf: HfConfig) -> ModelConfig:
        """Convert a config.json to a ModelConfig; raises InputError with a missing or unsupported field."""
        for name, value in self.fixed.items():
            if name != "use_sliding_window":
                require_value(hf, name, value)
        if "use_sliding_window" in self.fixed:
            # The field may be true although no layer has a window, according to `layer_types`.
            require_no_windows(hf)
        common = common_values(hf, self.switches, is_tied=False, max_positions=self.max_positions)
        head_dim = self.head_dim or common["d_model"] // common["n_heads"]
        return ModelConfig(
            family=self.model_type,
            n_kv_heads=read_count(hf, "num_key_value_heads", common["n_heads"]),
            head_dim=read_count(hf, "head_dim", head_dim) if self.has_head_dim else head_dim,
            rope=read_flat_rope(hf, 10_000.0, kinds=self.scalings),
            **common,
        )

    def write_config(self, config: ModelConfig) -> HfConfig:
        """Convert a ModelConfig to the fields of a config.json."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **({"head_dim": config.head_dim} if self.has_head_dim else {}),
            **self.fixed,
            **common_fields(config),
            **flat_rope(config),
        }

    def family(self) -> Family:
        """Return the Family of these properties."""
        return Family(self.read_config, self.write_config, self.switches)


_SILU, _NO_BIAS, _NO_WINDOW = {"hidden_act": "silu"}, {"attention_bias": False}, {"use_sliding_window": False}

LLAMA = Dense(
    "llama",
    "LlamaForCausalLM",
    {"norms": Norms(), "qk_norm": False, "qkv_bias": False},
    {**_SILU, **_NO_BIAS, "mlp_bias": False},
    2048,
    scalings=SCALINGS,
)
QWEN2 = Dense(
    "qwen2",
    "Qwen2ForCausalLM",
    {"norms": Norms(), "qk_norm": False, "qkv_bias": True},
    {**_SILU, **_NO_WINDOW},
    32_768,
    has_head_dim=False,
)
QWEN3 = Dense(
    "qwen3",
    "Qwen3ForCausalLM",
    {"norms": Norms(), "qk_norm": True, "qkv_bias": False},
    {**_SILU, **_NO_BIAS, **_NO_WINDOW},
    32_768,
    head_dim=128,
)
