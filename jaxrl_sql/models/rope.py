"""Rotary position embeddings: rotations of pairs of coordinates by angles linear in the position (arXiv 2104.09864).

`RopeScaling` lowers frequencies for sequences longer than in pretraining. In shapes Q is the size of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl_sql.types import InputError

Angles = tuple[jax.Array, jax.Array]
"""Cosine and sine of the angles, [...,Q/2] float32 each."""

SCALINGS = ("linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of the frequencies: `kind` is one of `SCALINGS`, and scaled frequencies are divided by `factor`.

    linear: divides all frequencies, which interpolates positions into the range of pretraining (arXiv 2306.15595).
    llama3: divides frequencies with fewer than `low_freq_factor` turns in `original_max_positions` tokens. Those with
    more than `high_freq_factor` turns are unchanged, and between the two the change is gradual (Llama 3.1, arXiv
    2407.21783).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise InputError(f"model: rope scaling is {self.kind!r}; valid are {', '.join(SCALINGS)}")
        if self.factor <= 0 or self.original_max_positions < 1:
            raise InputError(
                f"model: rope scaling has factor {self.factor} and original_max_positions "
                f"{self.original_max_positions}, both must be positive"
            )
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise InputError(
                f"model: rope scaling has low_freq_factor {self.low_freq_factor}, must be positive and below "
                f"high_freq_factor ({self.high_freq_factor})"
            )


@dataclass(frozen=True, slots=True)
class Rope:
    """Options of the rotary embeddings: the base (config.json: rope_theta) and the scaling of the frequencies."""

    theta: float
    scaling: RopeScaling | None = None


def rope_frequencies(head_dim: int, rope: Rope) -> jax.Array:
    """Return the angle per position of each pair of coordinates, [Q/2] float32."""
    frequency = rope.theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    scaling = rope.scaling
    if scaling is None:
        return frequency
    scaled = frequency / scaling.factor
    if scaling.kind == "linear":
        return scaled
    turns = scaling.original_max_positions * frequency / (2 * math.pi)
    unscaled_share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    unscaled_share = jnp.clip(unscaled_share, 0.0, 1.0)
    return unscaled_share * frequency + (1.0 - unscaled_share) * scaled


def rope_angles(positions: jax.Array, frequencies: jax.Array) -> Angles:
    """Return cosine and sine [...,Q/2] float32 of the angles of positions [...] int32 at frequencies [Q/2]."""
    angle = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, angles: Angles) -> jax.Array:
    """Rotate heads x [...,H,Q] by angles [...,Q/2]; pairs are (i, i + Q/2), Hugging Face's order."""
    cos, sin = (part[..., None, :] for part in angles)
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return rotated.astype(x.dtype)
