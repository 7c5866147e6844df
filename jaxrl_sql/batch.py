"""Device types: the grouped batch and the training state, as registered pytrees.

Batches are grouped: a prompt is stored once with its G completions, never as `[B*G, P+T]`. Padding is determined by
lengths only, never by token values.

B prompts, G completions per prompt (its group), P and T padded tokens of a prompt and of a completion, R rows per
prompt that the model runs, M scored positions per prompt.
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
    """Tokens shared by a group's completions, with their valid length: tokens [B,P] int32, length [B] int32.

    The decoder (`models.transformer`) runs a list of segments, in which each token attends to its own segment and to
    those before it. There a segment has R rows per prompt: tokens [B,R,T] and length [B,R]. Rows of the last segment
    may pack several sequences; the fields below are None otherwise:
    owner [B,R,T] int32: sequence of each token; offset [B,R,T] int32: index of the token in its sequence
    starts [B,G] int32: start of each sequence among the R·T positions of its prompt's rows
    """

    tokens: jax.Array
    length: jax.Array
    owner: jax.Array | None = None
    offset: jax.Array | None = None
    starts: jax.Array | None = None


@flax.struct.dataclass
class GroupBatch:
    """B prompts with G completions each.

    shared: segments that precede the completions, in order. Usually this is one segment, the prompt. If
    `prompts_per_schema` is above 1, these are two: the schema, which this many consecutive prompts share, and the rest
    of each prompt. The schema is stored with each of these prompts, so that a batch can be split between such runs of
    prompts. The model computes it once per run of prompts.
    completion [B,G,T] int32, completion_len [B,G] int32
    loss_mask [B,G,T] bool: tokens of the policy that are trained on
    behavior_logprobs [B,G,T] float32: of each token under the distribution that it was sampled from
    rollout_logprobs [B,G,T] float32: under the sampler's full temperature-scaled distribution
    reward [B,G] float32, weight [B,G] float32 (of the completion in the loss; 0 drops it)
    truncated [B,G] bool: completions that ended at the token limit

    With packed completions (`batching.pack`; else None) the model runs R < G rows of T tokens that hold them:
    packed_start [B,G] int32: start of a completion among the R·T positions of its prompt's rows
    packed_length [B,R] int32: number of tokens per row
    scored [B,M] int32: positions among them whose tokens are trained on, padded with R·T; None: all are scored

    demonstrated [B,G] bool: completions that are demonstrations; these have no `behavior_logprobs` and
    `rollout_logprobs`. None: the run has no demonstrations

    Fields that the update computes, None before:
    old_logprobs [B,G,T] float32: under the trainer's policy before the first update on this batch. Only this
    field may have a value before: a stored batch of batch RL has the log-probabilities of the policy that sampled it,
    and the update keeps them
    reference_logprobs [B,G,T] float32: under the reference policy
    advantage [B,G,T] float32, or [B,G,1] if all tokens of a completion have the same
    old_values, returns [B,G,T] float32: the value head's output before the first update, and its targets
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
    prompts_per_schema: int = flax.struct.field(pytree_node=False, default=1)

    def policy_mask(self) -> jax.Array:
        """Return the tokens of the policy, [B,G,T] bool: within the length, in `loss_mask`, and of positive weight."""
        inside = jnp.arange(self.completion.shape[-1]) < self.completion_len[..., None]
        return inside & self.loss_mask & (self.weight > 0)[..., None]


@flax.struct.dataclass
class TrainState:
    """The state that an update reads and writes.

    step: int32 scalar; trainable: the trained parameters; frozen: the base weights of adapters, or None;
    reference: the reference policy, or None if not needed; opt_state: of optax; best: the best parameters so far for
    early stopping (supervised training), else None.
    """

    step: jax.Array
    trainable: PyTree
    frozen: PyTree
    reference: PyTree
    opt_state: PyTree
    best: PyTree = None


def bucket(length: int, smallest: int = 32) -> int:
    """Round a length up to the next of 32, 48, 64, 96, 128, 192, 256, …, with at most a third of padding.

    Few sizes mean few compiled programs. `smallest` replaces 32 as the first size.
    """
    size = smallest
    while size < length:
        if size * 3 // 2 >= length:
            return size * 3 // 2
        size *= 2
    return size


def first_fit(lengths: np.ndarray, width: int) -> tuple[np.ndarray, list[int]]:
    """Pack lengths [G] into rows of `width` positions: return the start of each [G], and the tokens of each row.

    Uses first-fit decreasing (Johnson 1973): longest first, each into the first row with room.
    """
    start, used = np.zeros(len(lengths), np.int32), list[int]()
    for i in np.argsort(-lengths, kind="stable"):
        size = int(lengths[i])
        row = next((row for row, tokens in enumerate(used) if tokens + size <= width), len(used))
        if row == len(used):
            used.append(0)
        start[i] = row * width + used[row]
        used[row] += size
    return start, used


def bucketed_rows(rows: Sequence[int]) -> int:
    """Return R, the number of rows per prompt of a packed batch: the largest of the needed `rows`, as a `bucket`."""
    return bucket(max(rows), smallest=2)


def pad_tokens(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad N token lists on the right; return tokens [N,width] int32 and length [N] int32.

    Raises ValueError for a list of more than `width` tokens.
    """
    tokens = np.zeros((len(rows), width), np.int32)
    lengths = np.array([len(row) for row in rows], np.int32)
    for i, row in enumerate(rows):
        if len(row) > width:
            raise ValueError(f"a sequence of {len(row)} tokens does not fit {width}")
        tokens[i, : len(row)] = row
    return tokens, lengths
