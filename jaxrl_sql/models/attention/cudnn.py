"""Attention by cuDNN's fused kernels (NVIDIA GPUs, bfloat16 or float16), with a gradient for shared prompts.

The texts of a batch form a tree (`tree`): level 0 has the prompts, and the rows of the next level, their completions,
continue them. A level's queries attend to each ancestor level in one call and to their own rows in another. The calls
are merged by their log-sum-exp into one softmax. The queries of all rows below an ancestor's row form one sequence, so
that a prompt's keys are not repeated and cuDNN's own masks suffice: a length for an ancestor's keys, causal for the
level's own. Only sliding windows need a mask as a bias. The decoder scans its layers, so whether a layer has a window
is a traced flag, and cuDNN's own windows are static.

JAX's gradient of a call ignores the gradient of its log-sum-exp. So this module defines the gradient as in ring
attention (Liu et al., 2023, https://arxiv.org/abs/2310.01889). Each call's backward kernel gets the merged output and
log-sum-exp, and so computes with the probabilities of the whole softmax. It computes no gradient of the bias. Merged
output and log-sum-exp are saved under the name `attended`, so that rematerialization does not repeat attention.

In packed rows, which hold several answers each, the answers of a row attend to the prompt together in one call. For the
other call, in which each answer attends to itself, queries and keys are unpacked to one row per answer, and the outputs
are packed again.

On a mesh the prompts and heads are split over the devices, and each device gets all tokens of its prompts
(`tree.on_mesh`). Between layers the mesh axis `tensor` splits the tokens of activations, and the kernel rejects split
tokens.

Letters of shapes: B prompts, R rows per prompt, T tokens per row, G answers per prompt, H query heads, K key heads, Q
size of a head. Keys of an ancestor level have Rj rows of S tokens; X = (R/Rj)·T queries attend to each such row. A call
of the kernel has N = B·Rj sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from jaxrl_sql.models.attention.tree import (
    AttentionWindow,
    TreeLevel,
    has_visible_tokens,
    on_mesh,
    restrict_to_window,
    valid_keys,
)
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import Record

DTYPES = ("bfloat16", "float16")
# Name of the saved arrays for `model.remat`.
SAVED = "attended"
MASKED_SCORE = -(2.0**41)
"""Score of a masked key; cuDNN subtracts two of them, so their difference must not overflow."""
Keys = Sequence[tuple[jax.Array, jax.Array]]
"""Keys and values [B,Rj,K,S,Q] of each level."""


class AttentionMask(NamedTuple):
    """Mask of a call with N sequences of X queries and S keys.

    length [N]: the first `length` keys are visible; bias [N,1,X,S]: added to scores, 0 or MASKED_SCORE; if both are
    None: causal.
    """

    length: jax.Array | None = None
    bias: jax.Array | None = None


class PackedIndex(NamedTuple):
    """Index maps between answers and packed rows.

    row_positions [B,G,T]: for each token of an answer, its position among the R·T of its prompt's rows
    answer_positions [B,R,T]: the inverse: for each position of a row, that among the G·T of its prompt's answers
    Positions out of range mean no token.
    """

    row_positions: jax.Array
    answer_positions: jax.Array

    @classmethod
    def of(cls, level: TreeLevel) -> PackedIndex | None:
        """Return the maps for a level's rows; None if rows are not packed."""
        if level.owner is None or level.starts is None:
            return None
        b, rows, t = level.owner.shape
        owner, answers, offset = level.owner.reshape(b, -1), level.starts.shape[1], jnp.arange(t)
        length = jnp.sum(owner[:, None] == jnp.arange(answers)[:, None], axis=2)
        row_positions = jnp.where(offset < length[..., None], level.starts[..., None] + offset, rows * t)
        start = jnp.take_along_axis(level.starts, jnp.maximum(owner, 0), axis=1)
        answer_positions = jnp.where(owner < 0, answers * t, owner * t + jnp.arange(rows * t) - start)
        return cls(row_positions, answer_positions.reshape(b, rows, t))

    def unpack(self, x: jax.Array) -> jax.Array:
        """Unpack [B,R,T,*] to one row per answer [B,G,T,*], filled with 0."""
        return _gather(x, self.row_positions, 0)

    def pack(self, x: jax.Array, fill_value: float = 0) -> jax.Array:
        """Pack [B,G,T,*] into rows [B,R,T,*]; unused positions get `fill_value`."""
        return _gather(x, self.answer_positions, fill_value)

    def unpack_keys(self, x: jax.Array) -> jax.Array:
        """Unpack keys or values [B,R,K,T,Q] to one row per answer [B,G,K,T,Q]."""
        return jnp.swapaxes(self.unpack(jnp.swapaxes(x, 2, 3)), 2, 3)

    def pack_keys(self, x: jax.Array) -> jax.Array:
        """Pack keys or values [B,G,K,T,Q] into rows [B,R,K,T,Q]."""
        return jnp.swapaxes(self.pack(jnp.swapaxes(x, 2, 3)), 2, 3)


