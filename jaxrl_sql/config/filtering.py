"""The section `filter`: filters of `jaxrl-sql data filter`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config.fields import PositiveInt


@dataclass(frozen=True)
class FilterSettings:
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
