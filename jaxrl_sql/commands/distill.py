"""Collect a teacher's reasoning: `jaxrl-sql distill --config FILE key.sub=value …` (section `distill`).

Each training question is sent to a chat endpoint with the recipe's prompt. Answers with correct SQL by BIRD's rule,
which compares rows as sets, are accepted. The folder `distill.out` holds `traces.jsonl` for `data.traces`,
`rejected.jsonl` with reasons, and `counts.json`. All answers are recorded in `answers.jsonl`, from which a second run
resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import DistillConfig
from jaxrl_sql.runtime.tables import show_counts
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(DistillConfig, _distill, __doc__ or "", arguments, endpoint_section="distill")


def _distill(config: DistillConfig) -> int:
    for name in ("base_url", "model"):
        if not getattr(config.distill, name):
            raise InputError(f"distill.{name} is empty: it selects the teacher")
    from jaxrl_sql.inference.distillation import distill

    result = distill(
        config.recipe,
        config.data,
        config.executor,
        config.distill,
        config.run.display,
        lambda line: print_text(line, sys.stderr),
    )
    show_counts(sys.stdout, result.counts)
    for note in result.notes:
        print_text(note)
    if result.unanswered:
        print_text(result.unanswered, sys.stderr)
    return int(result.has_failed)
