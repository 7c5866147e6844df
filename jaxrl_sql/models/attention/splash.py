"""Attention by the splash kernels of JAX (TPUs; Pallas's interpreter for tests).

Each layer is one call with one softmax. The levels of the tree (`tree`), such as prompts and their completions, are
concatenated to one sequence per prompt: the prompt first, then all rows of its completions. A static mask lets a row
see its ancestor rows in full and itself causally. Keys are not repeated. Splash visits only tiles of the mask with
visible keys, so no time is spent on pairs of completions. The lengths of rows are dynamic and passed as segment ids:
valid keys have the id of the queries, and padding has a different id. The gradient is that of the kernels.

Packed rows (`TreeLevel.owner`) hold several answers each. There the static mask only selects the tiles, as if a row
were one answer, and the kernel computes the mask within a tile. It gets one integer per query, a code of the
query's index and its offset within its answer. The codes differ by prompt, so this module replaces them in the kernel's
mask (`q_sequence` of `mask_info`) for each prompt.

Sliding windows are not supported: the part of the prompt in a completion's window depends on the prompt's length, which
a static mask cannot express. The scale of scores is applied to the queries in their dtype. This is exact for powers of
two (head size 64), and rounds once more otherwise.

On a mesh each device gets its prompts and heads (`tree.on_mesh`). Letters of shapes are those of `tree`, and S is the
length of a concatenated sequence with its padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel, has_visible_tokens, on_mesh, valid_keys
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import InputError

# Tile sizes. A sequence uses the largest that fits eight times, so padding to a multiple adds at most an eighth.
TILES = (512, 256, 128)


def refusal(config: ModelConfig, dtype: DTypeLike) -> str | None:
    """Return why splash does not support a model with activations of `dtype`, or None."""
    if config.sliding is not None:
        return "the model has sliding windows, which depend on a prompt's length, and splash has static masks"
    if jnp.dtype(dtype).name not in {"bfloat16", "float32"}:
        return f"activations are {jnp.dtype(dtype).name}, it computes in bfloat16 or float32"
    return None


def attend_tree(
    levels: Sequence[TreeLevel],
    scale: float,
    cap: float | None,
    window: AttentionWindow | None,
    interpret: bool = False,
) -> tuple[jax.Array, ...]:
    """Attend from each level's queries to the levels above and to their own rows -> [B,R,T,H,Q] per level.

    interpret: run in Pallas's interpreter, for tests without a TPU.
    """
    assert window is None, "`refusal` rejects windows"
    return on_mesh(lambda levels, _: _attend(levels, scale, cap, interpret), levels)


def _attend(levels: tuple[TreeLevel, ...], scale: float, cap: float | None, interpret: bool) -> tuple[jax.Array, ...]:
    """Attend on one device."""
    sizes = tuple((level.q.shape[1], level.q.shape[2]) for level in levels)
    total = sum(rows * t for rows, t in sizes)
    tile = next(tile for tile in TILES if total >= 8 * tile or tile == TILES[-1])
    padding = -total % tile
    q = _concatenate([jnp.moveaxis(level.q * jnp.asarray(scale, level.q.dtype), 3, 1) for level in levels], padding)
    k, v = (
        _concatenate([jnp.swapaxes(x, 1, 2) for x in xs], padding)
        for xs in ([level.k for level in levels], [level.v for level in levels])
    )
    valid = jnp.concatenate([valid_keys(level).reshape(level.length.shape[0], -1) for level in levels], axis=1)
    valid = jnp.pad(valid, ((0, 0), (0, padding)))
    packed_mask = None if levels[-1].owner is None else PackedMask.of(sizes, q.shape[2])
    query_codes = None if packed_mask is None else packed_mask.encode(levels, q.shape[2])
    kernel = _kernel(sizes, q.shape[2], q.shape[1], tile, cap, interpret, packed_mask)
    output = _call(kernel, q, k, v, valid, query_codes)
    outputs, start = [], 0
    for i, (level, (rows, t)) in enumerate(zip(levels, sizes, strict=True)):
        level_output = output[:, :, start : start + rows * t].reshape(
            output.shape[0], output.shape[1], rows, t, output.shape[3]
        )
        has_keys = has_visible_tokens(tuple(levels[: i + 1]))[..., None, None, None]
        outputs.append(jnp.where(has_keys, jnp.moveaxis(level_output, 1, 3), 0).astype(level.q.dtype))
        start += rows * t
    return tuple(outputs)


def _concatenate(xs: Sequence[jax.Array], padding: int) -> jax.Array:
    """Concatenate levels [B,H,R,T,Q] to one sequence per prompt [B,H,S,Q], padded with zeros."""
    joined = jnp.concatenate([x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in xs], axis=2)
    return jnp.pad(joined, ((0, 0), (0, 0), (0, padding), (0, 0)))


def _call(
    kernel: Any, q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array, query_codes: jax.Array | None
) -> jax.Array:
    """Attend within concatenated sequences: q [B,H,S,Q] scaled, k, v [B,K,S,Q], valid [B,S] keys -> [B,H,S,Q].

    query_codes [B,S]: the codes of `PackedMask.encode` for packed rows, else None.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as library  # noqa: PLC0415 - imported on use

    ids = library.SegmentIds(q=jnp.ones(q.shape[2], jnp.int32), kv=valid.astype(jnp.int32))
    id_axes: Any = library.SegmentIds(q=None, kv=0)  # type: ignore[arg-type] # axes that `vmap` maps over
    if query_codes is None:
        return jax.vmap(kernel, in_axes=(0, 0, 0, id_axes))(q, k, v, ids)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, ids: Any, query_codes: jax.Array) -> jax.Array:
        infos = (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info)
        masks = (info._replace(q_sequence=query_codes) for info in infos)
        output: jax.Array = type(kernel)(*masks, **kernel.kwargs)(q, k, v, ids)
        return output

    return jax.vmap(attend, in_axes=(0, 0, 0, id_axes, 0))(q, k, v, ids, query_codes)


