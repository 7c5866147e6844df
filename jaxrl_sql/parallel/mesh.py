"""The mesh: the devices of all processes as axes `data`, `fsdp`, `tensor`.

`data` replicates the weights and splits the batch; `fsdp` splits both; `tensor` splits heads and MLP of each layer. For
rollouts the same devices may form a second mesh of several replicas, each with a full copy of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.types import InputError

AXES = ("data", "fsdp", "tensor")


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh over `devices` (default: all); one size may be -1, for all remaining devices.

    Its axes have JAX's type Auto: the compiler propagates shardings. Raises InputError when the sizes do not multiply
    to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = dict(zip(AXES, (data, fsdp, tensor), strict=True))
    layout = " x ".join(f"{name}={size}" for name, size in sizes.items())
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise InputError(f"mesh: {layout}: sizes must be at least 1, and one of them may be -1")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if len(devices) % fixed or (not free and fixed != len(devices)):
        needed = f"{'a multiple of ' if free else ''}{quantity(fixed, 'devices')}"
        raise InputError(
            f"mesh: {layout} does not multiply to {quantity(len(devices), 'devices')} ({devices[0].platform}): set "
            f"mesh.data=-1 mesh.fsdp=1 mesh.tensor=1, or use {needed}"
        )
    if free:
        sizes[free[0]] = len(devices) // fixed
    shape = tuple(sizes.values())
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def replica_grid(mesh: Mesh, replicas: int, tensor: int) -> Mesh:
    """Return a mesh of the same devices for `replicas` copies of the weights: data=replicas, fsdp=1, tensor=tensor.

    Raises InputError if replicas x tensor is not the number of devices, or a copy would span several processes.
    """
    devices, layout = mesh.devices.reshape(-1), f"rollout.mesh={replicas}x{tensor}"
    if min(replicas, tensor) < 1 or replicas * tensor != devices.size:
        raise InputError(
            f"{layout}: replicas x tensor does not multiply to {quantity(devices.size, 'devices')}; try "
            f"rollout.mesh={devices.size}x1"
        )
    grid = devices.reshape(replicas, 1, tensor)
    if any(len({device.process_index for device in copy.flat}) > 1 for copy in grid):
        num_local = len(mesh.local_devices)
        raise InputError(
            f"{layout}: a replica of {tensor} devices would span several processes, which have {num_local} each: take "
            f"rollout.mesh={devices.size // num_local}x{num_local} or smaller replicas"
        )
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def local_replicas(grid: Mesh) -> list[tuple[int, Mesh]]:
    """Return (index, mesh) of each replica of a `replica_grid` that is on this process's devices."""
    local_process = jax.process_index()
    return [
        (index, Mesh(copy[None], AXES, axis_types=(AxisType.Auto,) * len(AXES)))
        for index, copy in enumerate(grid.devices)
        if copy.flat[0].process_index == local_process
    ]
