"""The layers of parameters: one tree of stacked arrays [L,...], or L trees, a layer each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache

import jax
import numpy as np

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.transformer import Layer


def split_layers(params: PyTree) -> PyTree:
    """Return parameters whose layers are L trees, [...] each, in place of one tree of stacked arrays [L,...].

    A loop of decode steps that slices stacked arrays copies every layer's weights in every step (XLA on GPUs does).
    Parameters that are split already are returned as they are.
    """
    if isinstance(params["layers"], tuple):
        return params
    leaves, tree = jax.tree.flatten(params["layers"])
    layers = zip(*map(take_layers, leaves), strict=True)
    return {**params, "layers": tuple(jax.tree.unflatten(tree, layer) for layer in layers)}


def take_layers(stacked: jax.Array) -> list[jax.Array]:
    """Return the layers [...] of a stacked array [L,...], each where the array lies."""
    take = _taker(_without_layers(getattr(stacked, "sharding", None)))
    return [take(stacked, np.int32(i)) for i in range(stacked.shape[0])]


def abstract_layers(params: PyTree) -> PyTree:
    """Return what `split_layers` makes of abstract parameters with shardings."""

    def one(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=_without_layers(leaf.sharding))

    count = jax.tree.leaves(params["layers"])[0].shape[0]
    return {**params, "layers": (jax.tree.map(one, params["layers"]),) * count}


def _without_layers(sharding: jax.sharding.Sharding | None) -> jax.sharding.Sharding | None:
    """Return where a layer of a stacked array lies; None, where the compiler puts it, for one that is on no mesh."""
    if isinstance(sharding, jax.NamedSharding):
        return jax.NamedSharding(sharding.mesh, jax.P(*sharding.spec[1:]))
    return None


@lru_cache(maxsize=16)
def _taker(place: jax.sharding.Sharding | None) -> Callable[[jax.Array, np.int32], jax.Array]:
    """Return what takes a layer of a stacked array; one program a shape, where one of all layers compiles for long."""

    def take_layer(stacked: jax.Array, i: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(stacked, i, keepdims=False)

    return jax.jit(take_layer, out_shardings=place)


def layer_of(params: PyTree, i: int) -> Layer:
    """Return layer i of parameters, stacked or not."""
    layers = params["layers"]
    layer: Layer = layers[i] if isinstance(layers, tuple) else jax.tree.map(operator.itemgetter(i), layers)
    return layer
