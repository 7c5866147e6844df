"""Reports of long compilations: by program name, and none for short ones."""

from __future__ import annotations

import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.inference import compiling
from jaxrl_sql.inference.compiling import drop_programs, record_compilations, report_compilations
from jaxrl_sql.runtime.memory import used_mapping_share
from jaxrl_sql.runtime.progress import CompileStats


@pytest.mark.parametrize(("wait_s", "is_announced"), [(0.0, True), (1000.0, False)])
def test_long_compilation_is_reported_in_one_line(wait_s: float, is_announced: bool) -> None:
    lines: list[str] = []
    heard = threading.Event()

    def note(line: str) -> None:
        lines.append(line)
        heard.set()

    def first(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 3

    def waiting(x: jax.Array) -> jax.Array:  # lowering and compilation take long enough for the report
        for _ in range(200):
            x = jnp.sin(x) @ x
        return x

    with report_compilations(note, wait_s):
        jax.jit(first)(np.float32(1))
        jax.jit(waiting)(np.ones((3, 3), np.float32))
        heard.wait(10 if is_announced else 0)
    assert [line for line in lines if "waiting" in line] == (
        [line for line in lines if line.startswith("compiling waiting: 1 programs took 0 s before it")]
    )
    assert any("waiting" in line for line in lines) == is_announced
    before = len(lines)
    jax.jit(lambda x: first(x) + 1)(np.float32(1))
    assert len(lines) == before


@pytest.mark.skipif(sys.platform != "linux", reason="mappings are counted on Linux")
def test_programs_are_dropped_near_the_mapping_limit_and_recompiled() -> None:
    @jax.jit
    def layers(x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jax.nn.softmax(jnp.sin(x @ x)) + x
        return x

    compiled, before = CompileStats(), used_mapping_share()
    assert 0 < before < 1
    with record_compilations(compiled):
        result = [layers(jnp.ones((n, n))) for n in range(2, 8)]
        assert compiled.programs >= 6
        full = used_mapping_share()
        assert full > before
        compiled.drop_share = 1.0
        assert not drop_programs(compiled)
        compiled.drop_share = full
        assert not drop_programs(compiled)  # nothing was compiled since
        again = layers(jnp.ones((8, 8)))
        assert drop_programs(compiled)
        assert used_mapping_share() < full
        count = compiled.programs
        np.testing.assert_array_equal(layers(jnp.ones((8, 8))), again)
        np.testing.assert_array_equal(layers(jnp.ones((2, 2))), result[0])
        assert compiled.programs >= count + 2
        taken = used_mapping_share()
        assert not drop_programs(compiled)  # a program that a step compiles again is needed
        assert compiled.drop_share == pytest.approx((1 + taken) / 2, abs=0.01)


def test_memory_is_released_after_compilation_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(compiling, "release_freed_memory", lambda: calls.append(None))
    double, is_released = jax.jit(lambda x: 2 * x), []
    with record_compilations(CompileStats()):
        for x in (np.float32(1), np.float32(2), np.ones(3, np.float32)):
            before = len(calls)
            double(x)
            is_released.append(len(calls) > before)
    assert is_released == [True, False, True]
