"""Initial weights with induction heads, for small models that must copy names absent from their training data.

Copying needs two consecutive attention heads (Olsson et al. 2022, arXiv:2209.11895). The first attends to the previous
token, the second to the token after an earlier occurrence of the current one. From random weights they emerge only
after tens of millions of tokens. This module constructs them in the initial weights, similar to mimetic initialization
(Trockman and Kolter 2023, arXiv:2305.09828); training may change them:

layer 0, head 0   attends to the previous token (constant query and key, rotated by one position) and writes its value
                  through a separate map, C
later, head 0     matches the current token with keys written by C: the positions after its earlier occurrences
other heads       match the current token
every head        writes the attended token's embedding, which raises that token's logit

Content is matched on the slow rotary pairs, position on the fast ones. The first coordinate of every embedding is a
constant, which yields the constant query and key.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import InputError

EMBED_STD = 0.1
CONSTANT = 4.0
FAST_PAIRS = 4
SLOW_FREQUENCY = 0.005
COPY_GAIN = 3.0


def init_induction(params: PyTree, config: ModelConfig, key: jax.Array) -> PyTree:
    """Replace embeddings and attention weights of new parameters, and scale down the MLP outputs.

    Raises InputError for grouped-query attention, for heads wider than the model, and for sliding windows or scaled
    rotary frequencies, which the construction does not support.
    """
    d, q = config.d_model, config.head_dim
    if config.n_heads != config.n_kv_heads or q > d:
        raise InputError("model.init=copying needs n_kv_heads equal to n_heads and head_dim at most d_model")
    if config.sliding or config.rope.scaling:
        raise InputError(
            f"model.init=copying supports no sliding windows or scaled positions: model.family is {config.family}"
        )
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    frequencies = config.rope.theta ** (-np.arange(q // 2) / (q // 2))
    slow = np.tile(frequencies <= SLOW_FREQUENCY, 2)
    weights = {name: np.zeros(params["layers"][name].shape) for name in ("q", "k", "v", "o")}
    read, write = _orthonormal(rng, d, q), _orthonormal(rng, d, q)
    for layer in range(config.n_layers):
        for head in range(config.n_heads):
            at = (layer, slice(None), head)
            value = _orthonormal(rng, d, q)
            out = value
            if (layer, head) == (0, 0):
                weights["q"][at], weights["k"][at] = _look_back(d, frequencies)
                value, out = read, write
            elif head == 0:
                weights["q"][at], weights["k"][at] = read * slow, write * slow
            else:
                weights["q"][at], weights["k"][at] = _orthonormal(rng, d, q), _orthonormal(rng, d, q)
            gain = COPY_GAIN if head == 0 and layer > 0 else 1.0
            weights["v"][at] = value
            weights["o"][layer, head] = gain * EMBED_STD * (d / q) * out.T
    embed = EMBED_STD * rng.standard_normal(params["embed"].shape)
    embed[:, 0] = EMBED_STD * CONSTANT
    dtype = params["embed"].dtype
    layers = {**params["layers"], **{name: jnp.asarray(w, dtype) for name, w in weights.items()}}
    return {**params, "embed": jnp.asarray(embed, dtype), "layers": {**layers, "down": layers["down"] * EMBED_STD}}


def _orthonormal(rng: np.random.Generator, d: int, q: int) -> np.ndarray:
    """Sample a [D,Q] matrix with orthonormal columns that are 0 in the constant coordinate."""
    columns = np.linalg.qr(rng.standard_normal((d - 1, min(q, d - 1))))[0]
    matrix = np.zeros((d, q))
    matrix[1:, : columns.shape[1]] = columns
    return matrix


def _look_back(d: int, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return query and key weights [D,Q] with the largest score at the previous position.

    With a rotation of t per position, the score of the key at distance 1 is the sum of cos(0), the maximum.
    """
    half = len(frequencies)
    query, key = np.zeros((d, 2 * half)), np.zeros((d, 2 * half))
    for pair in range(FAST_PAIRS):
        key[0, pair] = 1.0
        query[0, pair], query[0, pair + half] = np.cos(frequencies[pair]), -np.sin(frequencies[pair])
    return query, key
