"""Meshes and the rule table: errors name size, dimension and axes; one device changes nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, param_shardings, param_specs, shard_params
from jaxrl_sql.parallel import batch_sharding, constrain, make_mesh, shard_batch
from jaxrl_sql.parallel.rules import RULES, num_logit_shards, spec_of
from jaxrl_sql.types import InputError

CONFIG = ModelConfig("qwen3", 50, 24, 2, 4, 2, 8, 40, Rope(1e4), Norms(), False, True, True, 64)


def abstract(data: int, fsdp: int, tensor: int) -> AbstractMesh:
    """Return an abstract mesh of more devices than a test has."""
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def test_mesh_axis_of_minus_one_takes_the_remaining_devices() -> None:
    mesh = make_mesh(data=-1)
    assert dict(mesh.shape) == {"data": len(jax.devices()), "fsdp": 1, "tensor": 1}
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert dict(make_mesh(1, 1, -1, devices=jax.devices()[:1]).shape) == {"data": 1, "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 3, 1), r"data=1 x fsdp=3 x tensor=1 .* to 1 device \(.*\): .* mesh.tensor=1, or use 3 devices$"),
        ((-1, 2, 1), r"data=-1 x fsdp=2 x tensor=1 does not multiply .* or use a multiple of 2 devices$"),
        ((-1, -1, 1), r"one of them may be -1"),
        ((0, 1, 1), r"at least 1"),
    ],
)
def test_invalid_mesh_sizes_are_rejected(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_mesh(*sizes, devices=jax.devices()[:1])


def test_logits_are_sharded_by_prompts_and_a_divisible_vocabulary() -> None:
    """Logit memory per device must count both axes: otherwise 1x2x4 recomputes the logits in four pieces."""
    sizes = {"data": 1, "fsdp": 2, "tensor": 4}
    assert (num_logit_shards(152, sizes), num_logit_shards(150, sizes), num_logit_shards(152)) == (8, 2, 1)
    with jax.sharding.use_abstract_mesh(abstract(1, 2, 4)):
        assert num_logit_shards(152) == 8


def test_every_logical_axis_of_the_weights_has_a_rule() -> None:
    assert {axis for spec in param_specs(CONFIG) for axis in spec.axes} <= RULES.keys()


def test_weights_are_sharded_by_the_rule_table() -> None:
    mesh = abstract(2, 4, 2)
    by_name = {spec.name: spec_of(mesh, spec.axes, spec.shape, spec.name) for spec in param_specs(CONFIG)}
    assert by_name["layers/q"] == P(None, ("fsdp",), ("tensor",), None)
    assert by_name["layers/o"] == P(None, ("tensor",), None, ("fsdp",))
    assert by_name["layers/gate"] == P(None, ("fsdp",), ("tensor",))
    assert by_name["embed"] == P(("tensor",), ("fsdp",))
    assert by_name["layers/q_norm"] == P(None, None)


def test_indivisible_dimension_is_replicated_or_rejected_by_name() -> None:
    mesh = abstract(1, 1, 4)
    assert spec_of(mesh, ("width", "kv_heads", "head"), (24, 2, 8)) == P(None, None, None)
    with pytest.raises(InputError, match=r"layers/gate: dimension mlp of size 42 is not divisible by tensor=4"):
        spec_of(mesh, ("width", "mlp"), (24, 42), "layers/gate")
    with pytest.raises(InputError, match=r"batch: dimension batch of size 6 is not divisible by data=2 x fsdp=2"):
        spec_of(abstract(2, 2, 1), ("batch",), (6,), "batch")


def test_one_device_changes_no_value() -> None:
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    params = init_params(CONFIG, jax.random.key(0))
    placed = shard_params(params, CONFIG, mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    assert jax.tree.structure(param_shardings(CONFIG, mesh)) == jax.tree.structure(params)
    batch = shard_batch({"tokens": jnp.arange(6).reshape(2, 3)}, mesh)
    assert batch["tokens"].sharding == batch_sharding(mesh)


def test_constrain_without_a_mesh_does_nothing() -> None:
    x = jnp.ones((3, 2))
    assert constrain(x, ("batch", "none")) is x
