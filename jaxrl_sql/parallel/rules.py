"""Logical axis rules: the table from logical axes to mesh axes, and the shardings derived from it.

Weights and activations name their dimensions (`width`, `heads`, `batch`, …), and the table maps each to mesh axes. It
is an error if the mesh axes do not divide a dimension, unless the rule is optional: then the dimension is replicated.
For example, few key heads on a wide `tensor` axis are cheap to replicate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_sql.batch import PyTree
from jaxrl_sql.types import InputError

# An AbstractMesh has no devices and suffices for compilation.
AnyMesh = Mesh | AbstractMesh


class AxisRule(NamedTuple):
    """Mesh axes that split a logical axis; if `is_optional`, it is replicated when they do not divide it."""

    mesh_axes: tuple[str, ...]
    is_optional: bool = False


RULES: dict[str, AxisRule] = {
    # Axes of weights.
    "layers": AxisRule(()),
    "vocab": AxisRule(("tensor",), is_optional=True),
    "width": AxisRule(("fsdp",)),  # of the residual stream
    "heads": AxisRule(("tensor",)),
    "kv_heads": AxisRule(("tensor",), is_optional=True),
    "head": AxisRule(()),  # coordinates of a head
    "mlp": AxisRule(("tensor",)),  # inner width of the MLP
    "rank": AxisRule(()),  # of LoRA adapters
    # Axes of activations.
    "batch": AxisRule(("data", "fsdp")),  # prompts, or KV blocks
    "sequence": AxisRule(("tensor",), is_optional=True),  # tokens, between layers
    "none": AxisRule(()),
}


def spec_of(mesh: AnyMesh, axes: tuple[str, ...], shape: tuple[int, ...], what: str = "array") -> P:
    """Return the PartitionSpec of an array whose dimensions have these logical axes and sizes.

    Raises InputError naming `what`, the dimension and the mesh axes that do not divide it.
    """
    parts: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        rule = RULES[axis]
        num_shards = math.prod(mesh.shape[name] for name in rule.mesh_axes)
        if size % num_shards == 0:
            parts.append(rule.mesh_axes if num_shards > 1 else None)
        elif rule.is_optional:
            parts.append(None)
        else:
            over = " x ".join(f"{name}={mesh.shape[name]}" for name in rule.mesh_axes)
            valid = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
            raise InputError(
                f"mesh: {what}: dimension {axis} of size {size} is not divisible by {over}; valid: {valid}"
            )
    return P(*parts)


def sharding_of(mesh: AnyMesh, axes: tuple[str, ...], shape: tuple[int, ...], what: str = "array") -> NamedSharding:
    """Return the sharding of an array on `mesh`, by the table; raises InputError as `spec_of` does."""
    return NamedSharding(mesh, spec_of(mesh, axes, shape, what))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of batch arrays: the first dimension, B, over `data` and `fsdp`."""
    return NamedSharding(mesh, P(RULES["batch"].mesh_axes))


def num_batch_shards(sizes: Mapping[str, int] | None = None) -> int:
    """Return the number of shards of a batch on a mesh.

    sizes: number of devices by mesh axis; None: those of the mesh of `jax.set_mesh`. The result is 1 without a mesh.
    """
    sizes = jax.sharding.get_abstract_mesh().shape if sizes is None else sizes
    return math.prod(sizes[name] for name in RULES["batch"].mesh_axes if name in sizes)


def num_logit_shards(vocab: int, sizes: Mapping[str, int] | None = None) -> int:
    """Return the number of shards of logits [B,G,T,V]: over B, and over V = `vocab` if the mesh axes divide it.

    `sizes` is as in `num_batch_shards`.
    """
    sizes = jax.sharding.get_abstract_mesh().shape if sizes is None else sizes
    tensor = math.prod(sizes[name] for name in RULES["vocab"].mesh_axes if name in sizes)
    return num_batch_shards(sizes) * (tensor if vocab % tensor == 0 else 1)


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of replicated arrays."""
    return NamedSharding(mesh, P())


def place(tree: PyTree, shardings: PyTree) -> PyTree:
    """Put arrays on devices; every process of the run has each array in full, and puts the shards of its devices.

    `shardings`: one sharding for all arrays, or a tree of them.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
        array = np.asarray(x)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(lambda x: put(x, shardings), tree)
    return jax.tree.map(put, tree, shardings)


def local_rows(mesh: Mesh, rows: int) -> list[int]:
    """Return the indices, in order, of those of the B = `rows` rows of a batch that are on this process's devices.

    Raises InputError when the mesh does not divide `rows`.
    """
    sharding = sharding_of(mesh, ("batch",), (rows,), "batch")
    indices = sharding.addressable_devices_indices_map((rows,)).values()
    return sorted({row for index in indices if index for row in range(*index[0].indices(rows))})


def shard_batch(batch: PyTree, mesh: Mesh, rows: int = 0) -> PyTree:
    """Put a batch on the mesh; B is the first axis of every leaf. Raises InputError if the mesh does not divide B.

    rows: B if `batch` has only the rows of this process, those that `local_rows` returns; 0 if it has all rows.
    """
    leaves = jax.tree.leaves(batch)
    for size in {rows or leaf.shape[0] for leaf in leaves}:
        spec_of(mesh, ("batch",), (size,), "batch")
    sharding = batch_sharding(mesh)
    if jax.process_count() == 1:
        return jax.device_put(batch, sharding)

    def put(leaf: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, leaf, (rows or leaf.shape[0], *leaf.shape[1:]))

    return jax.tree.map(put, batch)


def split_of(mesh: AnyMesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> P:
    """Return the PartitionSpec of an activation with these logical axes and sizes.

    Dimensions that the mesh axes do not divide are not split.
    """
    parts = []
    for axis, size in zip(axes, shape, strict=True):
        names = tuple(name for name in RULES[axis].mesh_axes if name in mesh.shape)
        num_shards = math.prod(mesh.shape[name] for name in names)
        parts.append(names if num_shards > 1 and size % num_shards == 0 else None)
    return P(*parts)


def constrain(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Constrain an activation to the sharding of its logical axes on the mesh of `jax.set_mesh`.

    Dimensions that the mesh axes do not divide are not split. Without a mesh the function does nothing.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else jax.lax.with_sharding_constraint(x, split_of(mesh, axes, x.shape))