def _gather(x: jax.Array, positions: jax.Array, fill_value: float) -> jax.Array:
    """Gather tokens of [B,R,T,*] at positions [B,R',T'] among the R·T, with `fill_value` for those out of range."""
    flat = x.reshape(len(x), -1, *x.shape[3:])
    return jax.vmap(lambda x, index: x.at[index].get(mode="fill", fill_value=fill_value))(flat, positions)


class Kernel(NamedTuple):
    """Attention of queries [N,X,H,Q] to keys and values [N,S,K,Q], and its gradient.

    forward(q, k, v, mask, scale) -> (output [N,X,H,Q], log-sum-exp of scores [N,H,X] float32);
    backward(q, k, v, mask, scale, (output, log-sum-exp), output gradient) -> gradients of q, k and v. For `backward`
    the output and log-sum-exp may be those of a softmax over more keys than k.
    """

    forward: Callable[..., tuple[jax.Array, jax.Array]]
    backward: Callable[..., tuple[jax.Array, ...]]


def _operands(q: jax.Array, mask: AttentionMask, scale: float) -> tuple[list[jax.Array], Record]:
    """Return the operands after q, k and v, and the parameters, of JAX's cuDNN calls."""
    from jax._src.cudnn import fused_attention_stablehlo as fused  # noqa: PLC0415 - JAX has no public API for the gradient

    absent = jnp.zeros(0, q.dtype)
    mask_type, query_lengths, key_lengths = fused.MaskType.CAUSAL, absent, absent
    if mask.bias is not None:
        mask_type = fused.MaskType.NO_MASK
    elif mask.length is not None:
        mask_type, key_lengths = fused.MaskType.PADDING, mask.length
        query_lengths = jnp.full(q.shape[:1], q.shape[1], jnp.int32)
    bias = absent if mask.bias is None else mask.bias
    settings = {
        "scale": scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (mask.bias is not None, False),  # whether there is a bias, and a gradient of the bias
        "mask_type": mask_type,
        "layout": fused.AttentionLayout.BTNH.value,
        "sliding_window_length": None,
    }
    # The last four operands describe packed and paged layouts, which are not used here.
    return [bias, query_lengths, key_lengths, *[absent] * 4], settings


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: AttentionMask, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Call cuDNN; the `forward` of a Kernel."""
    from jax._src.cudnn import fused_attention_stablehlo as fused  # noqa: PLC0415 - as above

    (q, k, v, mask), t = _pad_to_even(q, k, v, mask), q.shape[1]
    operands, settings = _operands(q, mask, scale)
    bind = fused._dot_product_attention_fwd_p_wrapper.bind  # noqa: SLF001
    output, log_sum_exp = bind(q, k, v, *operands, **settings, is_training=True)
    return output[:, :t], log_sum_exp[:, :, :t]


def _backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    scale: float,
    outputs: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
) -> tuple[jax.Array, ...]:
    """Call cuDNN's backward kernel; the `backward` of a Kernel."""
    from jax._src.cudnn import fused_attention_stablehlo as fused  # noqa: PLC0415 - as above

    lengths = q.shape[1], k.shape[1], k.shape[1]
    padding = 0 if mask.bias is None else q.shape[1] % 2
    (q, k, v, mask) = _pad_to_even(q, k, v, mask)
    operands, settings = _operands(q, mask, scale)
    output, log_sum_exp = _pad(outputs[0], {1: padding}), _pad(outputs[1], {2: padding})
    bind = fused._dot_product_attention_bwd_p_wrapper.bind  # noqa: SLF001
    gradients = bind(q, k, v, *operands, log_sum_exp, output, _pad(gradient, {1: padding}), **settings)
    return tuple(x[:, :length] for x, length in zip(gradients, lengths, strict=True))


