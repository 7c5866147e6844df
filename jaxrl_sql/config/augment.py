"""The section `augment`: changes to a training set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf


@dataclass(frozen=True)
class AugmentSettings:
    """Changes of `jaxrl-sql data augment` to `data.train`, written as a plain folder with copies of the databases.

    The questions that result pass the filters of `filter` for golds, texts and repeats.
    """

    out: Annotated[str, "Folder that is written."] = "runs/augment"
    correct: Annotated[
        int,
        "Most times that the endpoint of `distill` corrects a gold query that fails, with the database's message; 0 "
        "corrects none.",
    ] = 0
    reword: Annotated[
        int,
        "Most times that the endpoint of `distill` rewords a question. A wording stays if the SQL that the endpoint "
        "then writes for it returns the gold's rows; 0 rewords none.",
    ] = 0
    fill: Annotated[
        str,
        OneOf("none", "empty", "trivial"),
        "Gold queries for which rows are inserted: those that return none (`empty`), or also those that return one row "
        "of 0 or NULL (`trivial`).",
    ] = "none"
    fill_tries: Annotated[
        int,
        "Most times that the endpoint of `distill` names the rows that the gold query does not determine; 0 does not "
        "ask it.",
    ] = 0
    distractors: Annotated[int, "Number of tables of other databases that each database gets."] = 0
    distractors_from: Annotated[
        str,
        OneOf("set", "alike"),
        "Databases that lend distractor tables: any of the `set`, or first those whose schemas have the most words in "
        "common (`alike`).",
    ] = "set"
    distractor_rows: Annotated[int, "Most rows of a distractor table."] = 100

    def faults(self, name: str) -> Iterator[str]:
        """Yield what the section's fields contradict."""
        if self.fill_tries and self.fill == "none":
            yield f"{name}.fill_tries={self.fill_tries} needs {name}.fill=empty or trivial"
