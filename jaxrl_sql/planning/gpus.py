"""Descriptions of NVIDIA GPUs for XLA, to compile programs for GPUs on a machine without one.

XLA's GPU compiler comes with JAX's CUDA plugin. With a target in the text form of `GpuTargetConfigProto` it needs no
driver. It does not check memory: no program is refused for its size.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jaxrl_sql.types import InputError, Record

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
CUDNN = (9, 10)
"""The cuDNN version to compile for, because a machine without the library has none to query."""

Rates = Mapping[int, tuple[int, int]]
"""By XLA's number of a dtype (10 float16, 11 float32, 12 float64, 16 bfloat16), the rate of one multiprocessor.

(units, multiplications per clock of each unit).
"""


class Gpu(NamedTuple):
    """A GPU by NVIDIA's data sheet, and the limits of its compute capability by the CUDA programming guide's table.

    capability: compute capability (major, minor).
    clock: GHz; memory: bytes; bandwidth: bytes of memory per second; l2: bytes of the L2 cache.
    shared: KiB of shared memory per multiprocessor.
    links: number of NVLink links.
    vector, matrix: rates of the vector units and of the tensor cores.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock: float
    memory: int
    bandwidth: int
    l2: int
    shared: int
    links: int
    vector: Rates
    matrix: Rates


_AMPERE: tuple[Rates, Rates] = (
    {10: (64, 4), 11: (64, 1), 12: (32, 1), 16: (64, 2)},
    {10: (4, 256), 11: (4, 128), 12: (4, 16), 16: (4, 256)},
)
_HOPPER: tuple[Rates, Rates] = (
    {10: (128, 2), 11: (128, 1), 12: (64, 1), 16: (128, 2)},
    {10: (4, 512), 11: (4, 256), 12: (4, 32), 16: (4, 512)},
)
# Ada's tensor cores have no double precision. With float32 sums, GeForce cards have half the rate of the others.
_ADA_VECTOR: Rates = {10: (128, 1), 11: (128, 1), 12: (2, 1), 16: (128, 1)}
_ADA: tuple[Rates, Rates] = (_ADA_VECTOR, {10: (4, 128), 11: (4, 64), 16: (4, 128)})
_GEFORCE: tuple[Rates, Rates] = (_ADA_VECTOR, {10: (4, 64), 11: (4, 32), 16: (4, 64)})
GPUS: Mapping[str, Gpu] = {
    "a100": Gpu("A100 SXM 80 GB", (8, 0), 108, 1.41, 80 * 10**9, 2039 * 10**9, 40 << 20, 164, 12, *_AMPERE),
    "a100-40gb": Gpu("A100 SXM 40 GB", (8, 0), 108, 1.41, 40 * 10**9, 1555 * 10**9, 40 << 20, 164, 12, *_AMPERE),
    "h100": Gpu("H100 SXM 80 GB", (9, 0), 132, 1.98, 80 * 10**9, 3350 * 10**9, 50 << 20, 228, 18, *_HOPPER),
    "h200": Gpu("H200 SXM 141 GB", (9, 0), 132, 1.98, 141 * 10**9, 4800 * 10**9, 50 << 20, 228, 18, *_HOPPER),
    "l4": Gpu("L4", (8, 9), 58, 2.04, 24 * 10**9, 300 * 10**9, 48 << 20, 100, 0, *_ADA),
    "rtx4090": Gpu("GeForce RTX 4090", (8, 9), 128, 2.52, 24 * 10**9, 1008 * 10**9, 72 << 20, 100, 0, *_GEFORCE),
}
PER_HOST = 8


