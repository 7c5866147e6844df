"""The section `validation`: evaluation during training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import PositiveInt, Synonyms


@dataclass(frozen=True)
class ValidationConfig:
    """Greedy evaluation before and after training, and during it."""

    every: Annotated[
        int,
        "Number of steps between evaluations; 0 evaluates only before and after training.",
        Synonyms(trl="eval_steps", verl="trainer.test_freq"),
    ] = 0
    max_new_tokens: Annotated[PositiveInt, "Most tokens of an answer; with several turns, of each turn."] = 96
    max_num_seqs: Annotated[PositiveInt, "Number of answers that are generated at the same time."] = 128
    turns: Annotated[int, "Most turns of an answer; 0 allows as many as in training."] = 0
    rule: Annotated[
        str,
        "Rule by which answers are judged, each on its question's own database, so that runs of several recipes can be "
        "compared. If empty, the recipe's own rule, or the set's where the recipe has none; Spider 2, EHRSQL and Defog "
        "keep theirs.",
    ] = ""
