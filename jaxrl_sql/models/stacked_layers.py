"""Parameters of the layers, as one tree of stacked arrays [L,...] or as a tuple of L trees, for L layers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache

import jax
import numpy as np

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.transformer import Layer


def split_layers(params: PyTree) -> PyTree:
    """Return parameters with one tree of stacked layers [L,...] split into L trees of arrays [...].

    This serves decoding on GPUs. If a loop of decode steps slices stacked arrays, XLA copies every layer's weights in
    each step. Parameters that are already split are returned unchanged.
    """
    if isinstance(params["layers"], tuple):
        return params
    leaves, tree = jax.tree.flatten(params["layers"])
    layers = zip(*map(take_layers, leaves), strict=True)
    return {**params, "layers": tuple(jax.tree.unflatten(tree, layer) for layer in layers)}


def take_layers(stacked: jax.Array) -> list[jax.Array]:
    """Return the layers [...] of a stacked array [L,...], with the same sharding."""
    take = _make_layer_taker(_without_layers(getattr(stacked, "sharding", None)))
    return [take(stacked, np.int32(i)) for i in range(stacked.shape[0])]


def abstract_layers(params: PyTree) -> PyTree:
    """Apply `split_layers` to stacked abstract parameters (ShapeDtypeStruct) with shardings."""

    def layer_leaf(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=_without_layers(leaf.sharding))

    n_layers = jax.tree.leaves(params["layers"])[0].shape[0]
    return {**params, "layers": (jax.tree.map(layer_leaf, params["layers"]),) * n_layers}


def _without_layers(sharding: jax.sharding.Sharding | None) -> jax.sharding.Sharding | None:
    """Return the sharding of one layer of a stacked array with this sharding.

    For an array that is not on a mesh it is None, and the compiler decides.
    """
    if isinstance(sharding, jax.NamedSharding):
        return jax.NamedSharding(sharding.mesh, jax.P(*sharding.spec[1:]))
    return None


@lru_cache(maxsize=16)
def _make_layer_taker(sharding: jax.sharding.Sharding | None) -> Callable[[jax.Array, np.int32], jax.Array]:
    """Return a jitted function that indexes a stacked array with the index as an argument.

    So all layers share one program per shape, which compiles quickly.
    """

    def take_layer(stacked: jax.Array, i: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(stacked, i, keepdims=False)

    return jax.jit(take_layer, out_shardings=sharding)


def layer_of(params: PyTree, i: int) -> Layer:
    """Return layer i of parameters, stacked or not."""
    layers = params["layers"]
    layer: Layer = layers[i] if isinstance(layers, tuple) else jax.tree.map(operator.itemgetter(i), layers)
    return layer
