"""The decoder: one layer function, scanned over the layers and applied to a tree of segments.

A `Segment` holds R rows of T tokens for each of B prompts, tokens [B,R,T] and lengths [B,R]. A list of segments is a
tree, one level per segment: a prompt is a segment with R = 1, its G completions are the next segment, with R = G.
Schema, questions and answers are three levels. Each row of a segment continues a row of the segment before, its parent.
It attends to all valid tokens of its ancestor rows and causally to its own, and its positions continue those of its
ancestors. So each prompt runs once, forward and backward, for all its completions.

Layers differ only in whether they have a sliding window; such layers have a rotary base of their own. The scan passes
this as one flag per layer; a config without such layers compiles no code for it.

Masks and positions come from lengths, never from token values. All functions are pure. `compute_dtype` (default: the
dtype of the parameters) applies to activations and matrix products; norms, scores and softmax are in float32. Weights
are cast to it at their use, and their gradients are accumulated in float32 (`ops.linear`).

A layer's parameters may hold, next to a weight such as `q`, an entry `q_lora`: the pair of low-rank matrices of a LoRA
adapter, whose product is added to the weight (`lora`).

Letters of shapes: D width of the model, V vocabulary, H query heads, K key heads, Q size of a head. Index i: of the
i-th segment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from jaxrl_sql.batch import PyTree, Segment
from jaxrl_sql.config.model import REMAT_NAMES
from jaxrl_sql.models.attention import TreeAttention, choose
from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel
from jaxrl_sql.models.layers import ACTIVATIONS, lookup, rms_norm
from jaxrl_sql.models.ops.linear import AnyWeight, Transposed, linear, shift
from jaxrl_sql.models.ops.token_distribution import soft_cap
from jaxrl_sql.models.rope import Angles, Rope, rope_angles, rope_frequencies, rotate
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.parallel.rules import constrain
from jaxrl_sql.types import InputError, Record

# Parameters of one layer, by name.
Layer = Record
# Whether a layer has a sliding window: a traced flag in the scan, a bool in unrolled layers or without windows.
HasWindow = bool | jax.Array

# Logical axes of states [B,R,T,D] within a layer.
STREAM = ("batch", "none", "none", "none")
# Those of the states that the scan passes from layer to layer, and saves for the backward pass. To save memory the mesh
# axis `tensor` also splits their tokens.
CARRIED = ("batch", "none", "sequence", "none")


def _starts(segments: Sequence[Segment]) -> list[jax.Array]:
    """Return the position of each row's first token, [B,Ri] int32: the sum of its ancestors' lengths."""
    starts = [jnp.zeros_like(segments[0].length)]
    for parent, child in itertools.pairwise(segments):
        ends = starts[-1] + parent.length
        starts.append(jnp.repeat(ends, child.length.shape[1] // ends.shape[1], axis=1))
    return starts


def _offsets(segment: Segment) -> jax.Array:
    """Return the index of each token in its sequence: [T], or [B,R,T] for packed rows, which hold several sequences."""
    return jnp.arange(segment.tokens.shape[-1]) if segment.offset is None else segment.offset


def _check(config: ModelConfig, rows: Sequence[int], total: int) -> None:
    """Raise for segments that form no tree and for more tokens than the model has positions, before compilation.

    rows: number of rows of each segment; total: the tokens of the longest sequence.
    """
    for parent, child in itertools.pairwise(rows):
        if child % parent:
            raise ValueError(f"a segment of {child} rows below one of {parent}: the rows must be a multiple")
    if total > config.max_positions:
        raise InputError(f"model: a sequence of {total} tokens is longer than max_positions ({config.max_positions})")


class RotaryPositions(NamedTuple):
    """Positions [B,R,T] int32 of a segment's tokens and their rotary angles.

    `local_angles` holds the angles of layers with a sliding window, and equals `angles` in a model without such layers.
    """

    positions: jax.Array
    angles: Angles
    local_angles: Angles


def rotary_positions(config: ModelConfig, positions: jax.Array) -> RotaryPositions:
    """Compute the rotary angles of positions [B,R,T]."""
    angles = rope_angles(positions, rope_frequencies(config.head_dim, config.rope))
    local = angles
    if config.sliding:
        local = rope_angles(positions, rope_frequencies(config.head_dim, Rope(config.sliding.rope_theta)))
    return RotaryPositions(positions, angles, local)


def angles_of(has_window: HasWindow, rotary: RotaryPositions) -> Angles:
    """Return the rotary angles of a layer with or without a sliding window."""
    if isinstance(has_window, bool):
        return rotary.local_angles if has_window else rotary.angles
    return jax.tree.map(lambda local, other: jnp.where(has_window, local, other), rotary.local_angles, rotary.angles)


def window_of(config: ModelConfig, has_window: HasWindow) -> AttentionWindow | None:
    """Return the sliding window of a layer, or None."""
    return None if config.sliding is None or has_window is False else AttentionWindow(config.sliding.size, has_window)


def norm(config: ModelConfig, x: jax.Array, weight: AnyWeight) -> jax.Array:
    """Normalize states or heads [...,D] with the model's RMSNorm."""
    return rms_norm(x, weight, config.norms.eps, config.norms.is_zero_centered)


