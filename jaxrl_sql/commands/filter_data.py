"""Filter training questions: `jaxrl-sql data filter --config FILE key.sub=value …` (section `filter`).

Filters run from cheap to expensive: id lists and text lengths, execution of golds, duplicates, prompt length, pass
rates of a model's answers, and a subsample of the rest. The folder `filter.out` holds `kept.jsonl` for
`data.select.include_ids`, `dropped.jsonl` with reasons and their numbers, and `counts.json`. Pass rates are recorded in
`rates.jsonl`, from which a second run resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import FilterConfig
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(FilterConfig, _filter, __doc__ or "", arguments)


def _filter(config: FilterConfig) -> int:
    from jaxrl_sql.inference.filtering import filter_data, table

    choice = filter_data(
        policy_spec(config),
        config.filter,
        config.sampling,
        config.executor,
        _report,
        lambda line: print_text(line, sys.stderr),
    )
    show_table(sys.stdout, *table(choice))
    if choice.note:
        print_text(choice.note)
    print_text(str(choice.path))
    return 0


def _report(line: str) -> None:
    print_text(line)
    sys.stdout.flush()
