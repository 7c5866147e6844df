"""The sections `sft.optim` and `grpo.optim`: the optimizer and its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveFloat


@dataclass(frozen=True)
class OptimConfig:
    """AdamW or Adafactor with a warm-up and a `constant`, `cosine` or `linear` schedule after it; `lr` is the peak.

    The rate stays at `warmup_from` times the peak for `flat_steps` before the warm-up (0: that of its first step).
    `moments` is the type that AdamW's are kept in. Norms and biases do not decay. Adafactor (Shazeer and Stern 2018,
    arXiv:1804.04235) keeps no first moment and factors the second; betas and eps are not for it.
    """

    kind: Annotated[str, OneOf("adamw", "adafactor")] = "adamw"
    moments: Annotated[str, OneOf("float32", "bfloat16")] = "float32"
    lr: PositiveFloat = 1e-3
    schedule: Annotated[str, OneOf("constant", "cosine", "linear")] = "cosine"
    warmup_steps: int = 50
    final_lr_ratio: float = 0.1
    flat_steps: int = 0
    warmup_from: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: PositiveFloat = 1.0
