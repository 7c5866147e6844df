"""A program that compiles for long is told, by its name, and one that does not is not."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.runtime.compiling import show_compiling


@pytest.mark.parametrize(("wait_s", "is_told"), [(0.0, True), (1000.0, False)])
def test_a_long_compilation_is_one_line(wait_s: float, is_told: bool) -> None:
    lines: list[str] = []
    heard = threading.Event()

    def note(line: str) -> None:
        lines.append(line)
        heard.set()

    def first(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 3

    def waiting(x: jax.Array) -> jax.Array:  # while it is lowered and compiled, the line has time to come
        for _ in range(200):
            x = jnp.sin(x) @ x
        return x

    with show_compiling(note, wait_s):
        jax.jit(first)(np.float32(1))
        jax.jit(waiting)(np.ones((3, 3), np.float32))
        heard.wait(10 if is_told else 0)
    assert [line for line in lines if "waiting" in line] == (
        [line for line in lines if line.startswith("compiling waiting: 1 programs took 0 s before it")]
    )
    assert any("waiting" in line for line in lines) == is_told
    before = len(lines)
    jax.jit(lambda x: first(x) + 1)(np.float32(1))
    assert len(lines) == before