def _pad_to_even(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: AttentionMask
) -> tuple[jax.Array, jax.Array, jax.Array, AttentionMask]:
    """Pad odd lengths by a masked position, because cuDNN needs even lengths with a bias."""
    if mask.bias is None:
        return q, k, v, mask
    q_padding, k_padding = q.shape[1] % 2, k.shape[1] % 2
    bias = _pad(mask.bias, {2: q_padding, 3: k_padding}, MASKED_SCORE)
    return _pad(q, {1: q_padding}), _pad(k, {1: k_padding}), _pad(v, {1: k_padding}), AttentionMask(bias=bias)


def _pad(x: jax.Array, padding: dict[int, int], value: float = 0) -> jax.Array:
    """Pad the end of axes; `padding` maps an axis to its number of further elements."""
    return jnp.pad(x, [(0, padding.get(axis, 0)) for axis in range(x.ndim)], constant_values=value)


KERNEL = Kernel(_forward, _backward)


def refusal(config: ModelConfig, dtype: DTypeLike) -> str | None:
    """Return why cuDNN does not support a model with activations of `dtype`, or None.

    The limits are those of this machine's GPU. Without a GPU they are those of the newest GPUs, for which the command
    `jaxrl-sql plan` compiles programs to estimate memory.
    """
    device = jax.devices()[0]
    if device.platform != "gpu":
        return refusal_on_any_gpu(config, dtype)
    if "cuda" not in device.client.platform_version:
        return "it needs an NVIDIA GPU"
    capability = getattr(device, "compute_capability", "")
    max_head_dim = 256 if capability and int(capability.split(".")[0]) >= 9 else 128  # 9: Hopper
    return refusal_on_any_gpu(config, dtype, max_head_dim)


def refusal_on_any_gpu(config: ModelConfig, dtype: DTypeLike, max_head_dim: int = 256) -> str | None:
    """Return why no GPU with heads of up to `max_head_dim` supports a model with activations of `dtype`, or None."""
    if jnp.dtype(dtype).name not in DTYPES:
        return f"activations are {jnp.dtype(dtype).name}, it computes in {' or '.join(DTYPES)}"
    if config.head_dim % 8 or config.head_dim > max_head_dim:
        return f"head_dim is {config.head_dim}, it takes multiples of 8 up to {max_head_dim} on this GPU"
    if config.attn_score_cap is not None:
        return "it does not support soft caps of attention scores"
    return None


def attend_tree(
    levels: Sequence[TreeLevel],
    scale: float,
    cap: float | None,
    window: AttentionWindow | None,
    kernel: Kernel = KERNEL,
) -> tuple[jax.Array, ...]:
    """Attend from each level's queries to the levels above and to their own rows -> [B,R,T,H,Q] per level.

    `kernel`: cuDNN's, or a substitute for tests without a GPU.
    """
    assert cap is None, "`refusal` rejects caps"

    def attend(levels: tuple[TreeLevel, ...], window: AttentionWindow | None) -> tuple[jax.Array, ...]:
        return tuple(_attend(levels[: i + 1], scale, window, kernel) for i in range(len(levels)))

    return on_mesh(attend, levels, window)


