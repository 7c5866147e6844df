"""Device nouns: the grouped batch and the state of training, as registered pytrees.

The group is the unit: a prompt stands once, its G completions beside it, never `[B*G, P+T]`.
Padding is known from lengths alone; token values are never asked whether they are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


@flax.struct.dataclass
class Segment:
    """Tokens and how many of them are valid: tokens [B,P] int32, length [B] int32, of what a group's completions share.

    In the tree that the decoder runs over (`models.transformer`) a segment has R rows a prompt: [B,R,T] and [B,R].
    Where a row of the last segment holds several sequences, one after another, owner [B,R,T] int32 names that of each
    token, offset [B,R,T] int32 is the token's index in it, and starts [B,G] int32 is where each begins among the R·T
    places of its prompt's rows; None where a row is one sequence.
    """

    tokens: jax.Array
    length: jax.Array
    owner: jax.Array | None = None
    offset: jax.Array | None = None
    starts: jax.Array | None = None


@flax.struct.dataclass
class GroupBatch:
    """B prompts with G completions each.

    shared: segments that precede the completions, in order: the prompt; or, where `together` is above 1, what so many
    prompts in a row have in common, their database's schema, and then the rest of each. What is in common stands with
    each of them, so that a batch may be cut wherever they are not parted, and is run once for all of them.
    completion [B,G,T] int32, completion_len [B,G] int32
    loss_mask [B,G,T] bool: tokens that the policy wrote and that are trained on
    behavior_logprobs [B,G,T] float32: of each token under the distribution it was sampled from
    rollout_logprobs [B,G,T] float32: under the sampler's full temperature-scaled distribution
    reward [B,G] float32, weight [B,G] float32 (0 drops a completion), truncated [B,G] bool

    Where completions are packed (`batching.pack`; else None) the model runs R < G rows of T tokens, which hold them:
    packed_start [B,G] int32: where in the R·T places of its prompt's rows a completion begins
    packed_length [B,R] int32: the tokens of each row
    scored [B,K] int32: the places among them whose tokens are learned, R·T beyond the last; None: all are scored

    demonstrated [B,G] bool: completions that nobody sampled, so that nothing above is known of a sampler; None: the run
    has none

    What the update finds out itself stands last, None until then:
    old_logprobs [B,G,T] float32: under the trainer's policy before the first update on this batch (may arrive stored)
    reference_logprobs [B,G,T] float32: under the reference policy
    advantage [B,G,T] float32, or [B,G,1] where all tokens of a completion have the same
    old_values, returns [B,G,T] float32: of the value head before the first update, and what it should have said
    """

    shared: tuple[Segment, ...]
    completion: jax.Array
    completion_len: jax.Array
    loss_mask: jax.Array
    behavior_logprobs: jax.Array
    rollout_logprobs: jax.Array
    reward: jax.Array
    weight: jax.Array
    truncated: jax.Array
    packed_start: jax.Array | None = None
    packed_length: jax.Array | None = None
    scored: jax.Array | None = None
    demonstrated: jax.Array | None = None
    old_logprobs: jax.Array | None = None
    reference_logprobs: jax.Array | None = None
    advantage: jax.Array | None = None
    old_values: jax.Array | None = None
    returns: jax.Array | None = None
    together: int = flax.struct.field(pytree_node=False, default=1)

    def trained(self) -> jax.Array:
        """Return the tokens that enter the loss, [B,G,T] bool: within the length, masked in, and of weight."""
        inside = jnp.arange(self.completion.shape[-1]) < self.completion_len[..., None]
        return inside & self.loss_mask & (self.weight > 0)[..., None]


@flax.struct.dataclass
class TrainState:
    """Everything that an update reads and writes.

    step: int32 scalar; trainable: the parameters that move; frozen: the base under adapters, or None;
    reference: the reference policy, or None where it is not needed; opt_state: optax's; best: the best parameters so
    far, where early stopping goes back to them (supervised learning), else None.
    """

    step: jax.Array
    trainable: PyTree
    frozen: PyTree
    reference: PyTree
    opt_state: PyTree
    best: PyTree = None


def bucket(length: int, smallest: int = 32) -> int:
    """Round a length up to the next of 32, 48, 64, 96, 128, 192, 256, …: at most a third of a bucket is padding."""
    size = smallest
    while size < length:
        if size * 3 // 2 >= length:
            return size * 3 // 2
        size *= 2
    return size


def first_fit(lengths: np.ndarray, width: int) -> tuple[np.ndarray, list[int]]:
    """Return where each of some lengths [G] begins among rows of `width` places [G], and the tokens of each row.

    Longest first, each into the first row that has room (first-fit decreasing, Johnson 1973).
    """
    start, used = np.zeros(len(lengths), np.int32), list[int]()
    for i in np.argsort(-lengths, kind="stable"):
        size = int(lengths[i])
        row = next((row for row, taken in enumerate(used) if taken + size <= width), len(used))
        if row == len(used):
            used.append(0)
        start[i] = row * width + used[row]
        used[row] += size
    return start, used


def most_rows(rows: Sequence[int]) -> int:
    """Return how many rows a prompt of a packed batch has, of those that each needs: one of few numbers."""
    return bucket(max(rows), smallest=2)


def pad_tokens(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad N token lists on the right: -> tokens [N,width] int32, length [N] int32."""
    tokens = np.zeros((len(rows), width), np.int32)
    lengths = np.array([len(row) for row in rows], np.int32)
    for i, row in enumerate(rows):
        if len(row) > width:
            raise ValueError(f"a sequence of {len(row)} tokens does not fit {width}")
        tokens[i, : len(row)] = row
    return tokens, lengths
