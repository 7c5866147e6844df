"""Verbal RL: `jaxrl-sql verbal --config FILE key.sub=value …` (section `verbal`), without weight updates.

For each question of `data.evals`, a model writes candidates and then, as a judge, scores all of them in several
replies. The candidate with the best mean score is chosen (PaVeRL-SQL). The model is `model.checkpoint`, which may be
the folder of a run, or is behind the endpoint `verbal.base_url`. The folder `verbal.out` holds `predictions.jsonl`,
`records.jsonl` with all candidates and their scores, and `metrics.json` with the accuracy of the choice, the first
candidate, a vote and the best candidate. All answers are recorded in `answers.jsonl`, from which a second run resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import VerbalConfig
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(VerbalConfig, _verbal, __doc__ or "", arguments, endpoint_section="verbal")


def _verbal(config: VerbalConfig) -> int:
    if not (config.verbal.base_url or config.model.checkpoint):
        raise InputError("verbal needs a model: set model.checkpoint, or verbal.base_url and verbal.model")
    from jaxrl_sql.training.verbal.choosing import verbal

    result = verbal(policy_spec(config), config.verbal, config.executor, config.run.display)
    show_table(sys.stdout, *result.table)
    for note in result.notes:
        print_text(note)
    if result.unanswered:
        print_text(result.unanswered, sys.stderr)
    if result.stopped is not None:
        raise result.stopped
    print_text(str(result.path))
    return int(result.has_failed)
