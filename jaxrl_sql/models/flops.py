"""How much work a model is: floating-point operations of a grouped pass, and bytes that a decode step must read.

Operations count multiplications and additions (2 a pair) of matrix products, which is what utilization is measured
by (PaLM, arXiv 2204.02311, appendix B): norms, rotations, softmax, lookups, and what rematerialization computes
again, count nothing. They are those of the *grouped* computation, each prompt once a group. XLA's own
`cost_analysis` would not do: it counts the body of a scan once and the hidden half of a causal product in full.
"""

from __future__ import annotations

import math

import numpy as np

from jaxrl_sql.models.spec import ModelConfig, param_specs

# A pass backward costs two forward: the gradient of each product's inputs, and of its weights.
UPDATE_PASSES = 3


def layer_weights(config: ModelConfig) -> int:
    """Return the number of weights of one layer's matrices, each multiplied once with every token."""
    return sum(math.prod(spec.layer_shape) for spec in param_specs(config) if spec.is_stacked and spec.hf_transposed)


def seen_pairs(prompt: int, group: float, completion: int, window: int | None = None) -> int:
    """Count the (query, key) pairs of one group that causal attention sees, within `window` tokens if given.

    prompt: tokens of the prompt P; group: completions G (a mean, where prompts have several); completion: tokens of
    each, T.
    """
    reach = math.inf if window is None else window
    ends = np.minimum(np.arange(1, prompt + completion + 1), reach)
    return int(ends[:prompt].sum() + group * ends[prompt:].sum())


def grouped_forward_flops(
    config: ModelConfig, batch: int, prompt: int, group: float, completion: int, whole_squares: bool = False
) -> float:
    """Return the operations of scoring B groups of full lengths: P tokens before G completions of T, logits of B·G·T.

    `whole_squares` counts every (query, key) pair of the products that plain attention computes, hidden ones too.
    """
    tokens = prompt + group * completion
    slides = config.sliding.layers if config.sliding else (False,) * config.n_layers
    if whole_squares:
        pairs = config.n_layers * (prompt**2 + group * completion * (prompt + completion))
    else:
        size = config.sliding.size if config.sliding else None
        pairs = sum(seen_pairs(prompt, group, completion, size if local else None) for local in slides)
    products = config.n_layers * layer_weights(config) * tokens
    attention = 2 * config.n_heads * config.head_dim * pairs
    logits = config.d_model * config.vocab_size * group * completion
    return 2.0 * batch * (products + attention + logits)


def update_flops(config: ModelConfig, batch: int, prompt: int, group: float, completion: int) -> float:
    """Return the operations of an update of all weights on B groups: forward and backward, nothing twice."""
    return UPDATE_PASSES * grouped_forward_flops(config, batch, prompt, group, completion)


def decode_flops(config: ModelConfig, batch: int, prompt: float, group: int, written: float) -> float:
    """Return the operations of one decode step of B·G rows that have written `written` tokens each."""
    rows = batch * group
    pairs = config.n_layers * (prompt + written + 1)
    weights = config.n_layers * layer_weights(config) + config.d_model * config.vocab_size
    return 2.0 * rows * (weights + 2 * config.n_heads * config.head_dim * pairs)


def decode_bytes(config: ModelConfig, batch: int, prompt: int, group: int, written: float, width: int = 2) -> float:
    """Return the bytes that a decode step must read: all weights it multiplies, and valid keys and values.

    A prompt's cache counts once for its group. `written`: tokens that each row has (a mean, where it grows);
    `width`: bytes of a number. A sliding layer's reach is not made use of: its whole cache counts.
    """
    weights = config.n_layers * layer_weights(config) + config.d_model * config.vocab_size
    a_token = 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return width * (weights + a_token * batch * (prompt + group * written))
