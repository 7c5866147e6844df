"""Configuration of a decoder and the table of its parameters.

`ModelConfig` holds sizes and options under this package's names; `families/` maps them to Hugging Face's config.json.
`param_specs` returns one `ParamSpec` per parameter: shape, logical axes, initializer, and the name and layout in a
Hugging Face checkpoint. Logical axes are names of dimensions, which `parallel.rules` maps to axes of the mesh.
Initialization, sharding, loading, saving and parameter counts read this table. Parameters of the L layers are stacked
on a leading axis, which `transformer` scans.
"""

from __future__ import annotations

import itertools
import math
import operator
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.layers import ACTIVATIONS
from jaxrl_sql.models.rope import Rope
from jaxrl_sql.parallel.rules import AnyMesh, place, sharding_of
from jaxrl_sql.types import InputError, Record


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Local attention in some layers (Longformer, arXiv 2004.05150).

    size: number of tokens that a position attends to, itself included.
    layers: whether attention is local, for each layer.
    rope_theta: base of the rotary embeddings in local layers.
    """

    size: int
    layers: tuple[bool, ...]
    rope_theta: float

    def __post_init__(self) -> None:
        if self.size < 1 or not any(self.layers):
            raise InputError(
                f"model: a sliding window of {self.size} tokens in {sum(self.layers)} layers, need 1 of each"
            )


@dataclass(frozen=True, slots=True)
class Norms:
    """Options of the RMSNorms (arXiv 1910.07467).

    eps: added to the mean square (config.json: rms_norm_eps).
    is_zero_centered: norms scale by 1 + weight, as in Gemma, instead of by weight.
    has_post_norms: the outputs of attention and MLP are normed before they are added to the residual stream.
    """

    eps: float = 1e-6
    is_zero_centered: bool = False
    has_post_norms: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and options of a decoder; hashable, so that it can be a static argument of jitted functions.

    The defaults are those of Llama. In parentheses: the field of config.json, where its name differs.
    """

    family: str  # a key of `families.FAMILIES` (model_type)
    vocab_size: int
    d_model: int  # width of the residual stream (hidden_size)
    n_layers: int  # (num_hidden_layers)
    n_heads: int  # query heads (num_attention_heads)
    n_kv_heads: int  # key and value heads, a divisor of n_heads (num_key_value_heads)
    head_dim: int  # even
    d_ff: int  # inner width of the MLP (intermediate_size)
    rope: Rope  # in layers without a sliding window
    norms: Norms
    tie_embeddings: bool  # the unembedding is the transposed embedding table (tie_word_embeddings)
    qk_norm: bool  # RMSNorm of each head's queries and keys, before the rotation
    qkv_bias: bool  # biases in the query, key and value projections
    max_positions: int  # maximum length of prompt and completion together (max_position_embeddings)
    sliding: SlidingWindow | None = None
    activation: str = "silu"  # a key of ACTIVATIONS (hidden_act, hidden_activation)
    scale_embeddings: bool = False  # multiply embeddings by sqrt(d_model)
    query_scalar: float | None = None  # divide scores by its square root; None: head_dim (query_pre_attn_scalar)
    attn_score_cap: float | None = None  # soft cap c: c * tanh(score / c) (attn_logit_softcapping)
    final_logit_cap: float | None = None  # the same for logits (final_logit_softcapping)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "max_positions"):
            if getattr(self, name) < 1:
                raise InputError(f"model: {name} is {getattr(self, name)}, must be at least 1")
        if self.n_heads % self.n_kv_heads:
            raise InputError(f"model: n_heads ({self.n_heads}) is not a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.head_dim % 2:
            raise InputError(f"model: head_dim ({self.head_dim}) must be even for rotary positions")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"model: activation is {self.activation!r}; valid are {', '.join(ACTIVATIONS)}")
        for name in ("query_scalar", "attn_score_cap", "final_logit_cap"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise InputError(f"model: {name} is {value}, must be positive")
        if self.sliding and len(self.sliding.layers) != self.n_layers:
            raise InputError(f"model: sliding names {len(self.sliding.layers)} layers, n_layers is {self.n_layers}")


def first_difference(config: Any, other: Any) -> tuple[str, Any, Any] | None:
    """Return the first field in which two dataclasses of one type differ, and its two values; None for equal ones.

    The field of a nested dataclass is named by its path, as in "rope.theta".
    """
    for field in fields(config):
        values = getattr(config, field.name), getattr(other, field.name)
        if values[0] == values[1]:
            continue
        if is_dataclass(values[0]) and type(values[0]) is type(values[1]):
            nested = first_difference(*values)
            return nested and (f"{field.name}.{nested[0]}", *nested[1:])
        return field.name, *values
    return None


class Init(NamedTuple):
    """Initializer of a parameter: mean + std · a standard normal truncated to [-2, 2]."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One leaf of the parameters, and the tensors of a Hugging Face checkpoint that it comes from.

    path: keys in the nested dict.
    shape, axes: sizes and logical axes of the leaf; the number of layers comes first if `hf_name` contains `{layer}`.
    init: initializer.
    hf_name: name of the tensor in the checkpoint; with `{layer}`, a pattern for one tensor per layer.
    hf_shape: shape of one tensor in the checkpoint.
    hf_transposed: the checkpoint holds the transpose, as Hugging Face's linear layers [out, in] do: a tensor becomes
    `tensor.T.reshape(layer_shape)`, otherwise `tensor.reshape(layer_shape)`.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Init
    hf_name: str
    hf_shape: tuple[int, ...]
    hf_transposed: bool = False

    @property
    def name(self) -> str:
        """Return the path, joined by slashes."""
        return "/".join(self.path)

    @property
    def is_stacked(self) -> bool:
        """Return whether the leaf stacks one tensor of the checkpoint per layer."""
        return "{layer}" in self.hf_name

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """Return the shape of one layer's part of a stacked leaf, or of a leaf that is not stacked."""
        return self.shape[1:] if self.is_stacked else self.shape

    @property
    def is_matrix(self) -> bool:
        """Return whether the tensors of the checkpoint are matrices; norms and biases are vectors."""
        return len(self.hf_shape) == 2

    @property
    def n_in(self) -> int:
        """Return how many leading dimensions of `layer_shape` are inputs of the linear layer; 0 if not transposed."""
        sizes = itertools.accumulate(self.layer_shape, operator.mul)
        return 1 + list(sizes).index(self.hf_shape[1]) if self.hf_transposed else 0

    @property
    def layer_axes(self) -> tuple[str, ...]:
        """Return the logical axes of `layer_shape`."""
        return self.axes[1:] if self.is_stacked else self.axes

    def hf_names(self) -> tuple[str, ...]:
        """Return the names in the checkpoint, one per layer for a stacked leaf."""
        if not self.is_stacked:
            return (self.hf_name,)
        return tuple(self.hf_name.format(layer=layer) for layer in range(self.shape[0]))


# Standard deviation of new embeddings and unembeddings.
EMBED_STD = 0.02


def _norm_init(config: ModelConfig) -> Init:
    """Return the initializer with which a norm scales by 1."""
    return Init(0.0 if config.norms.is_zero_centered else 1.0, 0.0)


def _layer(
    config: ModelConfig, name: str, hf_name: str, dims: tuple[tuple[str, int], ...], n_in: int, init: Init
) -> ParamSpec:
    """Return the spec of a stacked weight whose layers have the dimensions `dims` (logical axis, size).

    The first `n_in` are inputs of a linear layer; 0 for a vector. `hf_name`: the name after that of the layer.
    """
    axes, sizes = zip(*dims, strict=True)
    hf_shape = (math.prod(sizes[n_in:]), math.prod(sizes[:n_in])) if n_in else (math.prod(sizes),)
    return ParamSpec(
        path=("layers", name),
        shape=(config.n_layers, *sizes),
        axes=("layers", *axes),
        init=init,
        hf_name="model.layers.{layer}." + hf_name,
        hf_shape=hf_shape,
        hf_transposed=n_in > 0,
    )


def _layer_specs(config: ModelConfig) -> Iterable[ParamSpec]:
    """Yield the specs of a layer's weights in the order of their use."""
    width, ff = ("width", config.d_model), ("mlp", config.d_ff)
    heads, kv_heads, head = ("heads", config.n_heads), ("kv_heads", config.n_kv_heads), ("head", config.head_dim)
    unit, zeros = _norm_init(config), Init(0.0, 0.0)
    # The std is 1 / sqrt(fan-in). Each layer adds 2 outputs, of attention and MLP, to the residual stream. The weights
    # of these outputs are also divided by the square root of their number, so that the scale of the final state does
    # not depend on depth.
    std_from_width = 1.0 / math.sqrt(config.d_model)
    residual_scale = 1.0 / math.sqrt(2 * config.n_layers)
    std_from_heads = residual_scale / math.sqrt(config.n_heads * config.head_dim)
    std_from_ff = residual_scale / math.sqrt(config.d_ff)

    yield _layer(config, "attn_norm", "input_layernorm.weight", (width,), 0, unit)
    for name, axis in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield _layer(config, name, f"self_attn.{name}_proj.weight", (width, axis, head), 1, Init(0.0, std_from_width))
        if config.qkv_bias:
            yield _layer(config, f"{name}_bias", f"self_attn.{name}_proj.bias", (axis, head), 0, zeros)
    if config.qk_norm:
        yield _layer(config, "q_norm", "self_attn.q_norm.weight", (head,), 0, unit)
        yield _layer(config, "k_norm", "self_attn.k_norm.weight", (head,), 0, unit)
    yield _layer(config, "o", "self_attn.o_proj.weight", (heads, head, width), 2, Init(0.0, std_from_heads))
    if config.norms.has_post_norms:
        yield _layer(config, "post_attn_norm", "post_attention_layernorm.weight", (width,), 0, unit)
    # Checkpoints of models without post-norms use the name `post_attention_layernorm` for the norm before the MLP.
    before_mlp = "pre_feedforward_layernorm" if config.norms.has_post_norms else "post_attention_layernorm"
    yield _layer(config, "mlp_norm", f"{before_mlp}.weight", (width,), 0, unit)
    yield _layer(config, "gate", "mlp.gate_proj.weight", (width, ff), 1, Init(0.0, std_from_width))
    yield _layer(config, "up", "mlp.up_proj.weight", (width, ff), 1, Init(0.0, std_from_width))
    yield _layer(config, "down", "mlp.down_proj.weight", (ff, width), 1, Init(0.0, std_from_ff))
    if config.norms.has_post_norms:
        yield _layer(config, "post_mlp_norm", "post_feedforward_layernorm.weight", (width,), 0, unit)


def param_specs(config: ModelConfig) -> tuple[ParamSpec, ...]:
    """Return the table of a model's parameters, one entry per leaf."""
    vocab, width = config.vocab_size, config.d_model
    embed = ParamSpec(
        ("embed",),
        (vocab, width),
        ("vocab", "width"),
        Init(0.0, EMBED_STD),
        "model.embed_tokens.weight",
        (vocab, width),
    )
    final_norm = ParamSpec(("final_norm",), (width,), ("width",), _norm_init(config), "model.norm.weight", (width,))
    specs = [embed, *_layer_specs(config), final_norm]
    if not config.tie_embeddings:
        shape, axes = (width, vocab), ("width", "vocab")
        specs.append(ParamSpec(("unembed",), shape, axes, Init(0.0, EMBED_STD), "lm_head.weight", (vocab, width), True))
    return tuple(specs)


def count_params(config: ModelConfig) -> int:
    """Return the number of parameters; tied embeddings count once."""
    return sum(math.prod(spec.shape) for spec in param_specs(config))


def weight_decay_tree(config: ModelConfig) -> PyTree:
    """Return whether weight decay applies to each leaf, as a tree: to matrices, not to norms and biases.

    The scale of a norm is near 1, and decay would pull it to 0.
    """
    return nest((spec, spec.is_matrix) for spec in param_specs(config))


def nest(leaves: Iterable[tuple[ParamSpec, Any]]) -> PyTree:
    """Build the nested dict of the parameters from pairs of spec and leaf."""
    tree: Record = {}
    for spec, leaf in leaves:
        node = tree
        for key in spec.path[:-1]:
            node = node.setdefault(key, {})
        node[spec.path[-1]] = leaf
    return tree


def leaf_of(params: PyTree, spec: ParamSpec) -> jax.Array:
    """Return the leaf of the parameters (or of a tree like them) at a spec's path."""
    node = params
    for key in spec.path:
        node = node[key]
    return node


@partial(jax.jit, static_argnums=(0, 2))
def _init(config: ModelConfig, key: jax.Array, dtype: DTypeLike) -> PyTree:
    """Initialise all leaves in one compiled function, instead of one per shape."""

    def init(spec: ParamSpec) -> jax.Array:
        if spec.init.std == 0.0:
            return jnp.full(spec.shape, spec.init.mean, dtype)
        leaf_key = jax.random.fold_in(key, zlib.crc32(spec.name.encode()))
        values = jax.random.truncated_normal(leaf_key, -2.0, 2.0, spec.shape, jnp.float32)
        return (spec.init.mean + spec.init.std * values).astype(dtype)

    return nest((spec, init(spec)) for spec in param_specs(config))


def init_params(config: ModelConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> PyTree:
    """Initialise parameters; the values of a leaf depend on the key and its path only.

    Under `jax.jit` with `out_shardings=param_shardings(config, mesh)` each device computes its own shard.
    """
    return _init(config, key, jnp.dtype(dtype))


def param_shardings(config: ModelConfig, mesh: AnyMesh) -> PyTree:
    """Return the shardings of the parameters, as a tree; raises InputError for a dimension that does not divide."""
    return nest((spec, sharding_of(mesh, spec.axes, spec.shape, spec.name)) for spec in param_specs(config))


def shard_params(params: PyTree, config: ModelConfig, mesh: jax.sharding.Mesh) -> PyTree:
    """Put parameters on a mesh; raises InputError as `param_shardings` does."""
    return place(params, param_shardings(config, mesh))
