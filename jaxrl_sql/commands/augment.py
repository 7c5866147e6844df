"""Make more of a set: `jaxrl-sql data augment --config FILE key.sub=value …` (section `augment`).

Golds that fail are corrected by a model, questions are worded anew where execution shows that they ask the same, rows
are inserted until golds return some, tables of other databases are added; then the golds and texts pass the filters of
`filter`. The folder `augment.out` becomes a plain folder of questions with copies of the databases: `changes.jsonl`
lists the differences, `dropped.jsonl` the questions left out and why, and `counts.json` how often. A second run resumes
from `work.jsonl`. The original stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import AugmentConfig
from jaxrl_sql.runtime.tables import show_counts
from jaxrl_sql.runtime.terminal import print_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, do the work, and return the exit code."""
    return run_command(AugmentConfig, _augment, __doc__ or "", arguments)


def _augment(config: AugmentConfig) -> int:
    from jaxrl_sql.inference.augmentation import augment

    result = augment(config.augment, config.seed, config.data, config.executor, config.distill, config.filter)
    show_counts(sys.stdout, result.counts)
    print_text(str(result.out))
    if result.limit:
        print_text(f"distill.{result.limit} is reached; a larger number continues")
    return 0
