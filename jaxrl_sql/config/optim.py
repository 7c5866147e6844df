"""The sections `sft.optim` and `grpo.optim`: the optimizer and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import AtLeast, OneOf, PositiveFloat, Synonyms

_ACTOR = "actor_rollout_ref.actor.optim"


@dataclass(frozen=True)
class OptimConfig:
    """An optimizer with a warm-up and a schedule after it, without weight decay for norms and biases.

    Adafactor (Shazeer and Stern 2018, arXiv:1804.04235) has no first moment and factors the second, so that `moments`,
    the betas and `eps` apply to AdamW only.
    """

    kind: Annotated[
        str,
        OneOf("adamw", "adafactor"),
        "Optimizer: AdamW, or Adafactor, which needs less memory.",
        Synonyms(trl="optim", verl=f"{_ACTOR}.optimizer"),
    ] = "adamw"
    moments: Annotated[str, OneOf("float32", "bfloat16"), "Type of AdamW's stored moments."] = "float32"
    lr: Annotated[
        PositiveFloat,
        "Peak learning rate. If it is not set, adapters (`model.lora.rank`) are trained at ten times the default.",
        Synonyms(trl="learning_rate", verl=f"{_ACTOR}.lr"),
    ] = 1e-6
    schedule: Annotated[
        str,
        OneOf("constant", "cosine", "linear"),
        "Learning rate schedule after the warm-up.",
        Synonyms(
            trl="lr_scheduler_type", verl=f"{_ACTOR}.lr_scheduler_type", note="TRL's constant_with_warmup is constant"
        ),
    ] = "cosine"
    warmup_steps: Annotated[
        int,
        "Number of steps over which the rate rises to its peak; 0 starts at the peak.",
        Synonyms(trl="warmup_steps", verl=f"{_ACTOR}.lr_warmup_steps", note="TRL reads a value below 1 as a share"),
    ] = 50
    final_lr_ratio: Annotated[
        float,
        "Rate at the end of a cosine or linear schedule, as a share of the peak.",
        Synonyms(verl=f"{_ACTOR}.min_lr_ratio"),
    ] = 0.1
    flat_steps: Annotated[int, "Number of steps before the warm-up, at its first rate."] = 0
    warmup_from: Annotated[
        float, "Rate at the start of the warm-up, as a share of the peak; 0 is the rate of its first step."
    ] = 0.0
    beta1: Annotated[
        float,
        AtLeast(0, below=1),
        "Decay of AdamW's first moment per step.",
        Synonyms(trl="adam_beta1", verl=f"{_ACTOR}.betas", note="the first of verl's two"),
    ] = 0.9
    beta2: Annotated[
        float,
        AtLeast(0, below=1),
        "Decay of AdamW's second moment per step.",
        Synonyms(trl="adam_beta2", verl=f"{_ACTOR}.betas", note="the second of verl's two"),
    ] = 0.999
    eps: Annotated[
        PositiveFloat, "Number added to the root of AdamW's second moment.", Synonyms(trl="adam_epsilon")
    ] = 1e-8
    weight_decay: Annotated[
        float,
        "Decoupled weight decay; norms and biases do not decay.",
        Synonyms(trl="weight_decay", verl=f"{_ACTOR}.weight_decay"),
    ] = 0.0
    max_grad_norm: Annotated[
        PositiveFloat,
        "Maximum norm of the gradient of an update; larger gradients are scaled down to it.",
        Synonyms(trl="max_grad_norm", verl="actor_rollout_ref.actor.grad_clip"),
    ] = 1.0

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        if self.kind != "adamw" and self.moments != "float32":
            yield f"{name}.moments={self.moments} requires adamw: adafactor's moments are small already"
