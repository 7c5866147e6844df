"""The optimizers: AdamW or Adafactor, with a clipped global gradient norm, a schedule and decoupled weight decay.

Moments may be kept in bfloat16, which halves what AdamW holds beside the weights (`models/ops/stochastic_rounding.py`).
"""

from __future__ import annotations

from typing import Any

import optax

from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models.ops.stochastic_rounding import in_bfloat16, in_float32


def make_schedule(cfg: OptimConfig, steps: int) -> optax.Schedule:
    """Return the rate of each of `steps` updates: flat, a linear warm-up, then the schedule that was named."""
    begun = cfg.flat_steps + cfg.warmup_steps
    after = max(steps - begun, 1)
    final = cfg.lr * cfg.final_lr_ratio
    tails = {
        "constant": optax.constant_schedule(cfg.lr),
        "cosine": optax.cosine_decay_schedule(cfg.lr, after, alpha=cfg.final_lr_ratio),
        "linear": optax.linear_schedule(cfg.lr, final, after),
    }
    low = cfg.lr * cfg.warmup_from or cfg.lr / max(cfg.warmup_steps, 1)
    warmup = optax.linear_schedule(low, cfg.lr, cfg.warmup_steps)
    parts = [optax.constant_schedule(low), warmup, tails[cfg.schedule]]
    return optax.join_schedules(parts, [cfg.flat_steps, begun])


def make_optimizer(cfg: OptimConfig, steps: int, decayed: Any = None) -> optax.GradientTransformation:
    """Return the optimizer over `steps` updates; the caller feeds gradients of the mean loss.

    `decayed`: a tree of booleans like the parameters, or a function from them to one, that says where weight decay
    applies; None: everywhere. A decayed weight loses lr · weight_decay of itself an update, whichever the optimizer
    (Loshchilov and Hutter 2019, arXiv:1711.05101).
    """
    if cfg.kind == "adafactor":
        # Without its scaling by the size of the weights, `lr` means what it means for Adam: an element's usual step.
        scale = optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
    else:
        scale = optax.scale_by_adam(b1=cfg.beta1, b2=cfg.beta2, eps=cfg.eps)
        scale = in_bfloat16(scale) if cfg.moments == "bfloat16" else in_float32(scale)
    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        scale,
        optax.add_decayed_weights(cfg.weight_decay, decayed),
        optax.scale_by_learning_rate(make_schedule(cfg, steps)),
    )
