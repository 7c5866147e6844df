"""Attention over a tree of segments: one function of a layer's levels, and four backends that compute it.

`xla` runs anywhere and does everything; `amx` is the same on CPUs with a unit for products of bfloat16. `cudnn` (NVIDIA
GPUs) and `splash` (TPUs) are fused kernels that never write the scores to memory; each takes the grouped form in the
simplest way that is exact in values and gradients, and its module says which and why. What a backend cannot do it
refuses before anything is compiled; `auto` then falls back to `xla`. Decoding, one token a row, is bound by reading its
caches: `paged` reads a prompt's once by XLA, and `paged_kernel` by kernels of its own (`rollout.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxrl_sql.models.attention import amx, cudnn, splash, xla
from jaxrl_sql.models.attention.tree import Level, Window
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import InputError

# Queries of levels attend with (levels, scale, cap of scores, window) -> what each level's queries read [B,R,T,H,Q].
TreeAttention = Callable[[Sequence[Level], float, float | None, Window | None], tuple[jax.Array, ...]]


class Backend(NamedTuple):
    """A way to compute attention, and what it says to a model it cannot serve: (config, dtype) -> the reason, or None.

    `platform` is JAX's name of the devices it runs on; None: any.
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
    """Return the backend that `name` asks for, for activations of `dtype`; a function is taken as it is.

    `auto` takes the fused backend of this platform if it serves the model, else `xla`. Raises InputError for an
    unknown name, and for a backend that this platform, dtype or model rules out, with the reason and what would do.
    """
    return name if callable(name) else for_platform(name, config, dtype, jax.default_backend())


def for_platform(name: str, config: ModelConfig, dtype: DTypeLike, platform: str) -> TreeAttention:
    """Return the backend that `name` asks for on a platform (JAX's name of it), as `choose` does on this one."""
    reasons = {other: _refusal(backend, config, jnp.dtype(dtype), platform) for other, backend in BACKENDS.items()}
    possible = [other for other, reason in reasons.items() if reason is None]
    if name == "auto":
        # What follows `xla` is quicker where it is possible, and no platform has two of them.
        return BACKENDS[possible[-1]].attend
    if name not in BACKENDS:
        raise InputError(f"model.attention={name!r} is none of auto, {', '.join(BACKENDS)}")
    if reasons[name]:
        raise InputError(f"model.attention={name}: {reasons[name]}; possible here: auto, {', '.join(possible)}")
    return BACKENDS[name].attend


def _refusal(backend: Backend, config: ModelConfig, dtype: jnp.dtype, platform: str) -> str | None:
    """Return why a backend cannot be used, the platform first."""
    if backend.platform not in {None, platform}:
        return f"it runs on {backend.platform}, and JAX's platform here is {platform}"
    return backend.refusal(config, dtype)
