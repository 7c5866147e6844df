"""The policy as the objective sees it: a function of (trainable, frozen, batch) that scores completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.distribution import TokenLogprobs, token_logprobs
from jaxrl_sql.models.attention import TreeAttention
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.models.transformer import prediction_states, unembedding


def make_policy(
    config: ModelConfig, temperature: float = 1.0, remat: str = "none", attention: str | TreeAttention = "xla"
) -> Callable[[Any, Any, GroupBatch], TokenLogprobs]:
    """Return the function that scores a batch's completions, each prompt run once for its whole group.

    The sampling `temperature` divides the trainer's logits too, or the first update's ratio would not be 1.
    """

    def logprobs(trainable: Any, frozen: Any, batch: GroupBatch) -> TokenLogprobs:
        del frozen
        hidden = prediction_states(
            trainable, config, batch.shared, batch.completion, batch.completion_len, remat=remat, attention=attention
        )
        matrix = unembedding(trainable, config)
        return token_logprobs(hidden, matrix, batch.completion, temperature, logit_cap=config.final_logit_cap)

    return logprobs
