"""The section `model`: the policy and its adapters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, trained beside weights that stay as they are; `rank` 0 trains the weights themselves.

    `targets`: the weights that get adapters, by name or pattern: q, k, v, o, gate, up, down, or * for all of them.
    What is added to a weight is alpha / rank times the product of its two small matrices.
    """

    rank: int = 0
    alpha: PositiveFloat = 16.0
    targets: list[str] = field(default_factory=lambda: ["*"])


@dataclass(frozen=True)
class ModelConfigSection:
    """The policy: a folder, hub name or GGUF file in `checkpoint`, or else the shape of a model made from scratch.

    `shape` names a published model's sizes (`models/shapes.py`) in place of the numbers here; `plan` takes it in place
    of a checkpoint too.

    `init` is `plain` or `copying` (attention that copies from the start, see `models/induction_init.py`). Weights are
    kept in `dtype`, activations and products are in `compute_dtype` (`same`: as weights). `remat`: what the backward
    pass computes again instead of keeping it: `none`, `full`, or all but values named as in `models/transformer.py`.
    `attention` is the backend of prompts and updates (`models/attention/`): `auto` takes the platform's own where
    it serves. `frozen` names weights, or patterns of them, that are not trained, such as `embed`, the table of tokens.
    A device keeps up to `kept_logits_mib` MiB of the logits of an update's part for its backward pass; where there are
    more, they are made in pieces, twice. Where the matrix to logits is not trained (`frozen`, adapters) none are kept,
    and each piece is made once.
    """

    checkpoint: str = ""
    shape: str = ""
    init: Annotated[str, OneOf("plain", "copying")] = "plain"
    family: Annotated[str, OneOf("gemma3_text", "llama", "qwen2", "qwen3")] = "qwen3"
    d_model: PositiveInt = 192
    n_layers: PositiveInt = 4
    n_heads: PositiveInt = 6
    n_kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 32
    d_ff: PositiveInt = 512
    max_positions: PositiveInt = 2048
    tie_embeddings: bool = True
    rope_theta: PositiveFloat = 10_000.0
    dtype: Annotated[str, OneOf("float32", "bfloat16")] = "float32"
    compute_dtype: Annotated[str, OneOf("same", "float32", "bfloat16")] = "same"
    remat: str = "none"
    attention: Annotated[str, OneOf("auto", "xla", "amx", "cudnn", "splash")] = "auto"
    frozen: list[str] = field(default_factory=list)
    kept_logits_mib: PositiveInt = 256
    lora: LoraConfig = field(default_factory=LoraConfig)
