"""The section `sampling`: how answers are sampled."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxrl_sql.config.fields import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class SamplingConfig:
    """How answers are sampled in training.

    top_k 0, top_p 1, min_p 0 and repetition_penalty 1 mean the full distribution; strings in `stop` end an answer (or a
    turn), beside the recipe's; where `data.prompt` is `compact` and there are none, the semicolon that ends the
    statement does. With `turns` above 1, where the recipe has several, `max_new_tokens` is for each of the
    policy's turns and `max_total_tokens` for all turns and observations together.
    """

    temperature: PositiveFloat = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: PositiveFloat = 1.0
    stop: list[str] = field(default_factory=list)
    max_new_tokens: PositiveInt = 96
    turns: PositiveInt = 1
    max_total_tokens: int = 0
