"""bfloat16 matrix products with CPU instructions, in the form for which XLA's CPU backend uses them.

The instructions are Intel's AMX and AMD's AVX512_BF16. The form is [M,K] times [K,S], or times the transpose of [S,K],
optionally batched, with row-major operands and a float32 result. Throughput on two cores: 500 to 1,900 GFLOP/s with
AMX, 500 to 900 on AMD Zen 5, compared with 200 to 350 in float32. Intel's AVX512_BF16 without AMX is slower than
float32 (110 to 160 compared with 190 to 270) and is not used.

XLA converts products of other forms to float32 or rejects them ("Unsupported element type for DotThunk"). A product
with a bfloat16 result is as slow as one in float32. So operands are transposed explicitly, with constraints on the
memory layout of operands and result. Without these constraints XLA fuses the transposition into the product, which then
does not have the required form.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

# Maximum rows and columns of a tile in `transpose`: 32 bfloat16 numbers are a cache line of 64 bytes.
_TILE = 32
# Tiles with fewer rows or columns are not used.
_MIN_SIZE = 8


@cache
def cpu_flags() -> frozenset[str]:
    """Return the words of /proc/cpuinfo, which include flags and vendor; empty on other systems."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()


def has_bfloat16_products() -> bool:
    """Return whether the processor multiplies bfloat16 matrices faster than float32."""
    flags = cpu_flags()
    return "amx_bf16" in flags or {"avx512_bf16", "AuthenticAMD"} <= flags


def product(a: jax.Array, b: jax.Array, is_transposed: bool = False) -> jax.Array:
    """Multiply a [*N,M,K] with b [*N,K,S], or [*N,S,K] if `is_transposed`, both bfloat16 -> [*N,M,S] float32."""
    n = a.ndim - 2
    batch = tuple(range(n))
    dimensions = (((n + 1,), (n + is_transposed,)), (batch, batch))
    return _row_major(lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32))


def transpose(x: jax.Array) -> jax.Array:
    """Transpose matrices x [*N,M,K] -> [*N,K,M], row-major.

    The transposition works on tiles of whole cache lines; without tiles a large matrix takes seven times as long.
    """
    *batch, m, k = x.shape
    n = len(batch)
    rows, columns = (math.gcd(size, _TILE) for size in (m, k))
    if min(rows, columns) < _MIN_SIZE:
        return _row_major(jnp.swapaxes(x, n, n + 1))
    tiles = _row_major(jnp.swapaxes(x.reshape(*batch, m // rows, rows, k // columns, columns), n + 1, n + 2))
    return _row_major(tiles.transpose(*range(n), n + 1, n + 3, n, n + 2)).reshape(*batch, k, m)


def _row_major(x: jax.Array) -> jax.Array:
    """Constrain an array to the row-major memory layout, so that XLA does not fuse a transposition into its use."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
