"""The section `model`: the policy and its adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveFloat, PositiveInt, Synonyms

REMAT_NAMES = ("query", "key", "value", "attended", "gate", "up")
"""Activations of a layer that can be stored for the backward pass (`model.remat`): queries, keys, values, the attention
output, and the gate and up projections of the MLP."""

MIN_KEPT_MIB = 256
"""The memory for logits while `model.kept_logits_mib` is 0."""


class _Remat:
    """The values of `model.remat`: `none`, `full`, or comma-separated names of `REMAT_NAMES`."""

    description = f"none | full | some of {', '.join(REMAT_NAMES)}, as in query,key"

    def find_error(self, value: str) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        unknown = [name.strip() for name in value.split(",") if name.strip() not in REMAT_NAMES]
        if value in ("none", "full") or not unknown:
            return ""
        return (
            f"={value!r}: unknown {', '.join(map(repr, unknown))}; must be none, full, or a list as in query,key, of "
            f"{', '.join(REMAT_NAMES)}"
        )


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685), trained while the weights are frozen.

    An adapter adds alpha / rank times the product of its two small matrices to a weight.
    """

    rank: Annotated[
        int,
        "Rank of the adapters; 0 trains all weights.",
        Synonyms(trl="lora_r", verl="actor_rollout_ref.model.lora_rank", note="TRL's use_peft is a rank above 0"),
    ] = 0
    alpha: Annotated[
        PositiveFloat,
        "Scale of the adapters: their product is multiplied by alpha / rank.",
        Synonyms(trl="lora_alpha", verl="actor_rollout_ref.model.lora_alpha"),
    ] = 16.0
    targets: Annotated[
        list[str],
        "Weights that get adapters, by name or pattern: q, k, v, o, gate, up, down, or * for all of them. PEFT's names "
        "such as q_proj and all-linear are accepted.",
        Synonyms(trl="lora_target_modules", verl="actor_rollout_ref.model.target_modules", note="q_proj is q"),
    ] = field(default_factory=lambda: ["*"])


@dataclass(frozen=True)
class ModelConfigSection:
    """The policy: a checkpoint, or the shape of a model initialized from scratch."""

    checkpoint: Annotated[
        str,
        "Folder, hub name or GGUF file of the model; required unless `model.init` creates one from scratch.",
        Synonyms(trl="model_name_or_path", verl="actor_rollout_ref.model.path"),
    ] = ""
    shape: Annotated[
        str,
        "Name of a published model whose sizes replace the numbers below (`models/shapes.py`). `jaxrl-sql plan` "
        "accepts it instead of a checkpoint.",
    ] = ""
    init: Annotated[
        str,
        OneOf("", "plain", "copying"),
        "Initial weights of a model from scratch, without `model.checkpoint`; with `copying`, attention heads are "
        "initialized to copy tokens (`models/induction_init.py`). If empty, a checkpoint is required.",
    ] = ""
    family: Annotated[
        str, OneOf("gemma3_text", "llama", "qwen2", "qwen3"), "Architecture of a model made from scratch."
    ] = "qwen3"
    d_model: Annotated[PositiveInt, "Width of the residual stream, for a model made from scratch."] = 192
    n_layers: Annotated[PositiveInt, "Number of layers, for a model made from scratch."] = 4
    n_heads: Annotated[PositiveInt, "Number of query heads, for a model made from scratch."] = 6
    n_kv_heads: Annotated[
        PositiveInt, "Number of key and value heads, for a model made from scratch; it divides `model.n_heads`."
    ] = 2
    head_dim: Annotated[PositiveInt, "Width of a head, for a model made from scratch; it must be even."] = 32
    d_ff: Annotated[PositiveInt, "Inner width of the feed-forward layers, for a model made from scratch."] = 512
    max_positions: Annotated[
        PositiveInt,
        "Maximum number of tokens of a prompt and its answer together, for a model made from scratch.",
        Synonyms(
            trl="vllm_max_model_length",
            verl="actor_rollout_ref.rollout.max_model_len",
            note="of a model made from scratch only",
        ),
    ] = 4096
    tie_embeddings: Annotated[
        bool, "Use one matrix for input and output embeddings, for a model made from scratch."
    ] = True
    rope_theta: Annotated[PositiveFloat, "Base of the rotary position embeddings, for a model made from scratch."] = (
        10_000.0
    )
    dtype: Annotated[
        str,
        OneOf("float32", "bfloat16"),
        "Type of the stored weights.",
        Synonyms(trl="dtype", verl="actor_rollout_ref.actor.fsdp_config.model_dtype"),
    ] = "float32"
    compute_dtype: Annotated[
        str,
        OneOf("same", "float32", "bfloat16"),
        "Type of activations and matrix products; `same` is that of the weights, and the default of `jaxrl-sql "
        "evaluate`, `ask`, `serve` and `mcp`.",
        Synonyms(trl="bf16", verl="actor_rollout_ref.actor.fsdp_config.dtype", note="TRL's bf16=true is bfloat16"),
    ] = "bfloat16"
    remat: Annotated[
        str,
        _Remat(),
        "Activations that the backward pass recomputes to save memory: `none`, `full` for all, or all except the named "
        "ones (`models/transformer.py`).",
        Synonyms(
            trl="gradient_checkpointing",
            verl="actor_rollout_ref.model.enable_gradient_checkpointing",
            note="their true is full",
        ),
    ] = "none"
    attention: Annotated[
        str,
        OneOf("auto", "xla", "amx", "cudnn", "splash"),
        "Attention backend of prompts and updates (`models/attention/`); `auto` uses the platform's backend if it "
        "supports the model.",
        Synonyms(trl="attn_implementation"),
    ] = "auto"
    frozen: Annotated[
        list[str], "Weights that are not trained, by name or pattern, such as `embed`, the token embeddings."
    ] = field(default_factory=list)
    kept_logits_mib: Annotated[
        int,
        "Memory per device, in MiB, for the logits that the backward pass uses; 0: half of the memory that is free by "
        "the estimate of the run's memory, and at least 256. If the logits need more, they are computed in chunks: "
        "twice, or once if the output matrix is not trained (`model.frozen`, adapters).",
    ] = 0
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def kept_logits(self) -> int:
        """Return `kept_logits_mib` in bytes; while it is 0, its smallest automatic value."""
        return (self.kept_logits_mib or MIN_KEPT_MIB) << 20

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        if self.frozen and self.lora.rank:
            yield (f"{name}.frozen and {name}.lora.rank: adapters freeze all weights, so {name}.frozen must be empty")
        if self.checkpoint or self.shape:
            return
        if self.n_heads % self.n_kv_heads:
            yield f"{name}.n_kv_heads={self.n_kv_heads} must divide {name}.n_heads={self.n_heads}"
        if self.head_dim % 2:
            yield f"{name}.head_dim={self.head_dim} must be even: rotary embeddings rotate pairs"
