"""Attention over a tree of segments: four backends for one function of a layer's levels.

`xla` runs on all platforms and supports all models; `amx` is the same for CPUs with a bfloat16 matrix unit. `cudnn`
(NVIDIA GPUs) and `splash` (TPUs) are fused kernels that do not write scores to memory; both are exact in values and
gradients, and their modules explain how they handle shared prompts. A backend rejects unsupported models before
compilation; `auto` then falls back to `xla`. Decoding is bound by memory reads of the KV cache: `paged` (XLA) and
`paged_kernel` (Pallas kernels) read the keys of a prompt once per group (`rollout.attention`).
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

# (levels, scale, cap of scores, window) -> attention output [B,R,T,H,Q] per level.
TreeAttention = Callable[[Sequence[TreeLevel], float, float | None, AttentionWindow | None], tuple[jax.Array, ...]]


class Backend(NamedTuple):
    """An implementation of attention.

    refusal: (config, dtype) -> why the model is not supported, or None.
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
    """Return the backend called `name` for activations of `dtype`; a function is returned as it is.

    `auto` selects the fused backend of this platform if it supports the model, else `xla`. Raises InputError for an
    unknown name, and for a backend that does not support the platform, dtype or model, with the reason and the
    alternatives.
    """
    return name if callable(name) else for_platform(name, config, dtype, jax.default_backend())


def for_platform(name: str, config: ModelConfig, dtype: DTypeLike, platform: str) -> TreeAttention:
    """Return the backend called `name` for a platform (JAX's name), as `choose` does for this machine."""
    reasons = {other: _refusal(backend, config, jnp.dtype(dtype), platform) for other, backend in BACKENDS.items()}
    possible = [other for other, reason in reasons.items() if reason is None]
    if name == "auto":
        # The other backends are faster than `xla`, and each platform has at most one.
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
