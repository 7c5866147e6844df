"""The section `verbal`: verbal reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import PositiveFloat, PositiveInt, Texts


@dataclass(frozen=True)
class VerbalSettings(EndpointConfig):
    """Verbal reinforcement learning with `jaxrl-sql verbal`: a model samples candidates and chooses among its own.

    The model is `model.checkpoint`, or the endpoint at `verbal.base_url`.
    """

    out: Annotated[str, "Folder that is written."] = "runs/verbal"
    surplus_columns: Annotated[
        int, "Number of columns beyond the gold's from which the rule `ex_b` refuses a prediction; 0 allows any number."
    ] = 0
    include_ids: Annotated[str, "File of question ids; other questions are not asked. If empty, all are asked."] = ""
    candidates: Annotated[
        PositiveInt, "Number of distinct queries per question that run and return rows, among which the model chooses."
    ] = 10
    attempts: Annotated[PositiveInt, "Most answers that are sampled for the candidates, as a multiple of them."] = 20
    rounds: Annotated[
        PositiveInt, "Number of replies in which the model scores all candidates; the best mean score wins."
    ] = 20
    normalise: Annotated[bool, "Measure each reply's scores in standard deviations from their mean."] = False
    temperature: Annotated[PositiveFloat, "Temperature of the sampled candidates."] = 0.8
    max_tokens: Annotated[PositiveInt, "Most tokens of a sampled candidate's answer."] = 2048
    stop: Annotated[
        list[str],
        Texts("no answer would be begun"),
        "Strings that end a candidate's answer, in addition to the recipe's; an endpoint does not get them.",
    ] = field(default_factory=list)
    judge_temperature: Annotated[float, "Temperature of the replies with scores."] = 0.8
    judge_max_tokens: Annotated[PositiveInt, "Most tokens of a reply with scores."] = 1024
    batch: Annotated[PositiveInt, "Number of questions that are asked at the same time."] = 32
