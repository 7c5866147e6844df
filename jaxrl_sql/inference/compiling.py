"""Hear of the programs that XLA compiles: nothing else is heard of a command for as long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from jaxrl_sql.parallel.processes import exchange
from jaxrl_sql.runtime.memory import mappings_taken, release_freed_memory
from jaxrl_sql.runtime.progress import Compiled

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_WAIT_S = 5.0


@contextmanager
def hear_compiling(compiled: Compiled, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Keep `compiled` up to date: a program is heard of when it is lowered, which is just before it is compiled.

    Then shapes have changed, and memory that was freed is released.
    """

    def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _LOWERED:
            compiled.begins(str(kwargs.get("fun_name", "a program")).removeprefix("jit(").removesuffix(")"), clock())
        elif event == _COMPILED:
            compiled.ends(duration_secs)
            release_freed_memory()

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
        compiled.name = ""


def drop_programs(compiled: Compiled) -> bool:
    """Drop all compiled programs where they take most of the memory mappings that Linux gives a process.

    XLA maps a program for processors in pieces, one of 18 layers in 1,500 of the 65,530 that there are, and beyond them
    the process dies. What is needed is compiled again, or read from `run.compilation_cache`. Every process must call
    it, between steps; where one drops its programs, all do, so that none waits long for another.

    Where a step alone takes nearly as much it is not made to compile each time: what is there after a drop is taken for
    needed, and programs may then take half of the rest.
    """
    if not any(exchange([_is_crowded(compiled)])):
        return False
    jax.clear_caches()
    compiled.is_dropped = True
    return True


def _is_crowded(compiled: Compiled) -> bool:
    if compiled.programs == compiled.looked_after:
        return False
    compiled.looked_after, taken = compiled.programs, mappings_taken()
    if compiled.is_dropped:
        compiled.crowded, compiled.is_dropped = max(compiled.crowded, (1 + taken) / 2), False
    return taken >= compiled.crowded


@contextmanager
def show_compiling(note: Callable[[str], object], wait_s: float = _WAIT_S) -> Iterator[Compiled]:
    """Write one line by `note` for each program that has been compiling for `wait_s` seconds, and how many were before.

    It is for commands without a display, which says it by itself. What is yielded counts on.
    """
    compiled = Compiled()
    timer: threading.Timer | None = None

    def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
        nonlocal timer
        del duration_secs, kwargs  # `hear_compiling` keeps them
        if event not in (_LOWERED, _COMPILED):
            return
        if timer is not None:
            timer.cancel()
        if event == _LOWERED:
            words = f"compiling {compiled.name}: {compiled.programs} programs took {compiled.seconds:.0f} s before it"
            timer = threading.Timer(wait_s, note, [words])
            timer.daemon = True
            timer.start()

    with hear_compiling(compiled):  # whose listener is called first
        jax.monitoring.register_event_duration_secs_listener(heard)
        try:
            yield compiled
        finally:
            jax.monitoring.unregister_event_duration_listener(heard)
            if timer is not None:
                timer.cancel()
