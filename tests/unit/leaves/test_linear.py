"""The dense product and its hand-laid gradient against automatic differentiation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.linear import linear


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
