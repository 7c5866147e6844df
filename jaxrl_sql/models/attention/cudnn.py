"""Attention by cuDNN's fused kernels, through `jax.nn.dot_product_attention` (NVIDIA GPUs, bfloat16 or float16).

The grouped form is exact because each level is one call with one softmax: a level's rows become the batch, and the
keys of a row are its ancestors' followed by its own. An ancestor's keys and values are repeated for this call alone
(projections and MLPs, the bulk, stay shared), and differentiation adds the copies' gradients up again. A row's own
causal triangle stands to the right of ancestors of any valid length, which cuDNN's own masks (causal from the left,
lengths) cannot say, so such a level carries a boolean mask; the first level, the prompt, is plainly causal and needs
none. The mask also carries sliding windows, whose flag the scan traces. What this costs beside a kernel that knew the
tree: G copies of a prompt's keys while a layer is computed, and tiles of the mask that are read though nothing there
is seen. (Two calls merged by their log-sum-exp would need neither, but JAX drops that number's gradient.)

On a mesh each device gets its prompts and heads (`tree.on_mesh`): the kernel refuses tokens that are split, as they are
between layers.

JAX takes even lengths only where there is a gradient, so odd ones are padded by one position that no query sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_sql.models.attention.tree import Level, Window, narrow, on_mesh, reads_anything, valid_keys
from jaxrl_sql.models.spec import ModelConfig

DTYPES = ("bfloat16", "float16")
Kernel = Callable[..., jax.Array]
KERNEL: Kernel = partial(jax.nn.dot_product_attention, implementation="cudnn")


def refusal(config: ModelConfig, dtype: Any) -> str | None:
    """Return why cuDNN cannot serve a model with activations of `dtype` on a GPU; None: it can.

    The GPU is this machine's; where that has none it is one of those that programs are compiled for ahead of time.
    """
    device = jax.devices()[0]
    if device.platform != "gpu":
        return cannot(config, dtype)
    if "cuda" not in device.client.platform_version:
        return "it needs an NVIDIA GPU"
    capability = getattr(device, "compute_capability", "")
    largest = 256 if capability and int(capability.split(".")[0]) >= 9 else 128
    return cannot(config, dtype, largest)


def cannot(config: ModelConfig, dtype: Any, largest: int = 256) -> str | None:
    """Return what of a model or of activations of `dtype` cuDNN cannot do, on any GPU; heads up to `largest`."""
    if jnp.dtype(dtype).name not in DTYPES:
        return f"activations are {jnp.dtype(dtype).name}, it computes in {' or '.join(DTYPES)}"
    if config.head_dim % 8 or config.head_dim > largest:
        return f"head_dim is {config.head_dim}, it takes multiples of 8 up to {largest} on this GPU"
    if config.attn_score_cap is not None:
        return "the model caps attention scores softly, which it cannot"
    return None


def attend_tree(
    levels: Sequence[Level], scale: float, cap: float | None, window: Window | None, kernel: Kernel = KERNEL
) -> tuple[jax.Array, ...]:
    """Let every level's queries attend to the levels above and to their own rows -> [B,R,T,H,Q] a level.

    `kernel`: another with the arguments of JAX's, for tests of this arrangement where there is no GPU.
    """
    assert cap is None, "`refusal` comes first"

    def attend(levels: tuple[Level, ...], window: Window | None) -> tuple[jax.Array, ...]:
        return tuple(_attend(levels[: i + 1], scale, window, kernel) for i in range(len(levels)))

    return on_mesh(attend, levels, window)


def _attend(levels: tuple[Level, ...], scale: float, window: Window | None, kernel: Kernel) -> jax.Array:
    """Let the last level attend to all."""
    own = levels[-1]
    b, rows, t, h, size = own.q.shape
    q = own.q.reshape(b * rows, t, h, size)
    pairs = [(level.k, level.v) for level in levels]
    k, v = (jnp.concatenate([_as_rows(x, rows) for x in parts], axis=1) for parts in zip(*pairs, strict=True))
    call = partial(kernel, *(_even(x, (1,)) for x in (q, k, v)))
    if len(levels) == 1 and window is None:
        read = call(scale=scale, is_causal=True)
    else:
        mask = jnp.concatenate([_mask(level, own, window) for level in levels], axis=-1)
        read = call(scale=scale, mask=_even(mask.reshape(b * rows, 1, t, -1), (2, 3)))
    return jnp.where(reads_anything(levels)[..., None, None, None], read[:, :t].reshape(own.q.shape), 0)


def _as_rows(x: jax.Array, rows: int) -> jax.Array:
    """Lay keys or values [B,Rj,K,S,Q] out for each of `rows` rows: [B·R,S,K,Q]."""
    b, part_rows, k, s, size = x.shape
    each = jnp.repeat(jnp.swapaxes(x, 2, 3), rows // part_rows, axis=1)
    return each.reshape(b * rows, s, k, size)


def _mask(keys: Level, own: Level, window: Window | None) -> jax.Array:
    """Return which keys of a level each query of `own` sees, [B,R,T,S] bool."""
    rows, t = own.q.shape[1:3]
    ratio = rows // keys.q.shape[1]
    seen = jnp.repeat(valid_keys(keys), ratio, axis=1)[:, :, None]
    if keys is own:
        seen &= jnp.tril(jnp.ones((t, t), bool))
    seen = narrow(window, seen, jnp.repeat(keys.positions, ratio, axis=1), own.positions)
    return jnp.broadcast_to(seen, (seen.shape[0], rows, t, seen.shape[-1]))


def _even(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Pad axes of odd size by one, with zeros or False."""
    width = [(0, size % 2 if axis in axes else 0) for axis, size in enumerate(x.shape)]
    return jnp.pad(x, width) if any(after for _, after in width) else x
