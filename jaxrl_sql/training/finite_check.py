"""Whether parameters can still be computed with; apart from `health`, which commands read that need no jax."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import PyTree
from jaxrl_sql.runtime.health import HealthError, calmer


def refuse_broken(step: int, phase: str, trainable: PyTree) -> None:
    """Raise HealthError when parameters are not finite, or so large that nothing can be computed with them."""
    if not bool(_is_sound(trainable)):
        raise HealthError(
            f"step {step} ({phase}): the parameters are not finite or beyond all measure, and are not saved; "
            f"{calmer(phase)}"
        )


@jax.jit
def _is_sound(tree: PyTree) -> jax.Array:
    """Return whether the sum of all squares is a finite float32."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(sum((jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in floats), jnp.zeros(())))
