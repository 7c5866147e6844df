"""Compile a program once for all GPUs of a process, although its threads run it on different ones."""

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
    """Return whether a program that was compiled for one device can be read from JAX's cache for another.

    This holds for GPUs if the cache is on. On other platforms a program's key in the cache has its devices' numbers.
    """
    has_cache = bool(jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]  # defined at run time
    return has_cache and jax.default_backend() == "gpu"


@dataclass
class CompileOnce:
    """Let threads compile programs of the same name in turns, so that all but the first read it from JAX's cache.

    Without it, threads that compile at the same time all miss the cache. Programs of different names are compiled at
    the same time. Use it as a context manager, with `turns` in each thread.
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
        if event == LOWERED and getattr(self._thread, "waits", False):
            self._release()  # that of a program whose compilation failed
            lock = self._locks.setdefault(str(about.get("fun_name")), threading.Lock())
            lock.acquire()
            self._thread.lock = lock
        elif event == COMPILED:
            self._release()

    def _release(self) -> None:
        lock, self._thread.lock = getattr(self._thread, "lock", None), None
        if lock is not None:
            lock.release()
