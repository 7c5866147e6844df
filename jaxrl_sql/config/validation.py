"""The section `validation`: evaluation during training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from jaxrl_sql.config.fields import PositiveInt, Synonyms
from jaxrl_sql.config.sampling import SamplingConfig


@dataclass(frozen=True)
class ValidationConfig:
    """Evaluation before and after training, and during it; greedy, unless `validation.sampling` differs."""

    every: Annotated[
        int,
        "Number of steps between evaluations; 0 evaluates only before and after training.",
        Synonyms(trl="eval_steps", verl="trainer.test_freq"),
    ] = 0
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(temperature=0.0, turns=0))
    max_num_seqs: Annotated[PositiveInt, "Number of answers that are generated concurrently."] = 128
    rule: Annotated[
        str,
        "Rule that compares an answer's rows with the gold query's (docs/reference/rules.md), each on its question's "
        "own database. Set it to compare runs of different recipes. If empty, the recipe's rule, or the set's if the "
        "recipe has none; Spider 2, EHRSQL and Defog always use their own.",
    ] = ""

    def sampling_in(self, training: SamplingConfig) -> SamplingConfig:
        """Return the sampling of validation, with empty values replaced by those of training."""
        return replace(
            self.sampling,
            stop=self.sampling.stop or training.stop,
            turns=self.sampling.turns or training.turns,
            max_total_tokens=self.sampling.max_total_tokens or training.max_total_tokens,
        )
