"""Optimizers: AdamW or Adafactor with gradient norm clipping, a schedule and decoupled weight decay.

Moments in bfloat16 halve the memory of AdamW's state; updates are rounded stochastically
(`models.ops.stochastic_rounding`).
"""

from __future__ import annotations

from typing import Any

import optax

from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models.ops.stochastic_rounding import in_bfloat16, in_float32


def make_schedule(cfg: OptimConfig, steps: int) -> optax.Schedule:
    """Return the learning rate schedule of `steps` updates.

    It has three phases: `cfg.flat_steps` at the first rate of the warm-up, a linear warm-up to the peak `cfg.lr`, and
    `cfg.schedule` for the remaining steps.
    """
    warmup_end = cfg.flat_steps + cfg.warmup_steps
    decay_steps = max(steps - warmup_end, 1)
    final_lr = cfg.lr * cfg.final_lr_ratio
    schedules = {
        "constant": optax.constant_schedule(cfg.lr),
        "cosine": optax.cosine_decay_schedule(cfg.lr, decay_steps, alpha=cfg.final_lr_ratio),
        "linear": optax.linear_schedule(cfg.lr, final_lr, decay_steps),
    }
    # By default (`warmup_from` 0) the first rate is the increase per step, because a rate of 0 would waste a step.
    first_lr = cfg.lr * cfg.warmup_from or cfg.lr / max(cfg.warmup_steps, 1)
    warmup = optax.linear_schedule(first_lr, cfg.lr, cfg.warmup_steps)
    phases = [optax.constant_schedule(first_lr), warmup, schedules[cfg.schedule]]
    return optax.join_schedules(phases, [cfg.flat_steps, warmup_end])


def make_optimizer(cfg: OptimConfig, steps: int, decay_mask: Any = None) -> optax.GradientTransformation:
    """Return the optimizer for `steps` updates. Its gradients are those of the mean loss of a batch.

    `decay_mask`: the weights with weight decay, as a tree of booleans like the parameters or a function from parameters
    to such a tree; None: all. AdamW and Adafactor both subtract lr · weight_decay · weight per update (Loshchilov and
    Hutter 2019, arXiv:1711.05101).
    """
    if cfg.kind == "adafactor":
        # Adafactor's scaling by the size of a parameter is omitted, so `lr` is the typical change of an element per
        # update, as for Adam.
        scale = optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
    else:
        scale = optax.scale_by_adam(b1=cfg.beta1, b2=cfg.beta2, eps=cfg.eps)
        scale = in_bfloat16(scale) if cfg.moments == "bfloat16" else in_float32(scale)
    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        scale,
        optax.add_decayed_weights(cfg.weight_decay, decay_mask),
        optax.scale_by_learning_rate(make_schedule(cfg, steps)),
    )
