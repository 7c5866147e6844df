"""Augment a set: `jaxrl-sql data augment --config FILE key.sub=value …` (section `augment`).

A model corrects golds that fail and rewords questions, with verification by execution. Rows are inserted until golds
return some, and tables of other databases are added. Then the filters of `filter` apply to golds and texts. The output
folder `augment.out` holds questions and copies of the databases, `changes.jsonl` with all changes, `dropped.jsonl` with
omitted questions and the reason, and `counts.json`. A second run resumes from `work.jsonl`. The original is unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import AugmentConfig
from jaxrl_sql.runtime.tables import show_counts
from jaxrl_sql.runtime.terminal import print_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(AugmentConfig, _augment, __doc__ or "", arguments)


def _augment(config: AugmentConfig) -> int:
    from jaxrl_sql.inference.augmentation import augment

    result = augment(config.augment, config.seed, config.data, config.executor, config.distill, config.filter)
    show_counts(sys.stdout, result.counts)
    print_text(str(result.out))
    if result.reached_limit:
        print_text(f"distill.{result.reached_limit} is reached; increase it to continue")
    return 0
