"""The section `validation`: evaluation during training."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config.fields import PositiveInt


@dataclass(frozen=True)
class ValidationConfig:
    """Greedy evaluation before and after training, and every `every` steps (0: never in between).

    `turns`: how many the policy has; 0: as in training. `rule`: by what its answers are judged (empty: the recipe's own
    rule, or the set's where the recipe has none; Spider 2, EHRSQL and Defog keep theirs), each on its question's own
    database. Runs of several recipes are compared by one rule for all.
    """

    every: int = 0
    max_new_tokens: PositiveInt = 96
    max_num_seqs: PositiveInt = 128
    turns: int = 0
    rule: str = ""
