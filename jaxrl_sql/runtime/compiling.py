"""Report while XLA compiles a program: nothing else is heard of a command for as long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_WAIT_S = 5.0


@contextmanager
def show_compiling(note: Callable[[str], None], wait_s: float = _WAIT_S) -> Iterator[None]:
    """Write one line by `note` for each program that has been compiling for `wait_s` seconds, and how many were before.

    A program is heard of when it is lowered, which is just before it is compiled.
    """
    done, seconds = 0, 0.0
    timer: threading.Timer | None = None

    def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
        nonlocal done, seconds, timer
        if event not in (_LOWERED, _COMPILED):
            return
        if timer is not None:
            timer.cancel()
        if event == _COMPILED:
            done, seconds = done + 1, seconds + duration_secs
            return
        name = str(kwargs.get("fun_name", "a program")).removeprefix("jit(").removesuffix(")")
        words = f"compiling {name}: {done} programs took {seconds:.0f} s before it"
        timer = threading.Timer(wait_s, note, [words])
        timer.daemon = True
        timer.start()

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
        if timer is not None:
            timer.cancel()
