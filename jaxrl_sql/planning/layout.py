"""The layout of a rollout (`rollout.mesh`): how many copies of the model sample answers, each over how many devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.parallel.rules import AnyMesh
from jaxrl_sql.planning.chips import Chip
from jaxrl_sql.planning.memory import client_weights, estimate, with_kv_budget
from jaxrl_sql.planning.roofline import SAMPLING, phases
from jaxrl_sql.planning.units import in_bytes
from jaxrl_sql.planning.workload import find_workload, rollout_grid
from jaxrl_sql.types import InputError


class Machine(NamedTuple):
    """What a layout is chosen for: the platform, devices a process has, bytes a device has (0: unknown), and its chip.

    Where nothing is known of the chip (None), the smallest copies that fit are taken.
    """

    platform: str
    local: int
    memory: int
    chip: Chip | None


def with_layout(
    config: TrainConfig, model: ModelConfig, mesh: AnyMesh, longest: int, machine: Machine, is_shared: bool = False
) -> TrainConfig:
    """Return a configuration whose `rollout.mesh` is no longer `auto`.

    Of the copies that fit and the training mesh that is taken whose phases of sampling take least by formula. Where no
    copies fit, on one device, and on processors, which share their cores, it is the training mesh; with several turns
    on several processes (`is_shared`) it has to be copies. Raises InputError for copies that do not fit, that the
    devices do not make up, or that do not divide the model's heads.
    """
    count, grid = math.prod(mesh.shape.values()), rollout_grid(config)
    if grid is not None:
        need = _need(config, model, mesh, longest, machine)
        if machine.memory and need > machine.memory:
            raise InputError(
                f"rollout.mesh={config.rollout.mesh}: with a copy of the model a device needs {in_bytes(need)} and has "
                f"{in_bytes(machine.memory)}: take fewer replicas of more devices, or rollout.mesh=training"
            )
        return config
    if config.rollout.mesh == "training":
        return config
    if count == 1 or (machine.platform == "cpu" and not is_shared):
        return _with(config, "training")
    found = {}
    for tensor in _divisors(math.gcd(count, machine.local)):
        made = _with(config, f"{count // tensor}x{tensor}")
        try:
            need = _need(made, model, mesh, longest, machine)
        except InputError:  # heads that so many devices do not divide
            continue
        if not machine.memory or need <= machine.memory:
            found[tensor] = made
    if not found:
        return _with(config, "training")
    chip = machine.chip
    if chip is None:
        return found[min(found)]
    candidates = [*found.values(), *([] if is_shared else [_with(config, "training")])]
    return min(candidates, key=lambda one: _seconds(one, model, mesh.shape, longest, chip))


def client_layout(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, machine: Machine) -> TrainConfig:
    """Return a configuration whose `rollout.mesh` is not `auto`, for a policy that is sampled from and not trained.

    It is the smallest copies whose weights leave a device's share `rollout.memory` to their KV cache.
    """
    count = math.prod(mesh.shape.values())
    if config.rollout.mesh != "auto":
        return config
    if count == 1 or machine.platform == "cpu":
        return _with(config, "training")
    for tensor in _divisors(math.gcd(count, machine.local)):
        copies = _with(config, f"{count // tensor}x{tensor}")
        try:
            need = client_weights(copies, model, mesh)
        except InputError:
            continue
        if not machine.memory or need <= (1 - config.rollout.memory) * machine.memory:
            return copies
    return _with(config, "training")


def _with(config: TrainConfig, layout: str) -> TrainConfig:
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, mesh=layout))


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _need(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, longest: int, machine: Machine) -> int:
    """Return the bytes that the fullest device would hold with its KV cache."""
    return estimate(with_kv_budget(config, model, mesh, longest, machine.memory), model, mesh, longest).total


def _seconds(config: TrainConfig, model: ModelConfig, sizes: Mapping[str, int], longest: int, chip: Chip) -> float:
    """Return the least seconds that a step's phases of sampling take."""
    work = find_workload(config, longest, math.prod(sizes[axis] for axis in ("data", "fsdp")))
    return sum(phase.seconds(chip) for phase in phases(config, model, sizes, work) if phase.name in SAMPLING)
