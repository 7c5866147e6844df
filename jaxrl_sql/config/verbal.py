"""The section `verbal`: verbal reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class VerbalSettings(EndpointConfig):
    """Verbal reinforcement learning, by the command `verbal`: a model samples candidates and chooses among its own.

    The model is `model.checkpoint`, or one behind an endpoint where `base_url` names one. `candidates` distinct queries
    that run and return rows are looked for in up to `attempts` times as many answers; then the model scores them all
    in one reply, `rounds` times, and the best mean wins. With `normalise` each reply's scores are taken in standard
    deviations from their mean. `batch` questions are asked at once. By EX_b a prediction has fewer than
    `surplus_columns` columns beside the gold's (0: any number). `include_ids` names a file of ids: other questions are
    not asked. `out` is the folder that is written.
    """

    out: str = "runs/verbal"
    surplus_columns: int = 0
    include_ids: str = ""
    candidates: PositiveInt = 10
    attempts: PositiveInt = 20
    rounds: PositiveInt = 20
    normalise: bool = False
    temperature: PositiveFloat = 0.8
    max_tokens: PositiveInt = 2048
    judge_temperature: float = 0.8
    judge_max_tokens: PositiveInt = 1024
    batch: PositiveInt = 32
