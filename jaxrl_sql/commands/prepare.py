"""Prepare training data: `jaxrl-sql data prepare --config FILE [--out DIR] key.sub=value …`.

Questions of the sets in `sources` are selected and merged, and a validation split is separated by database. DIR holds
plain folders (questions.jsonl, databases/): train/, validation/, and one for each complete set of `evals`, and also
subsets of ids and manifest.json, which lists the selected questions with hashes, and reasons for omissions.
`configs/data/` has the papers' mixes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.config.prepare import EvalSetConfig, PrepareConfig, SourceConfig, load_prepare
from jaxrl_sql.config.settings import settings_help
from jaxrl_sql.runtime.terminal import print_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, prepare, and return the exit code."""
    settings = settings_help(PrepareConfig(sources={"NAME": SourceConfig()}, evals={"NAME": EvalSetConfig()}))
    parser = Parser(description=__doc__, epilog=settings, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; see configs/data/")
    parser.add_argument("--out", help="output folder (default: the file's)")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    args = parser.parse_intermixed_args(arguments)
    option_overrides = [f"out={args.out}"] if args.out else []

    def work() -> None:
        config = load_prepare(args.config, [*args.overrides, *option_overrides])
        from jaxrl_sql.datagen.prepare.preparing import prepare

        print_text("\n".join(prepare(config)))

    return report_errors(work)
