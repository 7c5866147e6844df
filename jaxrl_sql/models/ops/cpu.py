"""Products of bfloat16 on a CPU that has instructions for them, in the form that XLA's CPU backend uses these for.

They are Intel's AMX and AVX512_BF16, which AMD has too. The form is [M,K] times [K,S] or [S,K], in batches too, both
operands lying by rows, the result in float32: on two cores 500 to 1,900 GFLOP/s with AMX and 500 to 900 with AMD's (Zen
5), where float32 has 200 to 350. Intel's AVX512_BF16 alone has 110 to 160 where float32 has 190 to 270, and is left
alone. Another form is widened to float32 or has no kernel at all
("Unsupported element type for DotThunk"), a result in bfloat16 takes as long as float32's. What is turned is turned
before, its layout asked for by name, and the result's is too: XLA would take the turning into the product again.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

_TILE = 32
_LEAST = 8


@cache
def cpu_flags() -> frozenset[str]:
    """Return what Linux says that the processor has, and its maker; nothing elsewhere."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()


def has_bfloat16_products() -> bool:
    """Return whether the processor multiplies matrices of bfloat16 faster than those of float32."""
    flags = cpu_flags()
    return "amx_bf16" in flags or {"avx512_bf16", "AuthenticAMD"} <= flags


def product(a: jax.Array, b: jax.Array, is_turned: bool = False) -> jax.Array:
    """Multiply a [*N,M,K] with b [*N,K,S], or [*N,S,K] where it lies turned, both bfloat16 -> [*N,M,S] float32."""
    n = a.ndim - 2
    batch = tuple(range(n))
    over = (((n + 1,), (n + is_turned,)), (batch, batch))
    return _by_rows(lax.dot_general(a, b, over, preferred_element_type=jnp.float32))


def turned(x: jax.Array) -> jax.Array:
    """Turn matrices x [*N,M,K] -> [*N,K,M], lying by rows.

    By tiles, each of which is read and written by whole cache lines: read across, a large matrix takes seven times as
    long.
    """
    *lead, m, k = x.shape
    n = len(lead)
    rows, columns = (math.gcd(size, _TILE) for size in (m, k))
    if min(rows, columns) < _LEAST:
        return _by_rows(jnp.swapaxes(x, n, n + 1))
    tiles = _by_rows(jnp.swapaxes(x.reshape(*lead, m // rows, rows, k // columns, columns), n + 1, n + 2))
    return _by_rows(tiles.transpose(*range(n), n + 1, n + 3, n, n + 2)).reshape(*lead, k, m)


def _by_rows(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
