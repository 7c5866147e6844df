"""The section `evaluate`: benchmarks, predictions and rules of `jaxrl-sql evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import OneOf, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class EvaluateSettings(EndpointConfig):
    """What the command `evaluate` judges, and how a model answers there (`ask` samples like this too).

    `data` are folders of benchmarks, `split` the part of each (empty: the one that it has, or its development part),
    `limit` the first so many questions of each (0: all). `include_ids` names a file of ids, and other questions are not
    asked; with `answerable_only` those without an answer are not (EHRSQL's). `predictions` are files, one a folder;
    without them `model.checkpoint` answers, or the endpoint at `base_url`, in the words of `recipe` and `data`.
    `sql_field` names where SQL stands in them (empty: it is found, or refused where the gold could be taken for the
    prediction). `allow_missing` leaves questions without a prediction out of every share, `allow_extra` leaves out
    predictions for none; else both are refused. `rules`: by what results are compared (empty: bird, refined,
    test_suite, and the benchmark's own); `rule` names the one that `accuracy` is by (empty: the benchmark's own). By
    `ex_b` a prediction has fewer than `surplus_columns` columns beside the gold's (0: any number). `strip_distinct`
    takes DISTINCT out of predictions and golds before they run, as Spider's own command does unless told otherwise.

    A `temperature` of 0 is greedy. `samples` answers to a question are sampled and one chosen by `vote`: `result` (most
    have its rows) or `soft` (nearest to all others). `runs` sample everything anew. With `turns` above 1, where
    the recipe has several, `max_new_tokens` is for each and `max_total_tokens` for all turns and observations together
    (an endpoint is told of the first alone). Where an endpoint's model takes no temperature, `send_temperature=false`
    sends none, and `samples` and `runs` ask it anew.
    """

    data: list[str] = field(default_factory=list)
    split: str = ""
    limit: int = 0
    include_ids: str = ""
    answerable_only: bool = False
    predictions: list[str] = field(default_factory=list)
    sql_field: str = ""
    allow_missing: bool = False
    allow_extra: bool = False
    rules: list[str] = field(default_factory=list)
    rule: str = ""
    surplus_columns: int = 0
    strip_distinct: bool = False
    out: str = "runs/evaluate"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: PositiveFloat = 1.0
    samples: PositiveInt = 1
    vote: Annotated[str, OneOf("result", "soft")] = "result"
    runs: PositiveInt = 1
    turns: PositiveInt = 1
    max_new_tokens: PositiveInt = 1024
    max_total_tokens: int = 0
    max_num_seqs: PositiveInt = 64
    send_temperature: bool = True