@dataclass(frozen=True)
class PackedMask:
    """Mask function of a tree with packed rows in its last level and one row in each level above.

    A query sees the levels above, which are its prompt, and its own answer up to itself.

    first: index, in the concatenated sequence, of the first token of the packed rows; all tokens before are the prompt
    bits: number of low bits of a query's code, which hold its offset within its answer
    """

    first: int
    bits: int

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]], length: int) -> PackedMask:
        """Return the mask of levels of `sizes` (rows, tokens per row) in a sequence of `length`.

        Raises InputError if an index and an offset need more than 32 bits, or a level above has several rows.
        """
        if any(rows > 1 for rows, _ in sizes[:-1]):
            raise InputError(
                "model.attention=splash does not support packed answers of several questions: set "
                "grpo.packing=false or grpo.questions=1"
            )
        bits = (sizes[-1][1] - 1).bit_length()
        if bits + (length - 1).bit_length() > 32:
            raise InputError(
                f"model.attention=splash: {length} tokens of a prompt and its packed answers exceed its mask with rows "
                f"of {sizes[-1][1]}: set packing=false"
            )
        return cls(sum(rows * t for rows, t in sizes[:-1]), bits)

    def encode(self, levels: tuple[TreeLevel, ...], length: int) -> jax.Array:
        """Return the code of each query, [B,length] int32.

        Its high bits are the query's index in the concatenated sequence, its low bits the offset in its answer.
        """
        last, above = levels[-1], levels[:-1]
        prompt_length = sum((level.length for level in above), jnp.zeros_like(last.length[:, :1]))  # [B,1]
        offset = (last.positions - prompt_length[..., None]).reshape(last.positions.shape[0], -1)
        offset = jnp.pad(offset, ((0, 0), (self.first, length - self.first - offset.shape[1])))
        return lax.shift_left(jnp.arange(length, dtype=jnp.int32), jnp.int32(self.bits)) | offset

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Return whether queries with these codes see keys at these indices, apart from the lengths of rows."""
        index = lax.shift_right_logical(query, jnp.int32(self.bits))
        start = index - (query & ((1 << self.bits) - 1))
        return (key <= index) & ((key < self.first) | (key >= start))


def _kernel(
    sizes: tuple[tuple[int, int], ...],
    length: int,
    heads: int,
    tile: int,
    cap: float | None,
    interpret: bool,
    packed_mask: PackedMask | None = None,
) -> Any:
    """Return the kernels for one shape of tree; splits the mask into tiles, once per trace.

    sizes: (rows, tokens per row) of each level; length: that of the concatenated sequence with padding.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as library  # noqa: PLC0415 - as above

    class TreeMask(library.Mask):
        """The tree's static mask, computed per tile, because the full mask has length · length elements."""

        def __init__(self) -> None:
            self._tree_mask = tree_mask(sizes, length)
            if packed_mask is not None:  # with these two attributes the kernel computes the mask within a tile
                self.q_sequence = np.zeros(length, np.int32)  # replaced per prompt by `_call`
                self.mask_function = packed_mask

        @property
        def shape(self) -> tuple[int, ...]:
            return length, length

        def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
            return self._tree_mask(*index)

    return library.make_splash_mha(
        library.MultiHeadMask([TreeMask()] * heads),
        block_sizes=library.BlockSizes(
            block_q=tile,
            block_kv=tile,
            block_kv_compute=tile,
            block_q_dkv=tile,
            block_kv_dkv=tile,
            block_kv_dkv_compute=tile,
            block_q_dq=tile,
            block_kv_dq=tile,
        ),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name="attended",
        attn_logits_soft_cap=cap,
        interpret=interpret,
    )


