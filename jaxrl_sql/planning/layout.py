"""Choose the layout of a rollout (`rollout.mesh`): the number of engine replicas, and the devices of each."""

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
    """The machine of a layout: platform, devices per process, bytes per device (0: unknown), and chip.

    If the chip is unknown (None), the smallest replicas that fit are chosen.
    """

    platform: str
    local: int
    memory: int
    chip: Chip | None


def with_layout(
    sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, machine: Machine, needs_replicas: bool = False
) -> RolloutConfig:
    """Return the section with `auto` replaced in `mesh`.

    Among the replicas that fit and the training mesh, the choice is the layout with the fastest sampling phases by
    formula. It is the training mesh if no replicas fit, on one device, and on CPUs, whose devices share the cores.
    Dialogues on several processes (`needs_replicas`) need replicas. Raises InputError for replicas that do not fit,
    whose devices do not add up, or that do not divide the model's heads.
    """
    rollout, count = sections.rollout, math.prod(mesh.shape.values())
    if rollout_grid(rollout) is not None:
        need = _need(sections, model, mesh, machine)
        if machine.memory and need > machine.memory:
            raise InputError(
                f"rollout.mesh={rollout.mesh}: with a replica of the model a device needs {format_bytes(need)} and has "
                f"{format_bytes(machine.memory)}: use fewer replicas with more devices, or rollout.mesh=training"
            )
        return rollout
    training = replace(rollout, mesh="training")
    if rollout == training or count == 1 or (machine.platform == "cpu" and not needs_replicas):
        return training
    fitting = {}
    for tensor in _divisors(math.gcd(count, machine.local)):
        copies = replace(rollout, mesh=f"{count // tensor}x{tensor}")
        try:
            need = _need(sections._replace(rollout=copies), model, mesh, machine)
        except InputError:  # this number of devices does not divide the heads
            continue
        if not machine.memory or need <= machine.memory:
            fitting[tensor] = copies
    if not fitting:
        return training
    chip = machine.chip
    if chip is None:
        return fitting[min(fitting)]
    candidates = [*fitting.values(), *([] if needs_replicas else [training])]
    return min(candidates, key=lambda layout: _seconds(sections._replace(rollout=layout), model, mesh.shape, chip))


def client_layout(rollout: RolloutConfig, model: PlannedModel, mesh: AnyMesh, machine: Machine) -> RolloutConfig:
    """Return the section with `auto` replaced in `mesh`, for a policy that is not trained.

    The choice is the smallest replicas whose weights leave the share `rollout.memory` of a device to their KV cache.
    """
    count = math.prod(mesh.shape.values())
    if rollout.mesh != "auto":
        return rollout
    if count > 1 and machine.platform != "cpu":
        for tensor in _divisors(math.gcd(count, machine.local)):
            try:
                need = inference_weights(model, mesh, (count // tensor, tensor))
            except InputError:
                continue
            if not machine.memory or need <= (1 - rollout.memory) * machine.memory:
                return replace(rollout, mesh=f"{count // tensor}x{tensor}")
    return replace(rollout, mesh="training")


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _need(sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, machine: Machine) -> int:
    """Return the bytes on the fullest device with its KV cache."""
    sections = sections._replace(rollout=with_kv_budget(sections, model, mesh, machine.memory))
    return estimate(model, mesh, find_workload(model.section, sections, num_batch_shards(mesh.shape))).total


def _seconds(sections: WorkloadSections, model: PlannedModel, sizes: Mapping[str, int], chip: Chip) -> float:
    """Return the minimum seconds of a step's sampling phases."""
    work = find_workload(model.section, sections, num_batch_shards(sizes))
    return sum(phase.seconds(chip) for phase in phases(model, sizes, work) if phase.name in SAMPLING)