def scale_of(config: ModelConfig) -> float:
    """Return the factor of attention scores."""
    return (config.head_dim if config.query_scalar is None else config.query_scalar) ** -0.5


def _project(layer: Layer, name: str, x: jax.Array, n_in: int = 1) -> jax.Array:
    """Multiply states [...,*I] by the named weight [*I,*O], and add the output of its LoRA adapter, if it has one.

    I are the `n_in` input axes and O the output axes. With the adapter's matrices A and B the result is x·W + x·A·B
    and not x·(W + A·B), because the sum in parentheses would be a second copy of W.
    """
    out = linear(x, layer[name], n_in)
    adapter = layer.get(f"{name}_lora")
    return out if adapter is None else out + linear(linear(x, adapter.a, n_in), adapter.b)


def qkv_heads(
    layer: Layer, config: ModelConfig, x: jax.Array, angles: Angles
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Project normed states x [B,R,T,D] to rotated queries [B,R,T,H,Q] and keys [B,R,K,T,Q], and values [B,R,K,T,Q]."""
    q, k, v = (_project(layer, name, x) for name in ("q", "k", "v"))
    if config.qkv_bias:
        q, k, v = (shift(y, layer[f"{name}_bias"]) for name, y in (("q", q), ("k", k), ("v", v)))
    if config.qk_norm:
        q, k = norm(config, q, layer["q_norm"]), norm(config, k, layer["k_norm"])
    q, k, v = rotate(q, angles), jnp.swapaxes(rotate(k, angles), 2, 3), jnp.swapaxes(v, 2, 3)
    return checkpoint_name(q, "query"), checkpoint_name(k, "key"), checkpoint_name(v, "value")


def output_and_mlp(
    layer: Layer, config: ModelConfig, x: jax.Array, attended: jax.Array, stream: tuple[str, ...] = STREAM
) -> jax.Array:
    """Add attention's and the MLP's output to the residual stream x [B,R,T,D] -> [B,R,T,D].

    attended [B,R,T,H,Q]: the output of attention before its projection `o`; stream: logical axes of the result.
    """
    output = _project(layer, "o", attended, 2)
    x = x + (norm(config, output, layer["post_attn_norm"]) if config.norms.has_post_norms else output)
    y = norm(config, x, layer["mlp_norm"])
    gate = checkpoint_name(_project(layer, "gate", y), "gate")
    up = checkpoint_name(_project(layer, "up", y), "up")
    output = _project(layer, "down", ACTIVATIONS[config.activation](gate) * up)
    return constrain(
        x + (norm(config, output, layer["post_mlp_norm"]) if config.norms.has_post_norms else output), stream
    )


def _layer_step(
    layer: Layer,
    config: ModelConfig,
    has_window: HasWindow,
    attention: TreeAttention,
    xs: tuple[jax.Array, ...],
    segments: Sequence[tuple[Segment, RotaryPositions]],
) -> tuple[jax.Array, ...]:
    """Run one layer on all segments: states ([B,Ri,Ti,D], …) -> new states."""
    levels = []
    for x, (segment, rotary) in zip(xs, segments, strict=True):
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(has_window, rotary))
        levels.append(TreeLevel(q, k, v, segment.length, rotary.positions, segment.owner, segment.starts))
    attended = attention(levels, scale_of(config), config.attn_score_cap, window_of(config, has_window))
    return tuple(output_and_mlp(layer, config, x, output, CARRIED) for x, output in zip(xs, attended, strict=True))


def _remat(step: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Wrap a layer according to the setting `model.remat`.

    In its backward pass the layer recomputes nothing (`none`), everything (`full`), or everything except the named
    activations (such as `query,key`), which are saved.
    """
    if remat == "none":
        return step
    if remat == "full":
        return jax.checkpoint(step, prevent_cse=False)
    names = tuple(name.strip() for name in remat.split(","))
    unknown = [name for name in names if name not in REMAT_NAMES]
    if unknown:
        choices = ", ".join(REMAT_NAMES)
        raise InputError(f"remat: unknown {unknown[0]!r}; valid: none, full, or names among {choices}")
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    return jax.checkpoint(step, prevent_cse=False, policy=policy)


def embed(params: PyTree, config: ModelConfig, tokens: jax.Array, dtype: DTypeLike | None) -> jax.Array:
    """Look up tokens [B,R,T] -> [B,R,T,D], scaled by sqrt(D) if the config says so."""
    x = lookup(params["embed"], tokens)
    x = x if dtype is None else x.astype(dtype)
    if config.scale_embeddings:
        # The factor is rounded to the dtype of activations first, as in Gemma's training.
        x = x * jnp.asarray(math.sqrt(config.d_model), x.dtype)
    return constrain(x, STREAM)


def hidden_states(
    params: PyTree,
    config: ModelConfig,
    segments: Sequence[Segment],
    remat: str = "none",
    compute_dtype: DTypeLike | None = None,
    attention: str | TreeAttention = "xla",
) -> tuple[jax.Array, ...]:
    """Return the final states (after the last norm) of a tree of segments, one array [B,Ri,Ti,D] per segment.

    remat: activations that the backward pass recomputes (setting `model.remat`). compute_dtype: of activations; None:
    that of the parameters. attention: name of a backend or `auto`, or the function (`models.attention`).
    Raises InputError for an unknown `remat`, more tokens than the model has positions, or an `attention` that does not
    support the model on this machine (`models.attention.choose`).
    """
    _check(config, [s.length.shape[1] for s in segments], sum(s.tokens.shape[-1] for s in segments))
    dtype = params["embed"].dtype if compute_dtype is None else compute_dtype
    backend = choose(attention, config, dtype)
    with_positions = [
        (segment, rotary_positions(config, start[..., None] + _offsets(segment)))
        for start, segment in zip(_starts(segments), segments, strict=True)
    ]

    def step(xs: tuple[jax.Array, ...], scanned: tuple[Layer, jax.Array | None]) -> tuple[tuple[jax.Array, ...], None]:
        layer, window_flag = scanned
        has_window = False if window_flag is None else window_flag
        return _layer_step(layer, config, has_window, backend, xs, with_positions), None

    xs = tuple(constrain(embed(params, config, segment.tokens, compute_dtype), CARRIED) for segment in segments)
    window_flags = jnp.array(config.sliding.layers) if config.sliding else None
    xs, _ = lax.scan(_remat(step, remat), xs, (params["layers"], window_flags))
    return tuple(norm(config, x, params["final_norm"]) for x in xs)


def unembedding(params: PyTree, config: ModelConfig) -> AnyWeight | Transposed:
    """Return the matrix from states to logits, [D,V]."""
    return Transposed(params["embed"]) if config.tie_embeddings else params["unembed"]


def unembed(params: PyTree, config: ModelConfig, hidden: jax.Array) -> jax.Array:
    """Return the logits [...,V] float32 of states [...,D], with the model's soft cap."""
    return soft_cap(linear(hidden, unembedding(params, config), 1, jnp.float32), config.final_logit_cap)


def forward(
    params: PyTree, config: ModelConfig, tokens: jax.Array, lengths: jax.Array, compute_dtype: DTypeLike | None = None
) -> jax.Array:
    """Return the logits [N,T,V] float32 of right-padded tokens [N,T] with lengths [N].

    Logits at and after a row's length are finite and have no meaning.
    """
    segment = Segment(tokens=tokens[:, None], length=lengths[:, None])
    (hidden,) = hidden_states(params, config, (segment,), compute_dtype=compute_dtype)
    return unembed(params, config, hidden[:, 0])


def last_state(hidden: jax.Array, length: jax.Array) -> jax.Array:
    """Pick the state of the last valid position: [B,P,D], [B] -> [B,D] (position 0 of an empty row)."""
    # A masked sum, because the gradient of indexing is a scatter, which adds in the dtype of the states.
    is_last = jnp.arange(hidden.shape[1]) == jnp.maximum(length - 1, 0)[:, None]
    return jnp.sum(jnp.where(is_last[..., None], hidden, 0), axis=1)


def prediction_states(
    params: PyTree,
    config: ModelConfig,
    shared: Sequence[Segment],
    completion: jax.Array,
    completion_len: jax.Array,
    remat: str = "none",
    compute_dtype: DTypeLike | None = None,
    attention: str | TreeAttention = "xla",
) -> jax.Array:
    """Return the final states that predict each completion token, [B,G,T,D].

    shared: segments, each tokens [B,P] and length [B], before the completions [B,G,T] with lengths [B,G]. Each segment
    runs once, forward and backward. Token 0 is predicted by the state at the last valid position of the last segment,
    token t by that at the completion's position t-1. Other arguments are those of `hidden_states`.
    """
    return states_before(params, config, shared, Segment(completion, completion_len), remat, compute_dtype, attention)


def states_before(
    params: PyTree,
    config: ModelConfig,
    shared: Sequence[Segment],
    rows: Segment,
    remat: str = "none",
    compute_dtype: DTypeLike | None = None,
    attention: str | TreeAttention = "xla",
    prompts_per_schema: int = 1,
) -> jax.Array:
    """Return the final states that predict each token of rows [B,R,T] after shared segments, [B,R,T,D].

    A row holds one completion or several (`models.packed`), which do not see each other. Each run of
    `prompts_per_schema` consecutive prompts has the same first segment (the schema), which is computed once for them.
    Other arguments are those of `hidden_states`.
    """
    segments = [Segment(tokens=s.tokens[:, None], length=s.length[:, None]) for s in shared]
    tree = [*segments, rows]
    if prompts_per_schema > 1:
        schema = Segment(segments[0].tokens[::prompts_per_schema], segments[0].length[::prompts_per_schema])
        tree = [schema, *(_merge_prompts(segment, prompts_per_schema) for segment in tree[1:])]
    *shared_states, states = hidden_states(params, config, tree, remat, compute_dtype, attention)
    prompt_states, states = (
        x.reshape(*s.tokens.shape, -1) for x, s in ((shared_states[-1], segments[-1]), (states, rows))
    )
    first = last_state(prompt_states[:, 0], shared[-1].length)[:, None, None]  # predicts token 0 of each completion
    row_first = jnp.broadcast_to(first, (*states.shape[:2], 1, states.shape[3]))
    before = jnp.concatenate([row_first, states[:, :, :-1]], axis=2)
    return before if rows.offset is None else jnp.where((rows.offset == 0)[..., None], first, before)


def _merge_prompts(segment: Segment, prompts_per_schema: int) -> Segment:
    """Merge the rows of each P = `prompts_per_schema` consecutive prompts, [B,R,T] -> [B/P,P·R,T].

    Owners and starts of packed sequences are renumbered, because they count within a prompt.
    """
    tokens, length = segment.tokens, segment.length
    prompts, rows, row_width = tokens.shape
    merged = Segment(
        tokens.reshape(-1, prompts_per_schema * rows, row_width), length.reshape(-1, prompts_per_schema * rows)
    )
    if segment.owner is None or segment.starts is None or segment.offset is None:
        return merged
    sequences, index = segment.starts.shape[1], jnp.arange(prompts, dtype=jnp.int32) % prompts_per_schema
    owner = jnp.where(segment.owner < 0, -1, segment.owner + (index * sequences)[:, None, None])
    starts = segment.starts + (index * rows * row_width)[:, None]
    return Segment(
        merged.tokens,
        merged.length,
        owner.reshape(merged.tokens.shape),
        segment.offset.reshape(merged.tokens.shape),
        starts.reshape(-1, prompts_per_schema * sequences),
    )
