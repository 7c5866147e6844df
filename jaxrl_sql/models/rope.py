"""Rotary positions: pairs of a head's coordinates turned by an angle that grows with the position (arXiv 2104.09864).

The frequencies may be stretched for sequences longer than those of pretraining, in one of the ways of `RopeScaling`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl_sql.types import InputError

Angles = tuple[jax.Array, jax.Array]

SCALINGS = ("linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How frequencies are stretched; `kind` is one of `SCALINGS`, and `factor` divides a frequency that is.

    linear: all of them are, which squeezes positions into the range of pretraining (arXiv 2306.15595).
    llama3: only those that turn fewer than `low_freq_factor` times within `original_max_positions`; those that turn
    more than `high_freq_factor` times stay, and between the two the change is gradual (Llama 3.1, arXiv 2407.21783).
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
    stretched = frequency / scaling.factor
    if scaling.kind == "linear":
        return stretched
    turns = scaling.original_max_positions * frequency / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = jnp.clip(kept, 0.0, 1.0)
    return kept * frequency + (1.0 - kept) * stretched


def rope_angles(positions: jax.Array, frequencies: jax.Array) -> Angles:
    """Return cosine and sine [...,Q/2] float32 of positions [...] int32 under frequencies [Q/2]."""
    angle = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, angles: Angles) -> jax.Array:
    """Turn heads x [B,R,T,H,Q] by angles [B,R,T,Q/2]; pairs are (i, i + Q/2), as Hugging Face stores weights."""
    cos, sin = (part[..., None, :] for part in angles)
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return turned.astype(x.dtype)
