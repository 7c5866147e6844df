"""Choose the layout of a rollout (`rollout.mesh`): the number of engine replicas, and the devices of each.

The layout is "training" (one engine on the training mesh), "RxT" (R replicas, each with a copy of the weights on T
devices), or "auto", which this module replaces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from jaxrl_sql.config import RolloutConfig, WorkloadSections
from jaxrl_sql.parallel.rules import AnyMesh, num_batch_shards
from jaxrl_sql.planning.chips import Chip
from jaxrl_sql.planning.memory import PlannedModel, estimate, inference_weights, with_kv_budget
from jaxrl_sql.planning.roofline import SAMPLING, phases
from jaxrl_sql.planning.units import format_bytes
from jaxrl_sql.planning.workload import find_workload, rollout_grid
from jaxrl_sql.types import InputError


class Machine(NamedTuple):
    """The devices of a run.

    platform: JAX's name; devices_per_process: a replica's devices belong to one process; memory: bytes per device (0:
    unknown); chip: figures of a device (None: unknown). If the chip is unknown, the smallest replicas that fit are
    chosen.
    """

    platform: str
    devices_per_process: int
    memory: int
    chip: Chip | None


def with_layout(
    sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, machine: Machine, needs_replicas: bool = False
) -> RolloutConfig:
    """Return the rollout section with `mesh` "auto" replaced.

    The choice is the layout with the fastest sampling phases by formula, among replicas that fit and the training mesh.
    It is the training mesh if no replicas fit, on one device, and on CPUs, whose devices share the cores. Multi-turn
    rollouts on several processes need replicas (`needs_replicas`). Raises InputError if the section's replicas do not
    fit, if their devices do not add up, or if they do not divide the model's heads.
    """
    rollout, num_devices = sections.rollout, math.prod(mesh.shape.values())
    if rollout_grid(rollout) is not None:
        device_bytes = _device_bytes(sections, model, mesh, machine)
        if machine.memory and device_bytes > machine.memory:
            raise InputError(
                f"rollout.mesh={rollout.mesh}: with a replica of the model a device needs {format_bytes(device_bytes)} "
                f"and has {format_bytes(machine.memory)}: use fewer replicas with more devices, or "
                "rollout.mesh=training"
            )
        return rollout
    training = replace(rollout, mesh="training")
    if rollout == training or num_devices == 1 or (machine.platform == "cpu" and not needs_replicas):
        return training
    fitting = {}
    for tensor in _divisors(math.gcd(num_devices, machine.devices_per_process)):
        replicas = replace(rollout, mesh=f"{num_devices // tensor}x{tensor}")
        try:
            device_bytes = _device_bytes(sections._replace(rollout=replicas), model, mesh, machine)
        except InputError:  # this number of devices does not divide the heads
            continue
        if not machine.memory or device_bytes <= machine.memory:
            fitting[tensor] = replicas
    if not fitting:
        return training
    chip = machine.chip
    if chip is None:
        return fitting[min(fitting)]
    candidates = [*fitting.values(), *([] if needs_replicas else [training])]
    return min(candidates, key=lambda layout: _seconds(sections._replace(rollout=layout), model, mesh.shape, chip))


def client_layout(rollout: RolloutConfig, model: PlannedModel, mesh: AnyMesh, machine: Machine) -> RolloutConfig:
    """Return the rollout section with `mesh` "auto" replaced, for a policy that is not trained.

    The choice is the smallest replicas whose weights leave the share `rollout.memory` of a device to their KV cache.
    """
    num_devices = math.prod(mesh.shape.values())
    if rollout.mesh != "auto":
        return rollout
    if num_devices > 1 and machine.platform != "cpu":
        for tensor in _divisors(math.gcd(num_devices, machine.devices_per_process)):
            try:
                weight_bytes = inference_weights(model, mesh, (num_devices // tensor, tensor))
            except InputError:  # this number of devices does not divide the heads
                continue
            if not machine.memory or weight_bytes <= (1 - rollout.memory) * machine.memory:
                return replace(rollout, mesh=f"{num_devices // tensor}x{tensor}")
    return replace(rollout, mesh="training")


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _device_bytes(sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, machine: Machine) -> int:
    """Return the peak bytes on the fullest device, with its KV cache."""
    sections = sections._replace(rollout=with_kv_budget(sections, model, mesh, machine.memory))
    return estimate(model, mesh, find_workload(model.section, sections, num_batch_shards(mesh.shape))).total


def _seconds(sections: WorkloadSections, model: PlannedModel, sizes: Mapping[str, int], chip: Chip) -> float:
    """Return the minimum seconds of a step's sampling phases."""
    work = find_workload(model.section, sections, num_batch_shards(sizes))
    return sum(phase.seconds(chip) for phase in phases(model, sizes, work) if phase.name in SAMPLING)