def _attend(levels: tuple[TreeLevel, ...], scale: float, window: AttentionWindow | None, kernel: Kernel) -> jax.Array:
    """Attend from the last level to all levels."""
    last, packing = levels[-1], PackedIndex.of(levels[-1])
    keys = [(level.k, level.v) for level in levels]
    masks = [_mask_for(level, last, window) for level in levels[:-1]]
    if packing is None:
        masks.append(_mask_for(last, last, window))
    else:
        unpacked = _unpack_level(last, packing)
        masks.append(_mask_for(unpacked, unpacked, window))
    output = _attend_merged(kernel, scale, last.q, keys, masks, packing)
    return jnp.where(has_visible_tokens(levels)[..., None, None, None], output, 0)


def _mask_for(keys: TreeLevel, queries: TreeLevel, window: AttentionWindow | None) -> AttentionMask:
    """Return the mask of a level's keys for the queries of another level or of its own."""
    is_own = keys is queries
    if window is None:
        return AttentionMask() if is_own else AttentionMask(length=keys.length.reshape(-1))
    b, rows, t = queries.q.shape[:3]
    part_rows, s = keys.k.shape[1], keys.k.shape[3]
    visible = valid_keys(keys)[:, :, None]
    if is_own:
        visible &= jnp.tril(jnp.ones((t, t), bool))
    visible = restrict_to_window(window, visible, keys.positions, queries.positions)
    visible = jnp.broadcast_to(visible, (b, part_rows, rows // part_rows * t, s)).reshape(b * part_rows, 1, -1, s)
    return AttentionMask(bias=jnp.where(visible, 0, MASKED_SCORE).astype(queries.q.dtype))


def _unpack_level(level: TreeLevel, packing: PackedIndex) -> TreeLevel:
    """Unpack a level to one row per answer.

    Every row gets the full length, because the causal mask already hides the padding after an answer. Positions start
    at 0 in each answer: only their differences matter, for a window.
    """
    k, v = packing.unpack_keys(level.k), packing.unpack_keys(level.v)
    b, answers, _, t, _ = k.shape
    positions = jnp.broadcast_to(jnp.arange(t), (b, answers, t))
    return TreeLevel(packing.unpack(level.q), k, v, jnp.full((b, answers), t), positions)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend_merged(
    kernel: Kernel,
    scale: float,
    q: jax.Array,
    keys: Keys,
    masks: list[AttentionMask],
    packing: PackedIndex | None = None,
) -> jax.Array:
    """Attend from q [B,R,T,H,Q] to the keys of all levels with one softmax -> [B,R,T,H,Q].

    masks: the mask of each level's keys. packing: the index maps of packed rows, for the last level's queries and keys.
    """
    return _attend_merged_forward(kernel, scale, q, keys, masks, packing)[0]


def _attend_merged_forward(
    kernel: Kernel, scale: float, q: jax.Array, keys: Keys, masks: list[AttentionMask], packing: PackedIndex | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    outputs, log_sums = [], []  # of each call, in packed rows: [B,R,T,H,Q] and [B,R,T,H]
    for (k, v), mask, call_packing in _calls(keys, masks, packing):
        queries = q if call_packing is None else call_packing.unpack(q)
        output, log_sum = kernel.forward(_fold_queries(queries, k), _kernel_layout(k), _kernel_layout(v), mask, scale)
        output = _where_keys(mask, output, 0).reshape(queries.shape)
        log_sum = _where_keys(mask, jnp.swapaxes(log_sum, 1, 2), -jnp.inf).reshape(queries.shape[:-1])
        outputs.append(output if call_packing is None else call_packing.pack(output))
        log_sums.append(log_sum if call_packing is None else call_packing.pack(log_sum, -jnp.inf))
    # The maximum is for unused positions, which see no key: it replaces -inf, which would yield NaN.
    merged_log_sum = jnp.maximum(jax.nn.logsumexp(jnp.stack(log_sums), axis=0), MASKED_SCORE)
    weighted = (
        jnp.exp(log_sum - merged_log_sum)[..., None] * output for log_sum, output in zip(log_sums, outputs, strict=True)
    )
    merged = sum(weighted, jnp.zeros(q.shape, jnp.float32)).astype(q.dtype)
    merged, merged_log_sum = checkpoint_name(merged, SAVED), checkpoint_name(merged_log_sum, SAVED)
    return merged, (q, keys, masks, packing, merged, merged_log_sum)


def _attend_merged_backward(
    kernel: Kernel, scale: float, residuals: tuple[Any, ...], gradient: jax.Array
) -> tuple[Any, ...]:
    q, keys, masks, packing, merged, merged_log_sum = residuals
    q_gradient, kv_gradients = jnp.zeros(q.shape, jnp.float32), []
    for (k, v), mask, call_packing in _calls(keys, masks, packing):
        arrays = (q, merged, merged_log_sum, gradient)
        queries, output, log_sum, g = arrays if call_packing is None else tuple(call_packing.unpack(x) for x in arrays)
        outputs = _fold_queries(output, k), jnp.swapaxes(_fold_queries(log_sum, k), 1, 2)
        gradients = kernel.backward(
            _fold_queries(queries, k), _kernel_layout(k), _kernel_layout(v), mask, scale, outputs, _fold_queries(g, k)
        )
        call_q_gradient, *call_kv_gradients = (_where_keys(mask, x, 0) for x in gradients)
        call_q_gradient = call_q_gradient.reshape(queries.shape)
        call_kv_gradients = [jnp.swapaxes(x, 1, 2).reshape(k.shape) for x in call_kv_gradients]
        q_gradient += call_q_gradient if call_packing is None else call_packing.pack(call_q_gradient)
        kv_gradients.append(tuple(x if call_packing is None else call_packing.pack_keys(x) for x in call_kv_gradients))
    return q_gradient.astype(q.dtype), kv_gradients, None, None


_attend_merged.defvjp(_attend_merged_forward, _attend_merged_backward)


def _calls(
    keys: Keys, masks: Sequence[AttentionMask], packing: PackedIndex | None
) -> Iterator[tuple[tuple[jax.Array, jax.Array], AttentionMask, PackedIndex | None]]:
    """Yield for each call its keys and values, its mask, and the index maps to unpack its queries.

    The maps are None for calls to ancestor levels, whose queries stay in packed rows.
    """
    *above, (k, v) = keys
    yield from ((level_keys, mask, None) for level_keys, mask in zip(above, masks, strict=False))
    yield (k, v) if packing is None else (packing.unpack_keys(k), packing.unpack_keys(v)), masks[-1], packing


def _fold_queries(x: jax.Array, k: jax.Array) -> jax.Array:
    """Join the rows [B,R,T,*] that attend to one row of keys [B,Rj,K,S,Q] to one sequence of queries [B·Rj,X,*]."""
    part_rows = k.shape[1]
    return x.reshape(x.shape[0] * part_rows, x.shape[1] // part_rows * x.shape[2], *x.shape[3:])


def _kernel_layout(x: jax.Array) -> jax.Array:
    """Transpose keys or values [B,Rj,K,S,Q] to the kernel's layout [B·Rj,S,K,Q]."""
    return jnp.swapaxes(x.reshape(-1, *x.shape[2:]), 1, 2)


def _where_keys(mask: AttentionMask, x: jax.Array, fill_value: float) -> jax.Array:
    """Return x [N,*] with `fill_value` for sequences without keys, whose results the kernel leaves undefined."""
    return x if mask.length is None else jnp.where((mask.length > 0).reshape(-1, *[1] * (x.ndim - 1)), x, fill_value)
