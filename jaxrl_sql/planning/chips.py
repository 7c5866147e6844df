"""The chips that a plan knows, by public figures or as measured here, and the devices of a topology."""

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
    """What one chip can do at best.

    memory: bytes that a program can have; flops: multiplications and additions a second in bfloat16; hbm: bytes a
    second to and from its memory; link: bytes a second that come in from other chips over all links together;
    dims: of the topology's name, 0 where it has none.
    """

    memory: int
    flops: float
    hbm: float
    link: float
    dims: int
    source: str


# Links are told in both directions together by their makers; what comes in is half of it. The memory of a TPU is what
# XLA's compiler gives to a program (it says so where one does not fit), a little beside the makers' 16, 95 and 32 GB.
_TPU = "Google Cloud's documentation of TPU"
_NVIDIA = "NVIDIA's data sheet of"
CHIPS: Mapping[str, Chip] = {
    "v5e": Chip(int(15.75 * GIB), 197e12, 819 * GB, 200 * GB, 2, f"{_TPU} v5e"),
    "v5p": Chip(int(95.74 * GIB), 459e12, 2765 * GB, 600 * GB, 3, f"{_TPU} v5p"),
    "v6e": Chip(int(31.25 * GIB), 918e12, 1638 * GB, 400 * GB, 2, f"{_TPU} v6e"),
    "a100": Chip(80 * GB, 312e12, 2039 * GB, 300 * GB, 0, f"{_NVIDIA} A100 80GB SXM"),
    "h100": Chip(80 * GB, 989e12, 3350 * GB, 450 * GB, 0, f"{_NVIDIA} H100 SXM"),
    "h200": Chip(141 * GB, 989e12, 4800 * GB, 450 * GB, 0, f"{_NVIDIA} H200 SXM"),
    "l4": Chip(24 * GB, 121e12, 300 * GB, 32 * GB, 0, f"{_NVIDIA} L4, without sparsity"),
    "rtx4090": Chip(24 * GB, 165e12, 1008 * GB, 32 * GB, 0, "NVIDIA's paper on the Ada architecture, without sparsity"),
}
# By the beginning of JAX's names, the longer ones first.
TPU_KINDS = {"TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v6": "v6e"}
GPU_KINDS = {"A100": "a100", "H100": "h100", "H200": "h200", "L4": "l4", "4090": "rtx4090"}

