"""Keep freed memory in the process, so that a training step does not fault its temporaries in again; huge pages.

XLA's CPU backend frees its temporaries after each step, and glibc hands large blocks back to the system at once. At
the quickstart's size that was a fifth of the step's time, spent in 300,000 page faults.

Freed memory fits the next step of the same shapes. Temporaries of another shape may not fit into any free block and
are allocated after them: twenty shapes of one model took 20 GB where each needed 14. So free pages are returned in
three cases: after a compilation, when the process holds clearly more than its largest step needed, and when the
machine's free memory is too small for a step that reuses none.

Linux serves the heap in huge pages (2 MiB instead of 4 KiB). Without them the processor searches its page tables for a
fifth of the time of a step of GRPO on CPUs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

# glibc's malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX and M_ARENA_MAX.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
HUGE_PAGES = 14  # madvise's MADV_HUGEPAGE
MIB = 1 << 20
RESERVED = 0.75
"""Share of the machine's memory by which the heap is extended at once. No page exists before its first use."""
UNTRIMMED_STEPS = 2
"""Steps after a release until resident memory shows the need of a step.

Steps run asynchronously, so the first step may still be running when it is counted.
"""
SURPLUS = 1.1
"""Resident memory above this multiple of the largest step's need is released."""
FULL = 0.9
"""Largest share of the machine's memory that the next step may reach."""


def keep_freed_memory() -> bool:
    """Set glibc to serve every block from one heap of huge pages and to keep freed memory; return whether it is glibc.

    Call it before the first computation: threads that have allocated keep their arenas.
    """
    libc = _glibc()
    if libc is None:
        return False
    options = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 256 * MIB))
    accepted = [bool(libc.mallopt(option, value)) for option, value in options]
    _reserve_huge_pages(libc)
    return all(accepted)


def release_freed_memory() -> None:
    """Return the pages of all freed memory to the system, wherever they are in the heap (glibc only)."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)
        _reserve_huge_pages(libc)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is None or not hasattr(libc, "malloc_trim"):
        return None
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _reserve_huge_pages(libc: ctypes.CDLL) -> None:
    """Extend the heap and let Linux serve it in huge pages, unless they are disabled or the system refuses.

    Linux uses huge pages where a process advises it to. The advice does not hold for later extensions of the heap, so
    it is extended far enough at once: a block of that size is allocated and freed, without using its pages. Trimming
    the heap undoes it.
    """
    libc.free(libc.malloc(int(RESERVED * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))))
    with suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.rstrip().endswith("[heap]"):
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                libc.madvise(start, end - start, HUGE_PAGES)


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