def tree_mask(sizes: Sequence[tuple[int, int]], length: int) -> Callable[[slice, slice], np.ndarray]:
    """Return the function (slice of queries, slice of keys) -> that part of the mask of a concatenated tree.

    sizes: (rows, tokens per row) of each level, in order. The padding up to `length` counts as one more level, which
    sees only itself, causally, so that no row of the mask is empty.
    """
    # Level, row in its level, and index in its row, of each position.
    level, row, token = (np.full(length, value) for value in (len(sizes), 0, 0))
    # Per level, the row of that level that each position sees (its own or an ancestor); -1: none.
    visible_row = np.full((len(sizes) + 1, length), -1)
    start = 0
    for i, (rows, t) in enumerate(sizes):
        positions = slice(start, start + rows * t)
        start += rows * t
        level[positions], row[positions], token[positions] = (
            i,
            np.repeat(np.arange(rows), t),
            np.tile(np.arange(t), rows),
        )
        for j, (ancestor_rows, _) in enumerate(sizes[: i + 1]):
            visible_row[j, positions] = row[positions] // (rows // ancestor_rows)
    visible_row[-1, start:], token[start:] = 0, np.arange(length - start)

    index = np.arange(length)

    def constant_value(query_index: np.ndarray, key_index: np.ndarray) -> bool | None:
        """Return the value of a constant tile within one row of queries and one row of keys, else None."""
        q, k = query_index[0], key_index[0]
        if any((x[[0, -1]] != x[0]).any() for index in (query_index, key_index) for x in (level[index], row[index])):
            return None
        if visible_row[level[k], q] != row[k] or (level[k] == level[q] and token[k] > token[query_index[-1]]):
            return False
        return True if level[k] < level[q] or token[key_index[-1]] <= token[q] else None

    def is_visible(queries: slice, keys: slice) -> np.ndarray:
        query_index, key_index = index[queries], index[keys]
        # Most of the thousands of tiles of a long sequence are constant.
        if (value := constant_value(query_index, key_index)) is not None:
            return np.full((len(query_index), len(key_index)), value)
        query_index, key_index = query_index[:, None], key_index[None]
        is_own_or_ancestor = visible_row[level[key_index], query_index] == row[key_index]
        return is_own_or_ancestor & ((level[key_index] < level[query_index]) | (token[key_index] <= token[query_index]))

    return is_visible
