"""The policy as the objective sees it: a function of (trainable, frozen, batch) that scores completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.distribution import KEPT_BYTES, TokenLogprobs, token_logprobs
from jaxrl_sql.models.attention import TreeAttention
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.models.transformer import prediction_states, unembedding
from jaxrl_sql.parallel.rules import batch_ways


def make_policy(
    config: ModelConfig,
    temperature: float = 1.0,
    remat: str = "none",
    compute_dtype: Any = None,
    attention: str | TreeAttention = "xla",
) -> Callable[[Any, Any, GroupBatch], TokenLogprobs]:
    """Return the function that scores a batch's completions, each prompt run once for its whole group.

    The sampling `temperature` divides the trainer's logits too, or the first update's ratio would not be 1. Where
    `trainable` are adapters they are added to the `frozen` base; where it is None the base alone is the policy.
    """

    def logprobs(trainable: Any, frozen: Any, batch: GroupBatch) -> TokenLogprobs:
        params = policy_params(trainable, frozen)
        hidden = prediction_states(
            params, config, batch.shared, batch.completion, batch.completion_len, remat, compute_dtype, attention
        )
        return token_logprobs(
            hidden,
            unembedding(params, config),
            batch.completion,
            temperature,
            kept_bytes=KEPT_BYTES * batch_ways(),  # of all devices together: each holds its part of the batch
            logit_cap=config.final_logit_cap,
        )

    return logprobs
