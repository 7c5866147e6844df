"""Attention over a tree of segments: four backends for one function of a layer's levels.

A prompt is stored once, and its completions attend to it. So the texts of a batch form a tree, whose levels are, for
example, prompts and completions (`tree.TreeLevel`). `xla` runs on all platforms and supports all models; `amx` is the
same for CPUs with a bfloat16 matrix unit. `cudnn` (NVIDIA GPUs) and `splash` (TPUs) are fused kernels that do not write
scores to memory. Both are exact in values and gradients, and their modules explain how they handle shared prompts. A
backend rejects unsupported models before compilation; `auto` then falls back to `xla`.

Decoding is separate, because it is bound by memory reads of the KV cache. `paged` (XLA) and `paged_kernel` (Pallas
kernels) read the keys of a prompt once for all its completions (setting `rollout.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxrl_sql.models.attention import amx, cudnn, splash, xla
from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import InputError

# (levels, factor of scores, soft cap of scores or None, sliding window or None) -> attention output [B,R,T,H,Q] per
# level.
TreeAttention = Callable[[Sequence[TreeLevel], float, float | None, AttentionWindow | None], tuple[jax.Array, ...]]


class Backend(NamedTuple):
    """An implementation of attention.

    attend: the function that computes it.
    refusal: (config, dtype of activations) -> why the model is not supported, or None.
    platform: JAX's name of the platform that it needs; None: any.
    """

    attend: TreeAttention
    refusal: Callable[[ModelConfig, Any], str | None]
    platform: str | None


BACKENDS: Mapping[str, Backend] = {
    "xla": Backend(xla.attend_tree, lambda _config, _dtype: None, None),
    "amx": Backend(amx.attend_tree, amx.refusal, "cpu"),
    "cudnn": Backend(cudnn.attend_tree, cudnn.refusal, "gpu"),
    "splash": Backend(splash.attend_tree, splash.refusal, "tpu"),
}


def choose(name: str | TreeAttention, config: ModelConfig, dtype: DTypeLike) -> TreeAttention:
    """Return the attention function of the backend called `name`; a function is returned unchanged.

    dtype: of the activations. `auto` selects the fused backend of this platform if it supports the model, else `xla`.
    Raises InputError for an unknown name, and for a backend that does not support the platform, dtype or model; the
    message has the reason and the alternatives.
    """
    return name if callable(name) else for_platform(name, config, dtype, jax.default_backend())


def for_platform(name: str, config: ModelConfig, dtype: DTypeLike, platform: str) -> TreeAttention:
    """Return the backend called `name` for a platform (JAX's name), as `choose` does for this machine."""
    reasons = {other: _refusal(backend, config, jnp.dtype(dtype), platform) for other, backend in BACKENDS.items()}
    possible = [other for other, reason in reasons.items() if reason is None]
    if name == "auto":
        # `xla` is first and always possible. Each platform has at most one other backend, which is faster.
        return BACKENDS[possible[-1]].attend
    if name not in BACKENDS:
        raise InputError(f"model.attention={name!r} is unknown; valid are auto, {', '.join(BACKENDS)}")
    if reasons[name]:
        raise InputError(f"model.attention={name}: {reasons[name]}; possible here: auto, {', '.join(possible)}")
    return BACKENDS[name].attend


def _refusal(backend: Backend, config: ModelConfig, dtype: jnp.dtype, platform: str) -> str | None:
    """Return why a backend cannot be used, or None; the platform is checked first."""
    if backend.platform not in {None, platform}:
        return f"it runs on {backend.platform}, and JAX's platform here is {platform}"
    return backend.refusal(config, dtype)
