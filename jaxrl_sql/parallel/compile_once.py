"""Compile a program once for all GPUs of a process, although its threads run it on different GPUs.

Each replica of the rollout engine runs in a thread with its own devices. The first thread compiles a program, and the
others read it from JAX's persistent compilation cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import jax

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""JAX's event before the compilation of a program, in the thread that compiles it."""
COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event after the compilation of a program, or after it was read from the cache, in the same thread."""


def shares_programs() -> bool:
    """Return whether a program that was compiled for one device can be read from JAX's cache for a different device.

    This holds for GPUs if the cache is on. On other platforms a program's key in the cache includes the numbers of its
    devices.
    """
    has_cache = bool(jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]  # defined at run time
    return has_cache and jax.default_backend() == "gpu"


@dataclass
class CompileOnce:
    """Let threads compile programs of the same name in turns, so that all threads but the first read JAX's cache.

    Without turns, threads that compile the same program at the same time all miss the cache. Programs of different
    names are still compiled at the same time. Use an object as a context manager, with `turns` in each thread.

    A turn is a lock per program's name: JAX's event LOWERED acquires it, and COMPILED releases it.
    """

    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _thread: threading.local = field(default_factory=threading.local)

    def __enter__(self) -> Self:
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    @contextmanager
    def turns(self) -> Iterator[None]:
        """Make the compilations of this thread wait for those of the same program in other threads."""
        self._thread.waits = True
        try:
            yield
        finally:
            self._thread.waits = False
            self._release()

    def _on_event(self, event: str, duration_secs: float, **about: str | int) -> None:  # noqa: ARG002 - JAX passes the name
        """Acquire the lock of a program before its compilation, and release it after; called by JAX."""
        if event == LOWERED and getattr(self._thread, "waits", False):
            self._release()  # the lock of an earlier program whose compilation failed, without an event COMPILED
            lock = self._locks.setdefault(str(about.get("fun_name")), threading.Lock())
            lock.acquire()
            self._thread.lock = lock
        elif event == COMPILED:
            self._release()

    def _release(self) -> None:
        """Release the lock that this thread holds, if any."""
        lock, self._thread.lock = getattr(self._thread, "lock", None), None
        if lock is not None:
            lock.release()