# libtpu would ask a cloud's metadata server where it is, complain that it is nowhere, and let one process in at a time,
# as it does where there are chips.
QUIET = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-4"}
QUIET |= {"TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

LIBTPU = "libtpu is not installed: pip install 'jaxrl_sql[tpu-plan]' (it compiles for TPUs and needs none)"
FORMS = "v5e:2x2, v5e:4x4, v5e:4x8, v5e:8x8, v5e:8x16, v5e:16x16, the same of v6e; v5p:2x2x1, v5p:2x2x2, v5p:2x2x4, "
FORMS += "v5p:2x4x4, v5p:4x4x2, v5p:4x4x4 and on; h100:8 (or a100, h200, l4, rtx4090; any number); gpu and cpu, those "
FORMS += "that are here"


class Topology(NamedTuple):
    """Chips of one kind: the name as asked for, the kind, and how many there are."""

    name: str
    chip: Chip
    chips: int
    platform: str

    def devices(self) -> Sequence[Any] | None:
        """Return devices to compile for; None where there are none, and formulas are all that can be said.

        Raises InputError where a TPU's would be there with libtpu, or libtpu knows no such topology.
        """
        if self.platform == "tpu":
            return _tpu_devices(self.name)
        here = jax.devices()
        if here[0].platform == self.platform and len(here) >= self.chips:
            return here[: self.chips]
        if self.is_elsewhere:
            return gpus.gpu_devices(self.name.partition(":")[0], self.chips)
        return None

    @property
    def per_host(self) -> int:
        """Return how many of the chips one process drives: those of a host, of which GPUs are eight and TPUs four."""
        return min(self.chips, {"tpu": 4, "gpu": 8}.get(self.platform, self.chips))

    @property
    def is_elsewhere(self) -> bool:
        """Return whether these are GPUs that a compiler here compiles for without them."""
        return gpus.is_elsewhere(self.name)


def known_chip(device: Any) -> Chip | None:
    """Return the figures of a device that is here; None where they are not known, as a processor's are not."""
    if device.platform == "tpu":
        kind = next((kind for word, kind in TPU_KINDS.items() if device.device_kind.startswith(word)), None)
    else:
        kind = next((kind for word, kind in GPU_KINDS.items() if word in re.split(r"\W", device.device_kind)), None)
    return CHIPS[kind] if kind else None


def find_topology(name: str) -> Topology:
    """Return what a name such as v5p:4x4x2 means; raises InputError, with those there are, for another."""
    kind, _, layout = name.partition(":")
    if kind in {"cpu", "gpu"} and not layout:
        return _here(kind)
    chip = CHIPS.get(kind)
    if chip is None or not re.fullmatch(r"\d+(x\d+)*", layout):
        raise InputError(f"--topology {name}: unknown; there are {FORMS}")
    sizes = [int(size) for size in layout.split("x")]
    if min(sizes) < 1 or len(sizes) != (chip.dims or 1):
        raise InputError(f"--topology {name}: {kind} has {chip.dims or 1} dimensions; there are {FORMS}")
    return Topology(name, chip, math.prod(sizes), "tpu" if chip.dims else "gpu")


def _here(kind: str) -> Topology:
    """Return the devices of this machine as a topology."""
    devices = [device for device in jax.devices() if device.platform == kind]
    if not devices:
        raise InputError(f"--topology {kind}: JAX sees no {kind} here, only {jax.default_backend()}")
    if kind == "gpu":
        chip = known_chip(devices[0])
        if chip is None:
            raise InputError(f"--topology gpu: no figures are known of {devices[0].device_kind}")
        limit = int((devices[0].memory_stats() or {}).get("bytes_limit", 0))
        return Topology(kind, chip._replace(memory=limit or chip.memory), len(devices), kind)
    flops, moved = (pace / len(devices) for pace in _paces(devices[0]))  # they share the cores
    chip = Chip(machine_memory() // len(devices), flops, moved, moved, 0, "measured here, in float32")
    return Topology(kind, chip, len(devices), kind)


@functools.cache
def _paces(device: jax.Device) -> tuple[float, float]:
    """Measure operations of a matrix product, and bytes of a large array read and written, a second, in float32."""
    with jax.default_device(device):
        square, large = jnp.ones((1024, 1024)), jnp.ones(1 << 25)
        product, scaled = jax.jit(jnp.matmul), jax.jit(lambda x: 2 * x)
        return 2 * 1024**3 / _seconds(product, square, square), 2 * large.nbytes / _seconds(scaled, large)


def _seconds(program: Callable[..., jax.Array], *inputs: jax.Array) -> float:
    """Return the least seconds of a few runs, compiled before."""
    program(*inputs).block_until_ready()
    taken = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        program(*inputs).block_until_ready()
        taken.append(time.perf_counter() - began)
    return min(taken)


def machine_memory() -> int:
    """Return the bytes of memory that this process may take: the machine's, or its container's where that has less.

    0 where the system does not say.
    """
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    return min([whole, *_memory_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _memory_limits(groups: Path, mount: Path) -> Iterator[int]:
    """Yield the limits of the process's control group and of those it is in, of either version of Linux's."""
    if not groups.is_file():
        return
    for line in groups.read_text(encoding="utf-8").splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" not in controllers.split(",") and controllers:
            continue
        root, name = (mount / "memory", "memory.limit_in_bytes") if controllers else (mount, "memory.max")
        inner = root / group.lstrip("/")
        for folder in (inner, *inner.parents):
            with suppress(OSError, ValueError):  # no such file; "max"
                yield int((folder / name).read_text(encoding="utf-8"))
            if folder == root:
                break


def device_memory(mesh: jax.sharding.Mesh) -> int:
    """Return the bytes that a device of the mesh has; 0 where nobody says. CPU devices share the machine's."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        return machine_memory() // len(mesh.local_devices)
    return int((device.memory_stats() or {}).get("bytes_limit", 0))


def _tpu_devices(name: str) -> Sequence[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(LIBTPU)
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    from jax.experimental import topologies  # noqa: PLC0415 - loads libtpu, which few commands need

    try:
        return topologies.get_topology_desc(topology_name=name, platform="tpu").devices
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--topology {name}: libtpu knows it not ({reason}); there are {FORMS}") from error
