"""Names of topologies and of meshes on their chips."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jaxrl_sql.planning.chips import CHIPS, find_chip, find_topology
from jaxrl_sql.planning.plan import mesh_sizes
from jaxrl_sql.types import InputError


@pytest.mark.parametrize(
    ("name", "chips", "kind"), [("v5e:4x8", 32, "tpu"), ("v5p:4x4x4", 64, "tpu"), ("h100:8", 8, "gpu")]
)
def test_topology_names_its_chips(name: str, chips: int, kind: str) -> None:
    topology = find_topology(name)
    assert (topology.chips, topology.platform) == (chips, kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L40S", ""),
    ],
)
def test_name_of_a_gpu_names_its_figures(name: str, kind: str) -> None:
    device = SimpleNamespace(platform="gpu", device_kind=name)
    assert find_chip(device) == (CHIPS[kind] if kind else None)


@pytest.mark.parametrize("name", ["v5x:2x2", "v5e", "v5e:2", "v5p:4x4", "v5e:0x4", "h100:2x2", "v5e:axb"])
def test_unknown_topology_is_rejected_with_the_valid_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"known are v5e:2x2, .*cpu"):
        find_topology(name)


@pytest.mark.parametrize("text", ["1x3x1", "4", "1x1x-2", "-1x-1x1", "3x-1x1", "1x4x1x1", "axbxc"])
def test_mesh_that_does_not_match_the_chips_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=f"--mesh {text}"):
        mesh_sizes(text, 4)


def test_mesh_may_infer_one_axis() -> None:
    assert mesh_sizes("1x-1x2", 8) == {"data": 1, "fsdp": 4, "tensor": 2}
