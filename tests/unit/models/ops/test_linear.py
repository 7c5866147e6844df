"""The dense product and its explicit gradient, compared with automatic differentiation."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models.ops import cpu
from jaxrl_sql.models.ops.linear import Transposed, linear


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "n_in", "formula"),
    [
        ((2, 3, 5, 4), (4, 9), 1, "abcd,de->abce"),
        ((2, 3, 5, 9), (9, 4), 1, "abcd,de->abce"),
        ((2, 3, 5, 4), (4, 2, 3), 1, "abcd,dhq->abchq"),
        ((2, 3, 5, 2, 3), (2, 3, 4), 2, "abchq,hqd->abcd"),
        ((7, 4), (4, 4), 1, "ad,de->ae"),
    ],
)
def test_values_and_gradients(x_shape: tuple[int, ...], w_shape: tuple[int, ...], n_in: int, formula: str) -> None:
    r = np.random.default_rng(0)
    x, w = (r.normal(size=shape).astype(np.float32) for shape in (x_shape, w_shape))
    expected = np.einsum(formula, x, w)
    out = r.normal(size=expected.shape).astype(np.float32)

    def summed(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        product = linear(x, w, n_in)
        return jnp.sum(jnp.sin(product) * out), product

    got, product = jax.jit(jax.grad(summed, (0, 1), has_aux=True))(x, w)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)
    want = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(jnp.einsum(formula, x, w)) * out), (0, 1)))(x, w)
    for g, e in zip(got, want, strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n_out", "dtype"), [(9, None), (3, None), (9, "float32")])
def test_float32_weights_with_bfloat16_activations(n_out: int, dtype: str | None) -> None:
    """Operands are bfloat16 and sums float32; only the result and the gradient of the input may be rounded."""
    a, b, c = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(a, (50, 4), jnp.bfloat16)
    w = jax.random.normal(b, (4, n_out))
    out, pull = jax.vjp(lambda x, w: linear(x, w, 1, dtype), x, w)
    assert out.dtype == (dtype or jnp.bfloat16)
    exact = x.astype(jnp.float32) @ w.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_allclose(out, exact, rtol=1e-6 if dtype else 2**-8, atol=1e-6)
    g = jax.random.normal(c, out.shape, jnp.bfloat16).astype(out.dtype)
    dx, dw = pull(g)
    assert (dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(dw, x.astype(jnp.float32).T @ g.astype(jnp.float32), rtol=1e-5, atol=1e-5)


def test_transposed_matrix() -> None:
    a, b, c = jax.random.split(jax.random.key(0), 3)
    for d, v in ((4, 9), (9, 4)):
        x, w = jax.random.normal(a, (2, 3, d)), jax.random.normal(b, (v, d))
        weights = jax.random.normal(c, (2, 3, v))
        got, pull = jax.vjp(lambda x, w: linear(x, Transposed(w)), x, w)
        want, pull_plain = jax.vjp(lambda x, w: x @ w.T, x, w)
        assert Transposed(w).shape == (d, v)
        for item, other in zip((got, *pull(weights)), (want, *pull_plain(weights)), strict=True):
            np.testing.assert_allclose(item, other, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    cpu.cpu_flags().isdisjoint({"amx_bf16", "avx512_bf16"}), reason="needs a CPU with instructions for bfloat16"
)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("t", "d", "v"), [(1, 64, 96), (7, 1, 3), (130, 33, 257), (64, 640, 1), (256, 256, 640)])
def test_bfloat16_products_use_bfloat16_instructions(
    t: int, d: int, v: int, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result, input gradient and weight gradient are one product each, with bfloat16 operands."""
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: True)  # slower instructions compute the same
    r = np.random.default_rng(0)
    shapes = (2, t, d), (v, d) if is_transposed else (d, v), (2, t, v)
    x, w, g = (jnp.asarray(r.normal(size=shape).astype(np.float32)) for shape in shapes)
    x, g = (z.astype(jnp.bfloat16) for z in (x, g))

    @jax.jit
    def both(x: jax.Array, w: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        # The transpose of the gradient must not be fused into the product.
        out, pull = jax.vjp(lambda x, w: linear(x, Transposed(w) if is_transposed else w), x, w)
        dx, dw = pull(g)
        return out, dx, dw.T

    program = both.lower(x, w, g).compile()
    if min(t, d, v) >= 64:
        text = program.as_text()
        operands = re.findall(r" dot\((%[\w.]+), (%[\w.]+)\)", text)
        assert len(operands) == 3
        for name in (name for pair in operands for name in pair):
            assert f"{name} = bf16[" in text, text
    wide = [np.asarray(z.astype(jnp.bfloat16), np.float64) for z in (x, w, g)]
    matrix = wide[1].T if is_transposed else wide[1]
    dw = np.einsum("btd,btv->dv", wide[0], wide[2])
    expected = (wide[0] @ matrix, wide[2] @ matrix.T, dw if is_transposed else dw.T)
    for item, other, rounding in zip(both(x, w, g), expected, (2**-8, 2**-8, 1e-5), strict=True):
        np.testing.assert_allclose(
            np.asarray(item, np.float64), other, rtol=rounding, atol=rounding * np.abs(other).max()
        )


@pytest.mark.parametrize("shape", [(64, 96), (2, 3, 40, 16), (5, 32), (33, 64), (1, 1)])
def test_transpose_by_tiles_equals_whole_transpose(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    np.testing.assert_array_equal(jax.jit(cpu.transpose)(x), np.swapaxes(x, -1, -2))


@pytest.mark.parametrize(
    ("flags", "is_fast"),
    [
        ("GenuineIntel avx512_bf16 amx_bf16", True),
        ("AuthenticAMD avx512f avx512_bf16", True),
        ("GenuineIntel avx512f avx512_bf16", False),
        ("AuthenticAMD avx2", False),
        ("", False),
    ],
)
def test_bfloat16_products_are_used_only_on_faster_cpus(
    flags: str, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intel's AVX512_BF16 without AMX has two thirds of float32's rate (docs/results/training.md)."""
    monkeypatch.setattr(cpu, "cpu_flags", lambda: frozenset(flags.split()))
    assert cpu.has_bfloat16_products() == is_fast
