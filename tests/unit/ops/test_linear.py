"""The dense product and its hand-laid gradient against automatic differentiation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.ops.linear import linear


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
    a, b, c = jax.random.split(jax.random.key(0), 3)
    x, w = jax.random.normal(a, x_shape), jax.random.normal(b, w_shape)
    expected = jnp.einsum(formula, x, w)
    out = jax.random.normal(c, expected.shape)
    np.testing.assert_allclose(linear(x, w, n_in), expected, rtol=1e-5, atol=1e-5)
    got = jax.grad(lambda x, w: jnp.sum(jnp.sin(linear(x, w, n_in)) * out), (0, 1))(x, w)
    want = jax.grad(lambda x, w: jnp.sum(jnp.sin(jnp.einsum(formula, x, w)) * out), (0, 1))(x, w)
    for g, e in zip(got, want, strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n_out", "dtype"), [(9, None), (3, None), (9, "float32")])
def test_wide_weights_under_narrow_activations(n_out: int, dtype: str | None) -> None:
    """The operands are bfloat16, the sums are float32, and rounded only where the result or the input's gradient is."""
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
