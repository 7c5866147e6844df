"""Check that parameters are finite.

`runtime/health.py` has the checks of metrics; it may not import JAX, so this check is here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import PyTree
from jaxrl_sql.runtime.health import HealthError, stability_advice


def refuse_broken(step: int, phase: str, trainable: PyTree) -> None:
    """Raise HealthError if trainable parameters are not finite, or so large that the sum of their squares overflows."""
    if not bool(_is_sound(trainable)):
        raise HealthError(
            f"step {step} ({phase}): the parameters are not finite or too large, and are not saved; "
            f"{stability_advice(phase)}"
        )


@jax.jit
def _is_sound(tree: PyTree) -> jax.Array:
    """Return whether the sum of all squares is a finite float32."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(sum((jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in floats), jnp.zeros(())))
