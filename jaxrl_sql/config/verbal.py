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

    out: Annotated[str, "Output folder."] = "runs/verbal"
    surplus_columns: Annotated[
        int,
        "A prediction with at least this many extra columns is wrong by the scoring rule `ex_b` (partial match); 0 "
        "allows any number.",
    ] = 0
    include_ids: Annotated[str, "File of question ids; other questions are skipped. If empty, none are skipped."] = ""
    candidates: Annotated[
        PositiveInt, "Number of distinct queries per question that return rows, among which the model chooses."
    ] = 10
    attempts: Annotated[
        PositiveInt, "Maximum number of answers that are sampled for the candidates, as a multiple of them."
    ] = 20
    rounds: Annotated[
        PositiveInt, "Number of replies in which the model scores all candidates; the best mean score wins."
    ] = 20
    normalise: Annotated[bool, "Measure each reply's scores in standard deviations from their mean."] = False
    temperature: Annotated[PositiveFloat, "Temperature of the sampled candidates."] = 0.8
    max_tokens: Annotated[PositiveInt, "Maximum number of tokens of a sampled candidate's answer."] = 2048
    stop: Annotated[
        list[str],
        Texts("every answer would be empty"),
        "Strings that end a candidate's answer, in addition to the recipe's; they are not sent to an endpoint.",
    ] = field(default_factory=list)
    judge_temperature: Annotated[float, "Temperature of the replies with scores."] = 0.8
    judge_max_tokens: Annotated[PositiveInt, "Maximum number of tokens of a reply with scores."] = 1024
    batch: Annotated[PositiveInt, "Number of questions that are processed concurrently."] = 32
