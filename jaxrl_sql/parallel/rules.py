"""The one table from logical axes to mesh axes, and what follows from it.

Weights and activations name their dimensions (`width`, `heads`, `batch`, …); this table alone says over which mesh
axes each is split. A dimension that its mesh axes do not divide is an error that names it, except where the table
says that it is then copied instead: few key heads on a wide `tensor` axis are cheap to copy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_sql.batch import PyTree
from jaxrl_sql.types import InputError


class Rule(NamedTuple):
    """Mesh axes that split a logical axis, and whether it is copied instead where they do not divide it."""

    mesh_axes: tuple[str, ...]
    is_optional: bool = False


RULES: dict[str, Rule] = {
    # of weights
    "layers": Rule(()),
    "vocab": Rule(("tensor",), is_optional=True),
    "width": Rule(("fsdp",)),
    "heads": Rule(("tensor",)),
    "kv_heads": Rule(("tensor",), is_optional=True),
    "head": Rule(()),
    "mlp": Rule(("tensor",)),
    "rank": Rule(()),
    # of activations
    "batch": Rule(("data", "fsdp")),
    "none": Rule(()),
}


def spec_of(mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...], what: str = "array") -> P:
    """Return the PartitionSpec of an array whose dimensions have these logical axes and sizes.

    Raises InputError naming `what`, the dimension and the mesh axes that do not divide it.
    """
    parts: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        rule = RULES[axis]
        ways = math.prod(mesh.shape[name] for name in rule.mesh_axes)
        if size % ways == 0:
            parts.append(rule.mesh_axes if ways > 1 else None)
        elif rule.is_optional:
            parts.append(None)
        else:
            over = " x ".join(f"{name}={mesh.shape[name]}" for name in rule.mesh_axes)
            raise InputError(f"mesh: {what}: dimension {axis} of size {size} is not divided by {over}")
    return P(*parts)


def sharding_of(mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...], what: str = "array") -> NamedSharding:
    """Return the sharding of an array on `mesh`, by the table; raises InputError as `spec_of` does."""
    return NamedSharding(mesh, spec_of(mesh, axes, shape, what))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of batch arrays: the first dimension, B, over `data` and `fsdp`."""
    return NamedSharding(mesh, P(RULES["batch"].mesh_axes))


def batch_ways() -> int:
    """Return into how many parts the mesh that `jax.set_mesh` has set cuts a batch; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[name] for name in RULES["batch"].mesh_axes if name in mesh.shape)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of what every device holds whole."""
    return NamedSharding(mesh, P())


def shard_batch(batch: PyTree, mesh: Mesh) -> PyTree:
    """Put a batch, every leaf of which has B first, on the mesh; raises InputError when B is not divided."""
    for leaf in jax.tree.leaves(batch):
        spec_of(mesh, ("batch",), leaf.shape[:1], "batch")
    return jax.device_put(batch, batch_sharding(mesh))


def split_of(mesh: Mesh | jax.sharding.AbstractMesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> P:
    """Return the PartitionSpec of an activation: dimensions that their mesh axes do not divide are not split."""
    parts = []
    for axis, size in zip(axes, shape, strict=True):
        names = tuple(name for name in RULES[axis].mesh_axes if name in mesh.shape)
        ways = math.prod(mesh.shape[name] for name in names)
        parts.append(names if ways > 1 and size % ways == 0 else None)
    return P(*parts)


def constrain(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Pin an activation to its sharding on the mesh that `jax.set_mesh` has set; without a mesh, do nothing.

    Dimensions that their mesh axes do not divide are left to the compiler: activations are never refused.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else jax.lax.with_sharding_constraint(x, split_of(mesh, axes, x.shape))
