"""Compilations by several threads: programs of one name in turns, others at the same time, failures set others free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl_sql.parallel.compile_once import COMPILED, LOWERED, CompileOnce, shares_programs

X = jnp.ones((64, 64))


class Overlaps:
    """Counts the programs that are being compiled at the same time; `most` is the largest number."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def on_lowered(self, event: str, *_: Any, **__: Any) -> None:
        if event == LOWERED:
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)

    def on_compiled(self, event: str, *_: Any, **__: Any) -> None:
        if event == COMPILED:
            with self._lock:
                self.now -= 1

    @contextmanager
    def listen(self, compile_once: CompileOnce) -> Iterator[None]:
        """Count in the context, without what happens between the release of a lock and its next acquisition."""
        listeners = (self.on_compiled, self.on_lowered)
        with ExitStack() as stack:
            for listener in listeners:
                stack.callback(jax.monitoring.unregister_event_duration_listener, listener)
            jax.monitoring.register_event_duration_secs_listener(self.on_compiled)
            stack.enter_context(compile_once)
            jax.monitoring.register_event_duration_secs_listener(self.on_lowered)
            yield


def program(name: str, number: int, barrier: threading.Barrier) -> Callable[[jax.Array], jax.Array]:
    """Return a program that takes a while to compile; its threads begin at the same time."""

    def function(x: jax.Array) -> jax.Array:
        barrier.wait(60)
        for i in range(20):
            x = jnp.sort(jnp.sin(x) @ x, axis=i % 2) * (i + number)
        return x

    function.__name__ = name
    return jax.jit(function)


def most_overlapping(names: list[str], waits: bool) -> int:
    """Compile programs of these names, each in a thread; return the most that were compiled at the same time."""
    barrier, overlaps, compile_once = threading.Barrier(len(names)), Overlaps(), CompileOnce()

    def run(item: tuple[int, str]) -> None:
        with ExitStack() as stack:
            if waits:
                stack.enter_context(compile_once.turns())
            program(item[1], item[0], barrier)(X).block_until_ready()

    jax.block_until_ready(X)
    with overlaps.listen(compile_once), ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(run, enumerate(names)))
    return overlaps.most


def test_programs_of_one_name_are_compiled_in_turns() -> None:
    assert most_overlapping(["decode"] * 3, waits=True) == 1


def test_programs_of_different_names_are_compiled_at_the_same_time() -> None:
    assert most_overlapping(["decode", "prefill", "copy"], waits=True) > 1


def test_threads_without_turns_do_not_wait() -> None:
    assert most_overlapping(["decode"] * 3, waits=False) > 1


def test_failed_compilation_sets_the_next_one_free() -> None:
    def decode(x: jax.Array) -> Any:
        return jax.ffi.ffi_call("no_such_function", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    barrier = threading.Barrier(1)
    with CompileOnce() as compile_once, ThreadPoolExecutor(1) as threads:
        with compile_once.turns(), pytest.raises(jax.errors.JaxRuntimeError, match="no_such_function"):
            jax.jit(decode)(X)

        def compile_next() -> bool:
            with compile_once.turns():
                program("decode", 7, barrier)(X)
            return True

        assert threads.submit(compile_next).result(60)


def test_programs_of_cpus_are_not_shared(tmp_path: Any) -> None:
    """Their runtime rejects a program that was compiled for another device."""
    assert not shares_programs()
