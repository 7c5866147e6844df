"""The section `augment`: changes to a training set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf


@dataclass(frozen=True)
class AugmentSettings:
    """Changes of `jaxrl-sql data augment` to `data.train`; the result is a plain folder with copies of the databases.

    A gold query is the reference query of a question. The section `filter` applies to the result: execution of golds,
    lengths of SQL, and duplicate questions.
    """

    out: Annotated[str, "Output folder."] = "runs/augment"
    correct: Annotated[
        int,
        "Maximum number of times that the endpoint of `distill` corrects a gold query that fails, with the database's "
        "message; 0 corrects none.",
    ] = 0
    reword: Annotated[
        int,
        "Maximum number of times that the endpoint of `distill` rewords a question. A rewording is accepted if the SQL "
        "that the endpoint then writes for it returns the gold's rows; 0 rewords none.",
    ] = 0
    fill: Annotated[
        str,
        OneOf("none", "empty", "trivial"),
        "Gold queries for which rows are inserted into their databases, so that they return some: those that return "
        "none (`empty`), or also those that return one row of 0 or NULL (`trivial`).",
    ] = "none"
    fill_tries: Annotated[
        int,
        "Maximum number of attempts in which the endpoint of `distill` proposes the rows, if they cannot be derived "
        "from the gold query; 0 disables it.",
    ] = 0
    distractors: Annotated[
        int, "Number of distractors, tables of other databases, that are added to each database."
    ] = 0
    distractors_from: Annotated[
        str,
        OneOf("set", "alike"),
        "Source of distractor tables: random databases of the `set`, or first those whose schemas have the most words "
        "in common (`alike`).",
    ] = "set"
    distractor_rows: Annotated[int, "Maximum number of rows of a distractor table."] = 100

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        if self.fill_tries and self.fill == "none":
            yield f"{name}.fill_tries={self.fill_tries} needs {name}.fill=empty or trivial"
