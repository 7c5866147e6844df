"""Cost model: floating-point operations of a grouped pass and bytes read by a decode step.

A grouped pass runs each prompt once for its G completions. Operations are the multiplications and additions of matrix
products, as for model FLOPs utilization (PaLM, arXiv 2204.02311, appendix B). Norms, rotations, softmax, lookups and
rematerialization do not count. XLA's `cost_analysis` is unsuitable: it counts the body of a scan once and the masked
half of causal products in full.

The factor 2.0 of each result is a multiplication and an addition per product. The factor 2 of attention is its two
products, queries with keys and weights with values. The factor 2 of a cache is keys and values.
"""

from __future__ import annotations

import math

import numpy as np

from jaxrl_sql.models.spec import ModelConfig, param_specs

# Cost of an update in forward passes. The backward pass costs two: the gradients of each product's input and weight.
UPDATE_PASSES = 3


def layer_weights(config: ModelConfig) -> int:
    """Return the number of weights in the matrices of one layer, each multiplied once per token."""
    return sum(math.prod(spec.layer_shape) for spec in param_specs(config) if spec.is_stacked and spec.hf_transposed)


def visible_pairs(prompt: int, group: float, completion: int, window: int | None = None) -> int:
    """Count the visible (query, key) pairs of one group under causal attention, within `window` tokens if not None.

    prompt: tokens of the prompt P; group: completions G, possibly a mean over prompts; completion: tokens of each, T.
    The window includes the query's own token.
    """
    max_keys = math.inf if window is None else window
    keys = np.minimum(np.arange(1, prompt + completion + 1), max_keys)  # of the query at each position
    return int(keys[:prompt].sum() + group * keys[prompt:].sum())


def grouped_forward_flops(
    config: ModelConfig, batch: int, prompt: int, group: float, completion: int, counts_masked: bool = False
) -> float:
    """Return the operations to score `batch` groups whose prompts and completions have the full length.

    prompt: tokens P of a prompt; group: completions G per prompt; completion: tokens T of each. Only completion tokens
    have logits. `counts_masked` also counts masked (query, key) pairs, which attention without a kernel computes.
    """
    tokens = prompt + group * completion
    sliding_layers = config.sliding.layers if config.sliding else (False,) * config.n_layers
    if counts_masked:
        pairs = config.n_layers * (prompt**2 + group * completion * (prompt + completion))
    else:
        window = config.sliding.size if config.sliding else None
        pairs = sum(
            visible_pairs(prompt, group, completion, window if is_sliding else None) for is_sliding in sliding_layers
        )
    products = config.n_layers * layer_weights(config) * tokens
    attention = 2 * config.n_heads * config.head_dim * pairs
    logits = config.d_model * config.vocab_size * group * completion
    return 2.0 * batch * (products + attention + logits)


def update_flops(config: ModelConfig, batch: int, prompt: int, group: float, completion: int) -> float:
    """Return the operations of an update of all weights on `batch` groups: forward and backward passes.

    Recomputation (rematerialization) does not count. The arguments are those of `grouped_forward_flops`.
    """
    return UPDATE_PASSES * grouped_forward_flops(config, batch, prompt, group, completion)


def decode_flops(config: ModelConfig, batch: int, prompt: float, group: int, written: float) -> float:
    """Return the operations of one decode step of `batch` · `group` rows.

    prompt: tokens per prompt; written: completion tokens per row before this step. Both may be means.
    """
    rows = batch * group
    pairs = config.n_layers * (prompt + written + 1)
    weights = config.n_layers * layer_weights(config) + config.d_model * config.vocab_size
    return 2.0 * rows * (weights + 2 * config.n_heads * config.head_dim * pairs)


def decode_bytes(
    config: ModelConfig, batch: int, prompt: int, group: int, written: float, bytes_per_number: int = 2
) -> float:
    """Return the bytes that a decode step must read: the weights of all products, and valid keys and values.

    The cache of a prompt counts once per group, and that of a layer with a sliding window counts in full.
    batch: prompts; prompt: tokens per prompt; group: completions per prompt; written: completion tokens per row,
    possibly a mean over steps; bytes_per_number: of weights, keys and values.
    """
    weights = config.n_layers * layer_weights(config) + config.d_model * config.vocab_size
    kv_per_token = 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return bytes_per_number * (weights + kv_per_token * batch * (prompt + group * written))
