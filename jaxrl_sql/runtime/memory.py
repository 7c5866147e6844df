"""Keep freed memory in the process, so that a training step does not fault its temporaries in again.

XLA's CPU backend frees its temporaries after each step, and glibc hands large blocks back to the system at once. At
the quickstart's size that was a fifth of the step's time, spent in 300,000 page faults.

Freed memory fits the next step of the same shapes. Temporaries of another shape may not fit into any free block and
are allocated after them: twenty shapes of one model took 20 GB where each needed 14. So free pages are returned in
three cases: after a compilation, when the process holds clearly more than its largest step needed, and when the
machine's free memory is too small for a step that reuses none.
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
UNTRIMMED_STEPS = 2
"""Steps after a release until resident memory shows the need of a step.

Steps run asynchronously, so the first step may still be running when it is counted.
"""
SURPLUS = 1.1
"""Resident memory above this multiple of the largest step's need is released."""
FULL = 0.9
"""Largest share of the machine's memory that the next step may reach."""


def keep_freed_memory() -> bool:
    """Set glibc to serve every block from one heap and to keep freed memory; return whether it is glibc.

    Call it before the first computation: threads that have allocated keep their arenas.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 256 * MIB))
    accepted = [bool(mallopt(option, value)) for option, value in options]
    return all(accepted)


def release_freed_memory() -> None:
    """Return the pages of all freed memory to the system, wherever they are in the heap (Linux only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


class MemoryTrimmer:
    """Release memory that steps of many shapes leave in the heap beyond the need of the largest.

    The first steps after a release measure that need. If the next step could exceed the machine's `memory` (bytes; 0:
    unknown), pages are released earlier, so that a step of another shape fits.
    """

    def __init__(self, memory: int = 0) -> None:
        self._memory = memory
        self._max_resident = self._min_resident = self._steps = 0

    def count_step(self) -> bool:
        """Count a finished step; return whether freed memory was released after it."""
        resident = _resident_bytes()
        self._steps += 1
        if self._steps <= UNTRIMMED_STEPS:
            self._max_resident = (
                max(self._max_resident, resident) if self._steps == UNTRIMMED_STEPS else self._max_resident
            )
            return False
        # A step that reuses no freed memory adds the need of the largest step, max - min.
        has_room = not self._memory or resident + self._max_resident - self._min_resident <= FULL * self._memory
        if resident <= SURPLUS * self._max_resident and has_room:
            return False
        release_freed_memory()
        self._steps, self._min_resident = 0, _resident_bytes()
        return True


def used_mapping_share() -> float:
    """Return the used share, from 0 to 1, of the memory mappings that Linux allows this process; 0 if unknown."""
    with suppress(OSError, ValueError):
        limit = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        with Path("/proc/self/maps").open("rb") as lines:
            return sum(1 for _ in lines) / limit
    return 0.0


def _resident_bytes() -> int:
    """Return the resident bytes of this process; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
