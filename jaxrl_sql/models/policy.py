"""The policy as a function (trainable, frozen, batch) that returns the log-probabilities of completions.

The objective (`algo`) differentiates it with respect to the trainable parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.typing import DTypeLike

from jaxrl_sql.batch import GroupBatch, PyTree
from jaxrl_sql.models.attention import TreeAttention
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.models.ops.token_distribution import KEPT_BYTES, IdRanges, TokenLogprobs, token_logprobs
from jaxrl_sql.models.packed import of_completions, packed_rows, scored_tokens
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.models.transformer import states_before, unembedding
from jaxrl_sql.models.value import ActorCritic, policy_part, state_values
from jaxrl_sql.parallel.rules import num_logit_shards


def make_policy(
    config: ModelConfig,
    temperature: float = 1.0,
    remat: str = "none",
    compute_dtype: DTypeLike | None = None,
    attention: str | TreeAttention = "xla",
    kept_bytes: int = KEPT_BYTES,
    missing: IdRanges = (),
) -> Callable[[PyTree, PyTree, GroupBatch], TokenLogprobs]:
    """Return the function that scores a batch's completions and runs each prompt once per group.

    temperature: divides the logits, as in sampling; otherwise the first update's ratio would not be 1.
    remat: activations that the backward pass recomputes instead of saving (setting `model.remat`).
    compute_dtype: type of activations and products; None: that of the parameters.
    attention: attention backend, by name or as a function (`models.attention`).
    kept_bytes: limit of the logits that a device holds at a time.
    missing: ranges of ids without a token, which have probability 0, as in the sampler.

    Of the returned function, `trainable` are all parameters (then `frozen` is None), or adapters or unfrozen weights of
    the `frozen` base, or None for the base alone. For an `ActorCritic`, which has a value head, it also returns values.
    Packed completions, several per row, run in their rows (`models.packed`).
    """

    def logprobs(trainable: PyTree, frozen: PyTree, batch: GroupBatch) -> TokenLogprobs:
        params = policy_params(trainable, frozen)
        rows = packed_rows(batch)
        hidden = states_before(
            params, config, batch.shared, rows, remat, compute_dtype, attention, batch.prompts_per_schema
        )
        states, tokens = scored_tokens(hidden, rows.tokens, batch)
        scored = token_logprobs(
            states,
            unembedding(params, config),
            tokens,
            temperature,
            kept_bytes=kept_bytes * num_logit_shards(config.vocab_size),  # all devices that share the logits
            logit_cap=config.final_logit_cap,
            is_frozen=_has_frozen_table(trainable, frozen, config),
            missing=missing,
        )
        if isinstance(trainable, ActorCritic):
            scored = scored._replace(value=state_values(trainable.value, states))
        by_completion: TokenLogprobs = jax.tree.map(lambda x: of_completions(x, batch), scored)
        return by_completion

    return logprobs


def _has_frozen_table(trainable: PyTree, frozen: PyTree, config: ModelConfig) -> bool:
    """Return whether the unembedding, which maps states to logits, is frozen."""
    name = "embed" if config.tie_embeddings else "unembed"
    params = policy_part(trainable)
    return frozen is not None and name in frozen and not (isinstance(params, dict) and name in params)
