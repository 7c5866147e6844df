"""Keep freed memory in the process, so that a training step does not fault its temporaries in again.

XLA's CPU backend frees its temporaries after each step, and glibc hands large blocks back to the system at once. At
the quickstart's size that was a fifth of the step's time, spent in 300,000 page faults.

What is kept fits the next step of the same shapes. Temporaries of another shape may find no hole that is large enough,
and stand behind those that are free: twenty shapes of one model held 17 GB where each needed 11. So the pages of what
is free go back when a program was compiled, which is when shapes change.
"""

from __future__ import annotations

import ctypes
import sys

# glibc's malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX and M_ARENA_MAX.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
MIB = 1 << 20


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
