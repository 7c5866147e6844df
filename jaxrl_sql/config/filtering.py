"""The section `filter`: filters of `jaxrl-sql data filter`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import PositiveInt, Share


@dataclass(frozen=True)
class FilterSettings:
    """Filters of `jaxrl-sql data filter` for the questions of `data.train`; 0 or an empty value is no filter."""

    out: Annotated[str, "Folder that is written."] = "runs/filter"
    failing_gold: Annotated[bool, "Leave out questions whose gold query fails."] = True
    empty_gold: Annotated[bool, "Leave out questions whose gold query returns no rows."] = True
    max_gold_steps: Annotated[int, "Most steps of SQLite's virtual machine of a gold query; 0 sets no limit."] = 0
    max_gold_ms: Annotated[int, "Most milliseconds of a gold query, which depend on the machine; 0 sets no limit."] = 0
    min_sql_characters: Annotated[int, "Least characters of a gold query; 0 sets no limit."] = 0
    max_sql_characters: Annotated[int, "Most characters of a gold query; 0 sets no limit."] = 0
    noisy: Annotated[str, "File of ids of questions that are left out; if empty, none are."] = ""
    repeats: Annotated[bool, "Leave out a question that occurs again on the same database."] = True
    long_prompts: Annotated[bool, "Leave out questions whose prompt is longer than `data.max_prompt_tokens`."] = False
    samples: Annotated[
        int,
        "Number of answers per question that `model.checkpoint` samples, by the section `sampling`, to measure the "
        "share of right ones; 0 samples none.",
    ] = 0
    low: Annotated[Share, "Least share of right answers of a question that stays, with `filter.samples`."] = 0.0
    high: Annotated[Share, "Largest share of right answers of a question that stays, with `filter.samples`."] = 1.0
    subsample_every: Annotated[
        PositiveInt, "Distance of the questions that stay, after all filters; 1 keeps every question, 2 every second."
    ] = 1

    def faults(self, name: str) -> Iterator[str]:
        """Yield what the section's fields contradict."""
        if self.low > self.high:
            yield f"{name}.low={self.low} and {name}.high={self.high}: low is at most high, and high at most 1"
        if 0 < self.max_sql_characters < self.min_sql_characters:
            yield (f"{name}.max_sql_characters={self.max_sql_characters} is below the least, {self.min_sql_characters}")
