"""Cost model: floating-point operations of a grouped pass and bytes read by a decode step.

Operations are the multiplications and additions of matrix products, as for model FLOPs utilization (PaLM, arXiv
2204.02311, appendix B). Norms, rotations, softmax, lookups and rematerialization do not count. Each prompt counts once
per group. XLA's `cost_analysis` is unsuitable: it counts the body of a scan once and the masked half of causal
products in full.
"""

from __future__ import annotations

import math

import numpy as np

from jaxrl_sql.models.spec import ModelConfig, param_specs

# The backward pass costs two forward passes: gradients of each product's inputs and weights.
UPDATE_PASSES = 3


def layer_weights(config: ModelConfig) -> int:
    """Return the number of weights in the matrices of one layer, each multiplied once per token."""
    return sum(math.prod(spec.layer_shape) for spec in param_specs(config) if spec.is_stacked and spec.hf_transposed)


def visible_pairs(prompt: int, group: float, completion: int, window: int | None = None) -> int:
    """Count the visible (query, key) pairs of one group under causal attention, within `window` tokens if not None.

    prompt: tokens of the prompt P; group: completions G, possibly a mean over prompts; completion: tokens of each, T.
    """
    reach = math.inf if window is None else window
    ends = np.minimum(np.arange(1, prompt + completion + 1), reach)
    return int(ends[:prompt].sum() + group * ends[prompt:].sum())


def grouped_forward_flops(
    config: ModelConfig, batch: int, prompt: int, group: float, completion: int, counts_masked: bool = False
) -> float:
    """Return the operations to score B groups of full length: P tokens, G completions of T tokens, logits of B·G·T.

    `counts_masked` also counts masked (query, key) pairs, which attention without a kernel computes.
    """
    tokens = prompt + group * completion
    sliding_layers = config.sliding.layers if config.sliding else (False,) * config.n_layers
    if counts_masked:
        pairs = config.n_layers * (prompt**2 + group * completion * (prompt + completion))
    else:
        size = config.sliding.size if config.sliding else None
        pairs = sum(
            visible_pairs(prompt, group, completion, size if is_sliding else None) for is_sliding in sliding_layers
        )
    products = config.n_layers * layer_weights(config) * tokens
    attention = 2 * config.n_heads * config.head_dim * pairs
    logits = config.d_model * config.vocab_size * group * completion
    return 2.0 * batch * (products + attention + logits)


def update_flops(config: ModelConfig, batch: int, prompt: int, group: float, completion: int) -> float:
    """Return the operations of an update of all weights on B groups: forward and backward, without recomputation."""
    return UPDATE_PASSES * grouped_forward_flops(config, batch, prompt, group, completion)


def decode_flops(config: ModelConfig, batch: int, prompt: float, group: int, written: float) -> float:
    """Return the operations of one decode step of B·G rows with `written` completion tokens each."""
    rows = batch * group
    pairs = config.n_layers * (prompt + written + 1)
    weights = config.n_layers * layer_weights(config) + config.d_model * config.vocab_size
    return 2.0 * rows * (weights + 2 * config.n_heads * config.head_dim * pairs)


def decode_bytes(config: ModelConfig, batch: int, prompt: int, group: int, written: float, width: int = 2) -> float:
    """Return the bytes that a decode step must read: the multiplied weights, and valid keys and values.

    The cache of a prompt counts once per group, and that of a layer with a sliding window counts in full.
    written: completion tokens per row, possibly a mean over steps; width: bytes per number.
    """
    weights = config.n_layers * layer_weights(config) + config.d_model * config.vocab_size
    per_token = 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return width * (weights + per_token * batch * (prompt + group * written))
