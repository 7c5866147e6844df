"""Initial weights with induction heads, for small models that must copy names absent from their training data.

Copying needs two attention heads in consecutive layers (Olsson et al. 2022, arXiv:2209.11895). The first attends to the
previous token, the second to the token after an earlier occurrence of the current token. From random weights they
emerge only after tens of millions of tokens. This module constructs them in the initial weights, similar to mimetic
initialization (Trockman and Kolter 2023, arXiv:2305.09828); training may change them:

layer 0, head 0   attends to the previous token (constant query and key, rotated by one position). It adds that token's
                  embedding to the residual stream through a separate map, C, so that it differs from the token's own.
layer > 0, head 0 compares the current token with the embeddings written by C. So it attends to the positions after
                  earlier occurrences of the current token, and adds the embeddings of the tokens at these positions.
other heads       have random queries and keys, and add the embedding of the attended token.

An added embedding raises the logit of its token, as embeddings also produce the logits. Rotary embeddings rotate pairs
of coordinates; tokens are compared on the slowly rotating pairs, positions on the fast ones. The first coordinate of
every embedding is a constant, which yields the constant query and key. Letters of shapes: D width of the model, Q size
of a head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import InputError

# Standard deviation of the embeddings; outputs of attention and MLP are scaled to the same size.
EMBED_STD = 0.1
# The first coordinate of every embedding, in units of EMBED_STD.
CONSTANT = 4.0
# Number of the fastest rotary pairs, which the head of layer 0 uses to find the previous position.
FAST_PAIRS = 4
# Pairs that rotate by at most so many radians per position compare tokens almost independently of their distance.
SLOW_FREQUENCY = 0.005
# Factor of the outputs of the copying heads (head 0 after layer 0).
COPY_GAIN = 3.0


def init_induction(params: PyTree, config: ModelConfig, key: jax.Array) -> PyTree:
    """Replace embeddings and attention weights of new parameters, and scale down the MLP outputs.

    params: new parameters of `spec.init_params`. Raises InputError for grouped-query attention, for heads wider than
    the model, and for sliding windows or scaled rotary frequencies, which the construction does not support.
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
    is_slow = np.tile(frequencies <= SLOW_FREQUENCY, 2)  # [Q]; both coordinates of a pair are Q/2 apart
    weights = {name: np.zeros(params["layers"][name].shape) for name in ("q", "k", "v", "o")}
    # Layer 0, head 0 reads the previous token's embedding with `token_map` and writes it with `previous_map`; both
    # together are the map C. Later layers read it there with `previous_map` again.
    token_map, previous_map = _orthonormal(rng, d, q), _orthonormal(rng, d, q)
    for layer in range(config.n_layers):
        for head in range(config.n_heads):
            index = (layer, slice(None), head)
            value_map = _orthonormal(rng, d, q)
            output_map = value_map
            if (layer, head) == (0, 0):
                weights["q"][index], weights["k"][index] = _previous_token_maps(d, frequencies)
                value_map, output_map = token_map, previous_map
            elif head == 0:
                weights["q"][index], weights["k"][index] = token_map * is_slow, previous_map * is_slow
            else:
                weights["q"][index], weights["k"][index] = _orthonormal(rng, d, q), _orthonormal(rng, d, q)
            gain = COPY_GAIN if head == 0 and layer > 0 else 1.0
            weights["v"][index] = value_map
            # The dot product of a vector with its projection is the projection's squared length. With Q of D
            # dimensions it is on average Q/D of the vector's squared length. The factor D/Q restores it, so that a
            # copied embedding has the same dot product with itself as before, and thus the same logit.
            weights["o"][layer, head] = gain * EMBED_STD * (d / q) * output_map.T
    embed = EMBED_STD * rng.standard_normal(params["embed"].shape)
    embed[:, 0] = EMBED_STD * CONSTANT
    dtype = params["embed"].dtype
    layers = {**params["layers"], **{name: jnp.asarray(w, dtype) for name, w in weights.items()}}
    return {**params, "embed": jnp.asarray(embed, dtype), "layers": {**layers, "down": layers["down"] * EMBED_STD}}


def _orthonormal(rng: np.random.Generator, d: int, q: int) -> np.ndarray:
    """Sample a [D,Q] matrix with orthonormal columns that are 0 in the constant first coordinate.

    At most D - 1 columns can be orthonormal; if Q is D, the last column is 0.
    """
    columns = np.linalg.qr(rng.standard_normal((d - 1, min(q, d - 1))))[0]
    matrix = np.zeros((d, q))
    matrix[1:, : columns.shape[1]] = columns
    return matrix


def _previous_token_maps(d: int, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return query and key weights [D,Q] with the largest score at the previous position.

    The query is the key rotated back by one position. With an angle t per position of a pair, the key at distance n
    scores the sum of cos((n - 1) t) over the fast pairs, whose maximum is at n = 1.
    """
    half = len(frequencies)
    query, key = np.zeros((d, 2 * half)), np.zeros((d, 2 * half))
    for pair in range(FAST_PAIRS):
        key[0, pair] = 1.0
        query[0, pair], query[0, pair + half] = np.cos(frequencies[pair]), -np.sin(frequencies[pair])
    return query, key
