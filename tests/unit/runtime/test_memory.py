"""Freed memory: kept between steps of equal shapes, released if shapes change. Each test runs a new process."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURE = """
import ctypes
from pathlib import Path
from jaxrl_sql.runtime.memory import keep_freed_memory, release_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

def use(mib):
    at = libc.malloc(mib << 20)
    ctypes.memset(at, 1, mib << 20)
    return at

assert keep_freed_memory()
before = resident()
"""

RELEASE = """
large, held = use(300), use(1)  # a later allocation keeps the heap from shrinking
libc.free(large)
kept = resident() - before
release_freed_memory()
print(kept, resident() - before)
"""

STEPS = """
from jaxrl_sql.runtime.memory import MemoryTrimmer

surplus, held = MemoryTrimmer(), []
def step(mib):
    large = use(mib)
    held.append(use(1))
    libc.free(large)
    return surplus.count_step()

print(*(step(200) for _ in range(5)), *(step(mib) for mib in (300, 300, 310)))
released = resident()
print(released - before)
"""

FULL = """
from jaxrl_sql.runtime.memory import MemoryTrimmer

surplus, held = MemoryTrimmer(LEFT and (before + LEFT) << 20), []
for mib in (200, 300, 300):  # the larger one follows the hole of the other: two steps need 500
    large = use(mib)
    held.append(use(1))
    libc.free(large)
    print(surplus.count_step())
"""


def output_of(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
def test_freed_memory_is_kept_until_it_is_released() -> None:
    held, left = map(int, output_of(MEASURE + RELEASE))
    assert held >= 300
    assert left < 50


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
def test_memory_freed_by_steps_of_other_shapes_is_released_once() -> None:
    """Three holes of 200 MiB are reused; one of 300 follows them, and afterwards there is no surplus."""
    *released, left = output_of(MEASURE + STEPS)
    assert released == [*["False"] * 5, "True", "False", "False"]
    assert int(left) < 400


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
@pytest.mark.parametrize(("left", "is_released"), [(0, False), (900, True), (1500, False)])
def test_freed_memory_is_released_if_the_machine_lacks_memory(left: int, is_released: bool) -> None:
    """`left` is the memory limit in MiB above the process's current memory; 0 means no limit is known."""
    assert output_of(MEASURE + f"LEFT = {left}" + FULL) == ["False", "False", str(is_released)]
