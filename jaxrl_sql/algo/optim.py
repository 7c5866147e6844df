"""The optimizer: AdamW with a clipped global gradient norm and a schedule, from optax."""

from __future__ import annotations

import optax

from jaxrl_sql.config import OptimConfig


def make_schedule(cfg: OptimConfig, steps: int) -> optax.Schedule:
    """Return the learning rate of each of `steps` updates: a linear warm-up, then the schedule that was named."""
    after = max(steps - cfg.warmup_steps, 1)
    final = cfg.lr * cfg.final_lr_ratio
    tails = {
        "constant": optax.constant_schedule(cfg.lr),
        "cosine": optax.cosine_decay_schedule(cfg.lr, after, alpha=cfg.final_lr_ratio),
        "linear": optax.linear_schedule(cfg.lr, final, after),
    }
    warmup = optax.linear_schedule(cfg.lr / max(cfg.warmup_steps, 1), cfg.lr, cfg.warmup_steps)
    return optax.join_schedules([warmup, tails[cfg.schedule]], [cfg.warmup_steps])


def make_optimizer(cfg: OptimConfig, steps: int) -> optax.GradientTransformation:
    """Return AdamW over `steps` updates; the caller feeds gradients of the mean loss."""
    adamw = optax.adamw(
        make_schedule(cfg, steps), b1=cfg.beta1, b2=cfg.beta2, eps=cfg.eps, weight_decay=cfg.weight_decay
    )
    return optax.chain(optax.clip_by_global_norm(cfg.max_grad_norm), adamw)
