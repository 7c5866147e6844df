"""The decoder: one function of a layer, run over a tree of blocks.

A `Block` holds R rows of T tokens for each of B prompts. Blocks come in a list, each later one a finer level of a
tree: a prompt is a block of R = 1, its completions one of R = G; a schema, its questions and their answers would be
three. A row sees all valid tokens of its ancestor rows and its own tokens causally, and its positions go on where
its ancestors end. So a prompt runs once, forward and backward, however many completions hang below it.

Layers differ in one thing only, whether they see a sliding window (which has a rotary base of its own): the scan
carries that as a flag a layer, and where a config has no such layers nothing of it is computed.

Masks and positions come from lengths, never from token values. Everything here is a pure function of its
arguments; `compute_dtype` (default: the parameters' own) is the dtype of activations and matrix products, while
norms, scores and softmax are in float32 always.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxrl_sql.batch import PyTree, Segment
from jaxrl_sql.distribution import soft_cap
from jaxrl_sql.linear import linear
from jaxrl_sql.models.cache import DecodeCache, PrefixCache
from jaxrl_sql.models.layers import KeyPart, attend, gated_mlp, rms_norm
from jaxrl_sql.models.rope import Angles, rope_angles, rope_frequencies, rotate
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.parallel.rules import constrain
from jaxrl_sql.types import InputError

Layer = dict[str, jax.Array]
# Whether a layer sees a sliding window: a flag of the scan, or known where layers are unrolled or none of them does.
Kind = bool | jax.Array

STREAM = ("batch", "none", "none", "none")
REMAT_NAMES = ("query", "key", "value", "attended", "gate", "up")


@flax.struct.dataclass
class Block:
    """One level of the tree: tokens [B,R,T] int32, length [B,R] int32 valid tokens of each row."""

    tokens: jax.Array
    length: jax.Array


def _valid(block: Block) -> jax.Array:
    """Return which tokens exist, [B,R,T] bool."""
    return jnp.arange(block.tokens.shape[-1]) < block.length[..., None]


def _starts(blocks: Sequence[Block]) -> list[jax.Array]:
    """Return the position of each row's first token, [B,Ri] int32: the lengths of its ancestors added up."""
    starts = [jnp.zeros_like(blocks[0].length)]
    for parent, child in itertools.pairwise(blocks):
        ends = starts[-1] + parent.length
        starts.append(jnp.repeat(ends, child.length.shape[1] // ends.shape[1], axis=1))
    return starts


def _check(config: ModelConfig, rows: Sequence[int], total: int) -> None:
    """Refuse a list of blocks that is no tree, and more tokens than the model has positions, before compilation."""
    for parent, child in itertools.pairwise(rows):
        if child % parent:
            raise ValueError(f"a block of {child} rows cannot hang below one of {parent}: no multiple")
    if total > config.max_positions:
        raise InputError(f"model: a sequence of {total} tokens is longer than max_positions ({config.max_positions})")


class Places(NamedTuple):
    """Where a block's tokens stand: positions [B,R,T] int32, valid [B,R,1,T] bool, and the layers' angles.

    `local` holds the angles of sliding layers and is `angles` itself where a model has none.
    """

    positions: jax.Array
    valid: jax.Array
    angles: Angles
    local: Angles


def place(config: ModelConfig, positions: jax.Array, valid: jax.Array) -> Places:
    """Compute the rotary angles of positions [B,R,T]; valid [B,R,T] bool."""
    angles = rope_angles(positions, rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling))
    local = angles
    if config.sliding:
        local = rope_angles(positions, rope_frequencies(config.head_dim, config.sliding.rope_theta))
    return Places(positions, valid[:, :, None], angles, local)


def angles_of(kind: Kind, places: Places) -> Angles:
    """Return the angles that a layer turns by."""
    if isinstance(kind, bool):
        return places.local if kind else places.angles
    return jax.tree.map(lambda a, b: jnp.where(kind, a, b), places.local, places.angles)


def seen(config: ModelConfig, kind: Kind, valid: jax.Array, keys: jax.Array, queries: jax.Array) -> jax.Array:
    """Narrow the keys that are there to those that a layer sees: for a sliding layer, fewer than a window's size back.

    valid: bool, broadcastable to [B,Rj,X,S]; positions of keys [B,Rj,S] and queries [B,R,T]; X = (R/Rj)·T, as in
    KeyPart. Positions go on through the tree, so a window that reaches into an ancestor is the plain sequence's.
    """
    if config.sliding is None or kind is False:
        return valid
    folded = queries.reshape(*keys.shape[:2], -1, 1)
    near = folded - keys[:, :, None] < config.sliding.size
    return valid & near if kind is True else valid & (near | ~kind)


def norm(config: ModelConfig, x: jax.Array, weight: jax.Array) -> jax.Array:
    """Norm states or heads [...,D] in the model's way."""
    return rms_norm(x, weight, config.norm_eps, config.norms_from_one)


def scale_of(config: ModelConfig) -> float:
    """Return what scores are multiplied by: the root of the head size, or of what the model says instead."""
    return (config.query_scalar or config.head_dim) ** -0.5


def _attend(config: ModelConfig, q: jax.Array, parts: Sequence[KeyPart]) -> jax.Array:
    """Attend with the model's scale and cap of scores."""
    return attend(q, parts, scale_of(config), config.attn_score_cap)


def heads(layer: Layer, config: ModelConfig, x: jax.Array, angles: Angles) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Project normed states x [B,R,T,D] to queries [B,R,T,H,Q], keys and values [B,R,K,T,Q], positions applied."""
    q, k, v = (linear(x, layer[name]) for name in ("q", "k", "v"))
    if config.qkv_bias:
        q, k, v = q + layer["q_bias"], k + layer["k_bias"], v + layer["v_bias"]
    if config.qk_norm:
        q, k = norm(config, q, layer["q_norm"]), norm(config, k, layer["k_norm"])
    q, k, v = rotate(q, angles), jnp.swapaxes(rotate(k, angles), 2, 3), jnp.swapaxes(v, 2, 3)
    return checkpoint_name(q, "query"), checkpoint_name(k, "key"), checkpoint_name(v, "value")


def finish(layer: Layer, config: ModelConfig, x: jax.Array, attended: jax.Array) -> jax.Array:
    """Add attention's output [B,R,T,H,Q] and then the MLP's to the residual stream x [B,R,T,D]."""
    added = linear(checkpoint_name(attended, "attended"), layer["o"], 2)
    x = x + (norm(config, added, layer["post_attn_norm"]) if config.post_norms else added)
    y = norm(config, x, layer["mlp_norm"])
    gate = checkpoint_name(linear(y, layer["gate"]), "gate")
    up = checkpoint_name(linear(y, layer["up"]), "up")
    added = gated_mlp(gate, up, layer["down"], config.activation)
    return constrain(x + (norm(config, added, layer["post_mlp_norm"]) if config.post_norms else added), STREAM)


def _layer_step(
    layer: Layer, config: ModelConfig, kind: Kind, xs: tuple[jax.Array, ...], blocks: Sequence[Places]
) -> tuple[tuple[jax.Array, ...], tuple[tuple[jax.Array, jax.Array], ...]]:
    """Run one layer on all blocks: states ([B,Ri,Ti,D], …) -> new states, and each block's (keys, values)."""
    out: list[jax.Array] = []
    above: list[tuple[jax.Array, jax.Array, jax.Array, jax.Array]] = []
    for x, block in zip(xs, blocks, strict=True):
        q, k, v = heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(kind, block))
        causal = jnp.tril(jnp.ones((x.shape[2], x.shape[2]), bool))
        own = (k, v, block.valid & causal, block.positions)
        parts = [
            KeyPart(keys, values, seen(config, kind, valid, positions, block.positions))
            for keys, values, valid, positions in (*above, own)
        ]
        out.append(finish(layer, config, x, _attend(config, q, parts)))
        above.append((k, v, block.valid, block.positions))
    return tuple(out), tuple((k, v) for k, v, _, _ in above)


