"""Figures of chips, published or measured here, and the devices of a topology."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_sql.planning import gpus
from jaxrl_sql.types import InputError

GB, GIB = 10**9, 1 << 30
_RUNS = 5


class Chip(NamedTuple):
    """Peak figures of one chip.

    memory: bytes available to a program (0: unknown).
    flops: operations per second, in bfloat16 if the source does not say otherwise.
    hbm: bytes per second to and from the chip's memory.
    link: bytes per second received from other chips over all links.
    dims: numbers after the colon of a topology's name, such as 3 in "v5p:4x4x2"; 0 for GPUs, whose name has a count.
    source: document of the figures, or how they were measured.
    """

    memory: int
    flops: float
    hbm: float
    link: float
    dims: int
    source: str


# Vendors state links as the sum of both directions; a chip receives half. The memory of a TPU is the limit that XLA's
# compiler reports for programs that do not fit, slightly different from the vendor's 16, 95 and 32 GB.
_TPU = "Google Cloud's documentation of TPU"
_NVIDIA = "NVIDIA's data sheet of"
CHIPS: Mapping[str, Chip] = {
    "v5e": Chip(int(15.75 * GIB), 197e12, 819 * GB, 200 * GB, 2, f"{_TPU} v5e"),
    "v5p": Chip(int(95.74 * GIB), 459e12, 2765 * GB, 600 * GB, 3, f"{_TPU} v5p"),
    "v6e": Chip(int(31.25 * GIB), 918e12, 1638 * GB, 400 * GB, 2, f"{_TPU} v6e"),
    "a100": Chip(80 * GB, 312e12, 2039 * GB, 300 * GB, 0, f"{_NVIDIA} A100 80GB SXM"),
    "a100-40gb": Chip(40 * GB, 312e12, 1555 * GB, 300 * GB, 0, f"{_NVIDIA} A100 40GB SXM"),
    "h100": Chip(80 * GB, 989e12, 3350 * GB, 450 * GB, 0, f"{_NVIDIA} H100 SXM"),
    "h200": Chip(141 * GB, 989e12, 4800 * GB, 450 * GB, 0, f"{_NVIDIA} H200 SXM"),
    "l4": Chip(24 * GB, 121e12, 300 * GB, 32 * GB, 0, f"{_NVIDIA} L4, without sparsity"),
    "rtx4090": Chip(24 * GB, 165e12, 1008 * GB, 32 * GB, 0, "NVIDIA's paper on the Ada architecture, without sparsity"),
}
# Chips by the prefix of a TPU's name in JAX, and by the words in a GPU's name; longer names precede shorter ones.
TPU_KINDS = {"TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v6": "v6e"}
GPU_KINDS = {"A100 40GB": "a100-40gb", "A100": "a100", "H100": "h100", "H200": "h200", "L4": "l4", "4090": "rtx4090"}

# Without these, libtpu queries a cloud's metadata server, prints errors, and allows only one process at a time.
LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

LIBTPU_MISSING = "libtpu is not installed: pip install 'jaxrl_sql[tpu-plan]' (it compiles for TPUs without having any)"
KNOWN_TOPOLOGIES = (
    "v5e:2x2, v5e:4x4, v5e:4x8, v5e:8x8, v5e:8x16, v5e:16x16, the same of v6e; v5p:2x2x1, v5p:2x2x2, v5p:2x2x4, "
)
KNOWN_TOPOLOGIES += (
    "v5p:2x4x4, v5p:4x4x2, v5p:4x4x4 and larger; h100:8 (or a100, a100-40gb, h200, l4, rtx4090; any number); "
)
KNOWN_TOPOLOGIES += "gpu and cpu (this machine's)"


class Topology(NamedTuple):
    """A number of chips of one kind; `name` is the value of --topology, such as v5p:4x4x2, h100:8, cpu or gpu."""

    name: str
    chip: Chip
    chips: int
    platform: str

    def devices(self) -> Sequence[Any] | None:
        """Return the devices to compile for, real or absent; None if there are none, so that only formulas apply.

        Raises InputError for TPUs if libtpu is missing or does not know the topology.
        """
        if self.platform == "tpu":
            return _tpu_devices(self.name)
        local_devices = jax.devices()
        if local_devices[0].platform == self.platform and len(local_devices) >= self.chips:
            return local_devices[: self.chips]
        if self.is_absent_gpu:
            return gpus.gpu_devices(self.name.partition(":")[0], self.chips)
        return None

    @property
    def per_host(self) -> int:
        """Return the number of chips per process, which are those of a host: up to eight GPUs or four TPUs."""
        return min(self.chips, {"tpu": 4, "gpu": 8}.get(self.platform, self.chips))

    @property
    def is_absent_gpu(self) -> bool:
        """Return whether these are absent GPUs for which the compiler here can compile."""
        return gpus.is_absent_gpu(self.name)


def find_chip(device: Any) -> Chip | None:
    """Return the figures of a device of this machine; None if unknown, as for CPUs."""
    if device.platform == "tpu":
        kind = next((kind for word, kind in TPU_KINDS.items() if device.device_kind.startswith(word)), None)
    else:
        parts = {*re.split(r"\W", device.device_kind)}
        kind = next((kind for name, kind in GPU_KINDS.items() if parts.issuperset(name.split())), None)
    return CHIPS[kind] if kind else None


def find_topology(name: str) -> Topology:
    """Return the topology of a name such as v5p:4x4x2; raises InputError, with the known names, for another."""
    kind, _, layout = name.partition(":")
    if kind in {"cpu", "gpu"} and not layout:
        return _local_topology(kind)
    chip = CHIPS.get(kind)
    if chip is None or not re.fullmatch(r"\d+(x\d+)*", layout):
        raise InputError(f"--topology {name}: unknown; known are {KNOWN_TOPOLOGIES}")
    sizes = [int(size) for size in layout.split("x")]
    if min(sizes) < 1 or len(sizes) != (chip.dims or 1):
        raise InputError(f"--topology {name}: {kind} has {chip.dims or 1} dimensions; known are {KNOWN_TOPOLOGIES}")
    return Topology(name, chip, math.prod(sizes), "tpu" if chip.dims else "gpu")


def _local_topology(kind: str) -> Topology:
    """Return the devices of this machine as a topology."""
    devices = [device for device in jax.devices() if device.platform == kind]
    if not devices:
        raise InputError(f"--topology {kind}: JAX sees no {kind} here, only {jax.default_backend()}")
    if kind == "gpu":
        chip = find_chip(devices[0])
        if chip is None:
            raise InputError(f"--topology gpu: the figures of {devices[0].device_kind} are unknown")
        limit = int((devices[0].memory_stats() or {}).get("bytes_limit", 0))
        return Topology(kind, chip._replace(memory=limit or chip.memory), len(devices), kind)
    # A process may have several CPU devices, which share the cores and the memory.
    flops, bytes_per_second = (speed / len(devices) for speed in _measure_speeds(devices[0]))
    memory = machine_memory() // len(devices)
    chip = Chip(memory, flops, bytes_per_second, bytes_per_second, 0, "measured here, in float32")
    return Topology(kind, chip, len(devices), kind)


@functools.cache
def _measure_speeds(device: jax.Device) -> tuple[float, float]:
    """Measure operations per second of a matrix product, and bytes per second of copying an array, in float32."""
    with jax.default_device(device):
        square, large = jnp.ones((1024, 1024)), jnp.ones(1 << 25)
        product, scaled = jax.jit(jnp.matmul), jax.jit(lambda x: 2 * x)
        return 2 * 1024**3 / _seconds(product, square, square), 2 * large.nbytes / _seconds(scaled, large)


def _seconds(program: Callable[..., jax.Array], *inputs: jax.Array) -> float:
    """Return the minimum seconds of a few runs, without compilation."""
    program(*inputs).block_until_ready()
    seconds = []
    for _ in range(_RUNS):
        start_time = time.perf_counter()
        program(*inputs).block_until_ready()
        seconds.append(time.perf_counter() - start_time)
    return min(seconds)


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's or its container's limit; 0 if unknown."""
    try:
        total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    return min([total_memory, *_memory_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _memory_limits(cgroups: Path, mount: Path) -> Iterator[int]:
    """Yield the memory limits of the process's control group and its parents, of cgroups version 1 or 2."""
    if not cgroups.is_file():
        return
    for line in cgroups.read_text(encoding="utf-8").splitlines():
        _, controllers, cgroup = line.split(":", 2)
        if "memory" not in controllers.split(",") and controllers:
            continue
        root, name = (mount / "memory", "memory.limit_in_bytes") if controllers else (mount, "memory.max")
        process_folder = root / cgroup.lstrip("/")
        for folder in (process_folder, *process_folder.parents):
            with suppress(OSError, ValueError):  # no such file; "max"
                yield int((folder / name).read_text(encoding="utf-8"))
            if folder == root:
                break


def device_memory(mesh: jax.sharding.Mesh) -> int:
    """Return the bytes of memory of a device of the mesh; 0 if unknown. CPU devices share the machine's."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        return machine_memory() // len(mesh.local_devices)
    return int((device.memory_stats() or {}).get("bytes_limit", 0))


def _tpu_devices(name: str) -> Sequence[Any]:
    """Return the absent TPUs of a topology, to compile for; raises InputError without libtpu or if it is unknown."""
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(LIBTPU_MISSING)
    for key, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from jax.experimental import topologies  # noqa: PLC0415 - loads libtpu, which few commands need

    try:
        return topologies.get_topology_desc(topology_name=name, platform="tpu").devices
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--topology {name}: libtpu does not know it ({reason}); known are {KNOWN_TOPOLOGIES}"
        ) from error