def target_config(gpu: Gpu) -> str:
    """Return the description of a GPU in the text form of XLA's `GpuTargetConfigProto`."""
    (major, minor), is_hopper = gpu.capability, gpu.capability[0] >= 9
    device: Record = {
        "name": gpu.name,
        "device_vendor": "NVIDIA Corporation",
        "platform_version": f"Compute Capability {major}.{minor}{'a' if is_hopper else ''}",
        "driver_version": "13.0.0",
        "runtime_version": "12.9.0",
        "compile_time_toolkit_version": "12.9.0",
        "dnn_version": f"{CUDNN[0]}.{CUDNN[1]}.0",
        "core_count": gpu.multiprocessors,
        "fpus_per_core": gpu.vector[11][0],  # units for float32
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "memory_bandwidth": gpu.bandwidth,
        "l2_cache_size": gpu.l2,
        "pcie_bandwidth": 32 << 30,
        "device_address_bits": 64,
        "ecc_enabled": True,
        "threads_per_warp": 32,
        "threads_per_block_limit": 1024,
        "threads_per_core_limit": 2048,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "shared_memory_per_core": gpu.shared << 10,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": (gpu.shared - 1) << 10,
    }
    fields = [f"{name}: {_proto_value(value)}" for name, value in device.items()]
    features = " feature_extension: ACCELERATED_FEATURES" if is_hopper else ""
    fields.append(f"cuda_compute_capability {{ major: {major} minor: {minor}{features} }}")
    fields.append(f"device_interconnect_info {{ active_links: {gpu.links} }}")
    for unit, rates in (("scalar", gpu.vector), ("matrix", gpu.matrix)):
        entries = (
            f"rate_infos {{ key: {key} value {{ clock_rate_ghz: {gpu.clock} units_per_core: {units} "
            f"ops_per_clock: {rate} }} }}"
            for key, (units, rate) in rates.items()
        )
        fields.append(f"{unit}_unit_description {{ {' '.join(entries)} }}")
    cudnn = f"dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }}"
    platform = f'platform_name: "CUDA" {cudnn} device_description_str: "{gpu.name}"'
    return f"gpu_device_info {{ {' '.join(fields)} }} {platform}"


def _proto_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def has_compiler() -> bool:
    """Return whether XLA's compiler for GPUs is installed here."""
    return any(importlib.util.find_spec(name) is not None for name in PLUGINS)


def is_absent_gpu(topology: str) -> bool:
    """Return whether a topology consists of absent GPUs for which the compiler here can compile."""
    return topology.partition(":")[0] in GPUS and has_compiler()


def gpu_devices(kind: str, count: int) -> Sequence[Any]:
    """Return `count` GPUs to compile for, eight per host.

    Raises InputError for a number that is not a multiple of whole hosts, and if another GPU plugin of JAX is installed.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and the command line needs other functions

    names = {entry.name for entry in entry_points(group="jax_plugins")}
    plugins = sorted(name for name in names if name.startswith(("xla_cuda", "xla_rocm")))
    if len(plugins) > 1:
        raise InputError(
            f"--topology {kind}:{count}: the JAX plugins {' and '.join(plugins)} are installed, and JAX can compile "
            "with only one: make a separate environment for jaxrl_sql[gpu-plan]"
        )
    if count > PER_HOST and count % PER_HOST:
        raise InputError(f"--topology {kind}:{count}: above {PER_HOST}, the number must be a multiple of {PER_HOST}")
    from jax.experimental import topologies  # noqa: PLC0415 - loads the plugin, which few commands need

    layout = f"1x{max(count // PER_HOST, 1)}x{min(count, PER_HOST)}"  # partitions x hosts x GPUs per host
    target = target_config(GPUS[kind])
    topology: Sequence[Any] = topologies.get_topology_desc(
        platform="cuda", target_config=target, topology=layout
    ).devices
    return topology


def run_in_child(arguments: Sequence[str]) -> int | None:
    """Run `jaxrl-sql` in a child process that compiles for absent GPUs; return its exit code, or None in that child.

    Without a GPU the plugin prints errors unless JAX is restricted to CPUs before it starts. The persistent compilation
    cache cannot load programs for absent GPUs, so it is disabled.
    """
    variables = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    env = os.environ | variables
    if env == os.environ:  # this is the child
        return None
    return subprocess.run([sys.executable, "-m", "jaxrl_sql", *arguments], env=env, check=False).returncode  # noqa: S603 - this command


@contextmanager
def fix_cudnn_version() -> Iterator[None]:
    """Make JAX compile for the version CUDNN of cuDNN instead of querying the library, which is not installed."""
    from unittest.mock import patch  # noqa: PLC0415 - slow, and the command line needs other functions

    function = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    with patch(function, lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100):
        yield


def module_costs(compiled: Any) -> Mapping[str, float]:
    """Return XLA's cost analysis of a program whose compiler provides none, such as the compiler for absent GPUs."""
    import jax  # noqa: PLC0415 - callers that need only names of GPUs do not load it
    from jax._src.lib import _jax  # type: ignore[attr-defined]  # noqa: PLC0415 - JAX has no public API for the analysis of a module

    (module,) = compiled.runtime_executable().hlo_modules()
    costs: Mapping[str, float] = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    return costs