def _remat(step: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Wrap a layer so that its backward pass recomputes everything (`full`) or all but the named (`query,key`)."""
    if remat == "none":
        return step
    if remat == "full":
        return jax.checkpoint(step, prevent_cse=False)
    names = tuple(name.strip() for name in remat.split(","))
    unknown = [name for name in names if name not in REMAT_NAMES]
    if unknown:
        choices = ", ".join(REMAT_NAMES)
        raise InputError(f"remat: unknown {unknown[0]!r}; valid are none, full, or names among {choices}")
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    return jax.checkpoint(step, prevent_cse=False, policy=policy)


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """Bring weights to the compute dtype, inside the layer, so that no second copy of all layers stands."""
    return tree if dtype is None else jax.tree.map(lambda w: w.astype(dtype), tree)


def embed(params: PyTree, config: ModelConfig, tokens: jax.Array, dtype: Any) -> jax.Array:
    """Look up tokens [B,R,T] -> [B,R,T,D], scaled by the root of D where the model does that."""
    # The width is gathered before the lookup: what the partitioner finds for a table split both ways is to copy all.
    table = constrain(params["embed"], ("vocab", "none"))
    x = cast(table[tokens], dtype)
    if config.scale_embeddings:
        # The factor is rounded to the dtype of activations before it multiplies, as Gemma's weights were trained.
        x = x * jnp.asarray(math.sqrt(config.d_model), x.dtype)
    return constrain(x, STREAM)


def _run(
    params: PyTree, config: ModelConfig, blocks: Sequence[Block], remat: str, dtype: Any, keep: bool
) -> tuple[tuple[jax.Array, ...], Any]:
    """Run all layers on the blocks -> final normed states ([B,Ri,Ti,D], …) and, on request, keys and values [L,…]."""
    _check(config, [b.length.shape[1] for b in blocks], sum(b.tokens.shape[-1] for b in blocks))
    places = [
        place(config, start[..., None] + jnp.arange(block.tokens.shape[-1]), _valid(block))
        for start, block in zip(_starts(blocks), blocks, strict=True)
    ]

    def step(xs: tuple[jax.Array, ...], scanned: tuple[Layer, jax.Array | None]) -> tuple[tuple[jax.Array, ...], Any]:
        layer, flag = scanned
        out, kept = _layer_step(cast(layer, dtype), config, False if flag is None else flag, xs, places)
        return out, kept if keep else None

    xs = tuple(embed(params, config, block.tokens, dtype) for block in blocks)
    flags = jnp.array(config.sliding.layers) if config.sliding else None
    xs, kept = lax.scan(_remat(step, remat), xs, (params["layers"], flags))
    return tuple(norm(config, x, params["final_norm"]) for x in xs), kept


def hidden_states(
    params: PyTree, config: ModelConfig, blocks: Sequence[Block], remat: str = "none", compute_dtype: Any = None
) -> tuple[jax.Array, ...]:
    """Return the final states (after the last norm) of a tree of blocks, one [B,Ri,Ti,D] a block.

    Raises InputError for an unknown `remat` or more tokens than the model has positions.
    """
    return _run(params, config, blocks, remat, compute_dtype, keep=False)[0]


def unembedding(params: PyTree, config: ModelConfig) -> jax.Array:
    """Return the matrix from states to logits, [D,V]."""
    return params["embed"].T if config.tie_embeddings else params["unembed"]


def unembed(params: PyTree, config: ModelConfig, hidden: jax.Array) -> jax.Array:
    """Turn states [...,D] into logits [...,V] float32, capped where the model caps them."""
    matrix = unembedding(params, config).astype(hidden.dtype)
    logits = jnp.einsum("...d,dv->...v", hidden, matrix, preferred_element_type=jnp.float32)
    return soft_cap(logits, config.final_logit_cap)


def forward(
    params: PyTree, config: ModelConfig, tokens: jax.Array, lengths: jax.Array, compute_dtype: Any = None
) -> jax.Array:
    """Return the logits [N,T,V] float32 of right-padded tokens [N,T] with lengths [N].

    What stands at and beyond a row's length is finite and means nothing.
    """
    block = Block(tokens=tokens[:, None], length=lengths[:, None])
    (hidden,) = hidden_states(params, config, (block,), compute_dtype=compute_dtype)
    return unembed(params, config, hidden[:, 0])


def last_state(hidden: jax.Array, length: jax.Array) -> jax.Array:
    """Pick the state of the last valid position: [B,P,D], [B] -> [B,D] (position 0 of an empty row)."""
    index = jnp.maximum(length - 1, 0)[:, None, None]
    return jnp.take_along_axis(hidden, index, axis=1)[:, 0]


def prediction_states(
    params: PyTree,
    config: ModelConfig,
    shared: Sequence[Segment],
    completion: jax.Array,
    completion_len: jax.Array,
    remat: str = "none",
    compute_dtype: Any = None,
) -> jax.Array:
    """Return the final states that predict each completion token, [B,G,T,D].

    shared: segments [B,P] before the completions [B,G,T] with lengths [B,G]; each is run once, forward and backward.
    Token 0 is predicted by the last valid position of the last segment, token t by the completion's position t-1.
    """
    blocks = [Block(tokens=s.tokens[:, None], length=s.length[:, None]) for s in shared]
    blocks.append(Block(tokens=completion, length=completion_len))
    *above, own = hidden_states(params, config, blocks, remat, compute_dtype)
    first = last_state(above[-1][:, 0], shared[-1].length)[:, None, None]
    first = jnp.broadcast_to(first, (*own.shape[:2], 1, own.shape[3]))
    return jnp.concatenate([first, own[:, :, :-1]], axis=2)


def prefill(
    params: PyTree, config: ModelConfig, tokens: jax.Array, length: jax.Array, compute_dtype: Any = None
) -> tuple[PrefixCache, jax.Array]:
    """Run prompts [B,P] with lengths [B] once -> their keys and values, and the state [B,D] that predicts what follows.

    The cache is in the compute dtype.
    """
    block = Block(tokens=tokens[:, None], length=length[:, None])
    (hidden,), ((k, v),) = _run(params, config, (block,), "none", compute_dtype, keep=True)
    return PrefixCache(k=tuple(k[:, :, 0]), v=tuple(v[:, :, 0]), length=length), last_state(hidden[:, 0], length)


def decode_step(
    params: PyTree,
    config: ModelConfig,
    prefix: PrefixCache,
    cache: DecodeCache,
    token: jax.Array,
    active: jax.Array,
    compute_dtype: Any = None,
) -> tuple[jax.Array, DecodeCache]:
    """Append one token [B,G] to each active [B,G] row -> the state [B,G,D] that predicts the next, and the cache.

    A row writes at its own length and sees its prompt (one copy for all G) and its own tokens. An inactive row
    writes nothing and keeps its length, and its state means nothing. A row whose S slots are full writes nothing
    either: callers stop rows before that.
    """
    b, g, _, slots, _ = cache.k[0].shape
    _check(config, (1, g), prefix.k[0].shape[2] + slots)
    own = cache.length + active.astype(jnp.int32)
    start, p = prefix.length[:, None, None], prefix.k[0].shape[2]
    where = place(config, start + cache.length[..., None], active[..., None])
    valid = (jnp.arange(p) < start)[:, :, None], (jnp.arange(slots) < own[..., None])[:, :, None]
    at = jnp.broadcast_to(jnp.arange(p), (b, 1, p)), jnp.broadcast_to(start + jnp.arange(slots), (b, g, slots))
    kinds = config.sliding.layers if config.sliding else (False,) * config.n_layers
    visible = {
        kind: [seen(config, kind, *keys, where.positions) for keys in zip(valid, at, strict=True)]
        for kind in set(kinds)
    }
    # An index outside the cache is dropped by the scatter: that is how an inactive row writes nothing.
    slot = jnp.where(active, cache.length, slots)
    rows, columns = jnp.arange(b)[:, None], jnp.arange(g)[None]

    def append(kept: jax.Array, new: jax.Array) -> jax.Array:
        return kept.at[rows, columns, :, slot].set(new[:, :, :, 0].astype(kept.dtype), mode="drop")

    x = embed(params, config, token[..., None], compute_dtype)
    keys, values = [], []
    for i, kind in enumerate(kinds):
        layer = cast(jax.tree.map(operator.itemgetter(i), params["layers"]), compute_dtype)
        q, k, v = heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(kind, where))
        keys.append(append(cache.k[i], k))
        values.append(append(cache.v[i], v))
        stored = (prefix.k[i][:, None], prefix.v[i][:, None]), (keys[i], values[i])
        parts = [KeyPart(*pair, at_all) for pair, at_all in zip(stored, visible[kind], strict=True)]
        x = finish(layer, config, x, _attend(config, q, parts))
    hidden = norm(config, x[:, :, 0], params["final_norm"])
    return hidden, DecodeCache(k=tuple(keys), v=tuple(values), length=own)
