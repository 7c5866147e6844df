"""Report while XLA compiles a program: nothing else is heard of a command for as long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_WAIT_S = 5.0


@dataclass
class Compiled:
    """How many programs have been compiled, and how many seconds that took."""

    programs: int = 0
    seconds: float = 0.0


@contextmanager
def show_compiling(note: Callable[[str], None], wait_s: float = _WAIT_S) -> Iterator[Compiled]:
    """Write one line by `note` for each program that has been compiling for `wait_s` seconds, and how many were before.

    A program is heard of when it is lowered, which is just before it is compiled. What is yielded counts on.
    """
    compiled = Compiled()
    timer: threading.Timer | None = None

    def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
        nonlocal timer
        if event not in (_LOWERED, _COMPILED):
            return
        if timer is not None:
            timer.cancel()
        if event == _COMPILED:
            compiled.programs += 1
            compiled.seconds += duration_secs
            return
        name = str(kwargs.get("fun_name", "a program")).removeprefix("jit(").removesuffix(")")
        words = f"compiling {name}: {compiled.programs} programs took {compiled.seconds:.0f} s before it"
        timer = threading.Timer(wait_s, note, [words])
        timer.daemon = True
        timer.start()

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
        if timer is not None:
            timer.cancel()
