"""What the commands beside training can be set by: one section each, with its defaults and what each means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.rules import OneOf, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class FilterConfig:
    """Filters of `jaxrl-sql data filter` for the questions of `data.train`; 0 or an empty value is no filter.

    Golds: `failing_gold`, `empty_gold` (no rows), over `max_gold_steps` VM steps or `max_gold_ms` milliseconds (which
    depends on the machine), under `min_sql_characters` or over `max_sql_characters`, or in the file of ids `noisy`.
    Questions: `repeats` of one on the same database, and with `long_prompts` those over `data.max_prompt_tokens`. With
    `samples` answers a question sampled from `model.checkpoint` as `sampling` says, the share of right ones must lie in
    [`low`, `high`]. Of what is left every `subsample_every`-th stays. `out` is the folder that is written.
    """

    out: str = "runs/filter"
    failing_gold: bool = True
    empty_gold: bool = True
    max_gold_steps: int = 0
    max_gold_ms: int = 0
    min_sql_characters: int = 0
    max_sql_characters: int = 0
    noisy: str = ""
    repeats: bool = True
    long_prompts: bool = False
    samples: int = 0
    low: float = 0.0
    high: float = 1.0
    subsample_every: PositiveInt = 1


@dataclass(frozen=True)
class EndpointConfig:
    """A model behind an OpenAI-compatible endpoint, and what asking it may cost; part of the sections that ask one.

    `base_url` ends before `/chat/completions`. The key is read from the environment variable named by `key_env` (empty:
    none is sent). `concurrency` requests are under way at once, of `timeout_s` seconds each; one that fails for a
    passing reason is tried `retries` more times, after `wait_s` seconds and twice as long each time. `token_limit` is
    the server's word for the most tokens of an answer. `max_requests` and `max_cost` bound them all, over every run
    that went on in the same folder (0: no bound); `prompt_price` and `completion_price` are for a million tokens (0:
    unknown).
    """

    base_url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    concurrency: PositiveInt = 8
    timeout_s: PositiveFloat = 300.0
    retries: int = 5
    wait_s: float = 1.0
    token_limit: Annotated[str, OneOf("max_tokens", "max_completion_tokens")] = "max_tokens"  # noqa: S105 - a name
    max_requests: int = 0
    max_cost: float = 0.0
    prompt_price: float = 0.0
    completion_price: float = 0.0


@dataclass(frozen=True)
class DistillConfig(EndpointConfig):
    """A teacher behind an endpoint, which the command `distill` asks for reasoning and SQL.

    Each question is asked up to `samples` times, until `wanted` answers were right. `out` is the folder that is
    written.
    """

    out: str = "runs/distill"
    samples: PositiveInt = 1
    wanted: PositiveInt = 1
    temperature: float = 0.7
    max_tokens: PositiveInt = 4096


@dataclass(frozen=True)
class VerbalConfig(EndpointConfig):
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


@dataclass(frozen=True)
class AugmentConfig:
    """What the command `augment` makes of `data.train`: a plain folder `out`, with copies of the databases.

    `correct`: golds that fail are put to the endpoint of `distill`, up to so often, with what the database said.
    `reword`: it words questions anew, up to so often, and a wording stays where the SQL that it then writes for it has
    the gold's rows.
    `fill`: `none`, or rows are inserted for golds that return none (`empty`), or one row of 0 or NULL too (`trivial`);
    where the query does not say which, the endpoint is asked up to `fill_tries` times. Each database gets `distractors`
    tables of others, of up to `distractor_rows` rows: of any (`distractors_from` `set`), or of those first whose
    schemas have the most words in common (`alike`). What is left goes through `filter`, as far as it is about golds,
    texts and repeats.
    """

    out: str = "runs/augment"
    correct: int = 0
    reword: int = 0
    fill: Annotated[str, OneOf("none", "empty", "trivial")] = "none"
    fill_tries: int = 0
    distractors: int = 0
    distractors_from: Annotated[str, OneOf("set", "alike")] = "set"
    distractor_rows: int = 100


@dataclass(frozen=True)
class EvaluateConfig(EndpointConfig):
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
