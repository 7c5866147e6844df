"""The section `filter`: filters of `jaxrl-sql data filter`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import PositiveInt, Share


@dataclass(frozen=True)
class FilterSettings:
    """Filters of `jaxrl-sql data filter` for the questions of `data.train`; 0 or an empty value disables a filter.

    The pass rate of a question is the share of right answers among the sampled answers.
    """

    out: Annotated[str, "Output folder."] = "runs/filter"
    failing_gold: Annotated[bool, "Omit questions whose gold query fails."] = True
    empty_gold: Annotated[bool, "Omit questions whose gold query returns no rows."] = True
    max_gold_steps: Annotated[int, "Maximum number of SQLite VM steps of a gold query; 0 sets no limit."] = 0
    max_gold_ms: Annotated[int, "Time limit of a gold query in milliseconds, machine-dependent; 0 sets no limit."] = 0
    min_sql_characters: Annotated[int, "Minimum number of characters of a gold query; 0 sets no limit."] = 0
    max_sql_characters: Annotated[int, "Maximum number of characters of a gold query; 0 sets no limit."] = 0
    noisy: Annotated[str, "File of ids of questions to omit; if empty, none are omitted."] = ""
    repeats: Annotated[bool, "Omit a question that occurs again on the same database."] = True
    long_prompts: Annotated[bool, "Omit questions whose prompt is longer than `data.max_prompt_tokens`."] = False
    samples: Annotated[
        int,
        "Number of answers per question that `model.checkpoint` samples, with the section `sampling`, to measure the "
        "pass rate; 0 samples none.",
    ] = 0
    low: Annotated[Share, "Minimum pass rate of a question, with `filter.samples`."] = 0.0
    high: Annotated[Share, "Maximum pass rate of a question, with `filter.samples`."] = 1.0
    subsample_every: Annotated[
        PositiveInt, "Sampling interval after all filters; 1 keeps every question, 2 every second."
    ] = 1

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        if self.low > self.high:
            yield f"{name}.low={self.low} must be at most {name}.high={self.high}"
        if 0 < self.max_sql_characters < self.min_sql_characters:
            yield (
                f"{name}.max_sql_characters={self.max_sql_characters} is below "
                f"{name}.min_sql_characters={self.min_sql_characters}"
            )
