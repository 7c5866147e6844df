"""The section `augment`: changes to a training set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf


@dataclass(frozen=True)
class AugmentSettings:
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
