"""The choice of rollout replicas: those that fit, the fastest of them, or the training mesh."""

from __future__ import annotations

import dataclasses

import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.shapes import published_config
from jaxrl_sql.parallel.rules import AnyMesh
from jaxrl_sql.planning.chips import CHIPS, find_topology
from jaxrl_sql.planning.layout import Machine, client_layout, with_layout
from jaxrl_sql.planning.memory import PlannedModel, abstract_mesh, estimate
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.workload import engine_config, find_workload, with_parts
from jaxrl_sql.types import InputError

SEVEN = published_config("qwen2.5-coder-7b")
MESH = abstract_mesh(1, 8, 4)
V5P = Machine("tpu", 4, CHIPS["v5p"].memory, CHIPS["v5p"])


def arctic(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, "configs/arctic.yaml", ["grpo.gradient_accumulation_steps=16", *overrides])


def chosen(machine: Machine, *overrides: str, needs_replicas: bool = False) -> str:
    return layout(arctic(*overrides), SEVEN, MESH, machine, needs_replicas)


def layout(
    config: TrainConfig, shape: ModelConfig, mesh: AnyMesh, machine: Machine, needs_replicas: bool = False
) -> str:
    sections = config.workload(8192)
    return with_layout(sections, PlannedModel(config.model, shape), mesh, machine, needs_replicas).mesh


def test_fastest_replicas_that_fit_are_chosen() -> None:
    assert chosen(V5P) == "8x4"
    assert chosen(V5P._replace(devices_per_process=2)) == "16x2"
    assert chosen(V5P._replace(chip=None)) == "32x1", "a chip without data has larger replicas than necessary"
    # 15 GB of weights per replica: a chip with 24 GB has room for half of them next to the training state, not for all.
    assert chosen(V5P._replace(memory=24 << 30, chip=None)) in {"16x2", "8x4"}
    assert chosen(V5P._replace(memory=16 << 30)) == "training"


def test_training_mesh_samples_if_it_is_faster() -> None:
    """Think2SQL's 4B on 16 chips of 16 GB: with XLA, which reads whole pools, 4 x 4 would take a third longer."""
    config = load_config(TrainConfig, ["configs/think2sql.yaml", "configs/on/v5e_4x4.yaml"], ["model.shape=qwen3-4b"])
    v5e, shape = Machine("tpu", 4, CHIPS["v5e"].memory, CHIPS["v5e"]), published_config("qwen3-4b")

    def mesh_of(config: TrainConfig, needs_replicas: bool = False) -> str:
        return layout(config, shape, abstract_mesh(1, 2, 8), v5e, needs_replicas)

    sft, grpo = with_parts(config.sft, config.grpo, 2)
    config = dataclasses.replace(config, sft=sft, grpo=grpo)
    assert mesh_of(config) == "training"
    assert mesh_of(config, needs_replicas=True) == "4x4"
    by_kernel = dataclasses.replace(config.rollout, attention="pallas")
    assert mesh_of(dataclasses.replace(config, rollout=by_kernel)) == "4x4"


def test_cpus_and_single_devices_sample_on_the_training_mesh() -> None:
    cpu = Machine("cpu", 8, 64 << 30, None)
    assert chosen(cpu) == "training"
    assert chosen(cpu, needs_replicas=True) == "32x1", "several turns on several processes have no replicas"
    assert layout(arctic(), SEVEN, abstract_mesh(1, 1, 1), V5P) == "training"
    assert chosen(V5P, "rollout.mesh=training") == "training"


def test_configured_replicas_are_used_or_rejected() -> None:
    assert chosen(V5P, "rollout.mesh=16x2") == "16x2"
    with pytest.raises(InputError, match=r"rollout\.mesh=32x1: with a replica .* needs .* GiB and has 16"):
        chosen(V5P._replace(memory=16 << 30), "rollout.mesh=32x1")
    with pytest.raises(InputError, match="heads"):
        chosen(V5P, "rollout.mesh=4x8")
    with pytest.raises(InputError, match=r"rollout\.mesh='8' must be auto, training, or replicas"):
        arctic("rollout.mesh=8")


def test_replica_has_its_share_of_slots_and_questions() -> None:
    config = arctic("rollout.mesh=8x4", "rollout.max_num_seqs=100")
    engine = engine_config(config.rollout, 100, 8192, 8)
    assert (engine.max_num_seqs, engine.num_shards) == (13, 1)
    work = find_workload(config.model, config.workload(8192), 8)
    assert work.rollout is not None
    config_of_calls = engine.for_calls([8192], groups=32, samples=16)
    assert (work.rollout.questions, work.rollout.group, work.rollout.config) == (32, 16, config_of_calls)


def test_inference_policy_has_the_smallest_replicas_that_fit() -> None:
    config = arctic("model.dtype=bfloat16")

    def mesh_of(memory: int) -> str:
        model, machine = PlannedModel(config.model, SEVEN), V5P._replace(memory=memory)
        return client_layout(config.rollout, model, MESH, machine).mesh

    assert mesh_of(80 << 30) == "32x1"
    assert mesh_of(24 << 30) == "16x2"
    # A replica on two chips takes 7.1 GiB of each, and its source 0.4. The sum is over three fifths of 12 GiB.
    assert mesh_of(13 << 30) == "16x2"
    assert mesh_of(12 << 30) == "8x4"
    assert mesh_of(6 << 30) == "training"
    config = arctic("model.dtype=bfloat16", "model.compute_dtype=float32")  # replicas use the compute dtype
    assert (mesh_of(25 << 30), mesh_of(24 << 30)) == ("16x2", "8x4")


def plan(*overrides: str) -> Plan:
    config = arctic(*overrides)
    sections, model = config.workload(8192), PlannedModel(config.model, SEVEN)
    return make_plan(sections, model, find_topology("v5p:4x4x2"), mesh_sizes("1x8x4", 32))


def test_plan_counts_replicas_and_their_weights() -> None:
    """A decode step communicates with no other replica, and every chip reads its shard of a replica."""
    item, copies = plan("rollout.mesh=training"), plan("rollout.mesh=32x1")
    assert [phase.name for phase in copies.phases] == ["weights", "prefill", "decode", "score", "update"]
    result = {phase.name: phase.cost for phase in copies.phases}
    assert result["decode"].link == 0 == result["decode"].waits
    assert result["weights"].link == pytest.approx(2 * 7.6156e9 * 31 / 32, rel=0.01)
    assert result["decode"].hbm > 2 * 7.07e9
    assert copies.memory.rollout_weights > 2 * 7.6156e9 > item.memory.rollout_weights
    assert copies.memory.weights == item.memory.weights
    same = {phase.name: phase for phase in item.phases}
    assert all(phase == same[phase.name] for phase in copies.phases if phase.name in {"score", "update"})
    assert copies.tokens == item.tokens == 256 * 16 * 4096
    assert copies.seconds < 0.6 * item.seconds
    config = arctic("rollout.mesh=32x1")
    work = find_workload(config.model, config.workload(8192), 8)
    assert estimate(PlannedModel(config.model, SEVEN), MESH, work).caches == copies.memory.caches
