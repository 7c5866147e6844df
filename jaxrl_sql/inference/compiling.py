"""Report XLA compilations, the longest silent phase of a command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from jaxrl_sql.parallel.compile_once import COMPILED, LOWERED
from jaxrl_sql.parallel.processes import exchange
from jaxrl_sql.runtime.memory import release_freed_memory, used_mapping_share
from jaxrl_sql.runtime.progress import CompileStats

_WAIT_S = 5.0


@contextmanager
def record_compilations(compile_stats: CompileStats, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Update `compile_stats` during the context; a program is recorded when it is lowered, just before its compilation.

    After a compilation shapes have changed, so freed memory is released.
    """

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == LOWERED:
            compile_stats.start(
                str(kwargs.get("fun_name", "a program")).removeprefix("jit(").removesuffix(")"), clock()
            )
        elif event == COMPILED:
            compile_stats.finish(duration_secs)
            release_freed_memory()

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(on_duration)
        compile_stats.name = ""


def drop_programs(compile_stats: CompileStats) -> bool:
    """Drop all compiled programs if they take most of the memory mappings that Linux allows a process.

    XLA maps a CPU program in many parts: a program of 18 layers takes 1,500 of 65,530 mappings, and beyond the limit
    the process dies. Programs that are still needed are compiled again, or read from `run.compilation_cache`. Every
    process must call it between steps; all processes drop their programs together, so that none waits long for another.

    If a step alone takes nearly the limit, it must not compile each time: the mappings after a drop count as needed,
    and programs may then take half of the rest.
    """
    if not any(exchange([_is_crowded(compile_stats)])):
        return False
    jax.clear_caches()
    compile_stats.is_dropped = True
    return True


def _is_crowded(compile_stats: CompileStats) -> bool:
    if compile_stats.programs == compile_stats.checked_programs:
        return False
    compile_stats.checked_programs, num_mappings = compile_stats.programs, used_mapping_share()
    if compile_stats.is_dropped:
        compile_stats.drop_share, compile_stats.is_dropped = (
            max(compile_stats.drop_share, (1 + num_mappings) / 2),
            False,
        )
    return num_mappings >= compile_stats.drop_share


@contextmanager
def report_compilations(note: Callable[[str], object], wait_s: float = _WAIT_S) -> Iterator[CompileStats]:
    """Call `note` with a line for each program whose compilation takes over `wait_s` seconds; yield the counts.

    It is for commands without a display, which shows compilations itself.
    """
    compile_stats = CompileStats()
    timer: threading.Timer | None = None

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        nonlocal timer
        del duration_secs, kwargs  # `record_compilations` records them
        if event not in (LOWERED, COMPILED):
            return
        if timer is not None:
            timer.cancel()
        if event == LOWERED:
            earlier = f"{compile_stats.programs} programs took {compile_stats.seconds:.0f} s before it"
            line = f"compiling {compile_stats.name}: {earlier}"
            timer = threading.Timer(wait_s, note, [line])
            timer.daemon = True
            timer.start()

    with record_compilations(compile_stats):  # its listener is called first
        jax.monitoring.register_event_duration_secs_listener(on_duration)
        try:
            yield compile_stats
        finally:
            jax.monitoring.unregister_event_duration_listener(on_duration)
            if timer is not None:
                timer.cancel()
