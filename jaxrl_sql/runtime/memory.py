"""Keep freed memory in the process, so that a training step does not fault its temporaries in again.

XLA's CPU backend frees its temporaries after each step, and glibc hands large blocks back to the system at once. At
the quickstart's size that was a fifth of the step's time, spent in 300,000 page faults.

What is kept fits the next step of the same shapes. Temporaries of another shape may find no hole that is large enough,
and stand behind those that are free: twenty shapes of one model held 20 GB where each needed 14. So the pages of what
is free go back when a program was compiled, when steps hold clearly more than what some of them alone needed, and when
what the machine has left is too little for another step that finds no hole.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

# glibc's malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX and M_ARENA_MAX.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
MIB = 1 << 20
ALONE = 2
"""Steps after which what is held is what they needed: the last of them may be under way still."""
SURPLUS = 1.1
"""How many times that may be held."""
FULL = 0.9
"""The share of the machine's memory that another step may come to."""


def keep_freed_memory() -> bool:
    """Set glibc to serve every block from one heap and to keep it; return whether there was a glibc to tell.

    Call it before the first computation: threads that have allocated keep the arenas that they have.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 256 * MIB))
    taken = [bool(mallopt(option, value)) for option, value in options]
    return all(taken)


def release_freed_memory() -> None:
    """Give the pages of all freed memory back to the system, wherever they stand in the heap; elsewhere do nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


class Surplus:
    """Releases what steps of many shapes leave in the heap beyond what those of the largest need.

    What some steps alone needed is those of two shapes, of which one may stand behind the other, and the most that was
    seen: near a machine's `memory` (bytes; 0: unknown) that alone is no bound.
    """

    def __init__(self, memory: int = 0) -> None:
        self._memory = memory
        self._most = self._least = self._steps = 0

    def made_step(self) -> bool:
        """Hear of a step; return whether freed memory was released for it."""
        held = _resident()
        self._steps += 1
        if self._steps <= ALONE:
            self._most = max(self._most, held) if self._steps == ALONE else self._most
            return False
        has_room = not self._memory or held + self._most - self._least <= FULL * self._memory
        if held <= SURPLUS * self._most and has_room:
            return False
        release_freed_memory()
        self._steps, self._least = 0, _resident()
        return True


def mappings_taken() -> float:
    """Return the share that this process has of the memory mappings that Linux gives it; 0 where that is not known."""
    with suppress(OSError, ValueError):
        most = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        with Path("/proc/self/maps").open("rb") as lines:
            return sum(1 for _ in lines) / most
    return 0.0


def _resident() -> int:
    """Return the bytes of this process that are in memory; 0 where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
