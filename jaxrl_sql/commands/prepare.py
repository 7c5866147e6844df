"""Prepare training data: `jaxrl-sql data prepare --config FILE [--out DIR] key.sub=value …`.

The sets of the section `sources` are chosen from and merged, a validation split is taken off by database, and DIR gets
plain folders (questions.jsonl, databases/): train/, validation/, and one for each of `evals`, which are kept whole.
Beside them lie subsets of ids and manifest.json, which says what was taken of what, with hashes, and why the rest was
not. `configs/data/` has the papers' mixes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.config.prepare import EvalSet, PrepareConfig, SourceConfig, load_prepare
from jaxrl_sql.config.settings import settings_help
from jaxrl_sql.runtime.terminal import print_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, prepare, and return the exit code."""
    settings = settings_help(PrepareConfig(sources={"NAME": SourceConfig()}, evals={"NAME": EvalSet()}))
    parser = Parser(description=__doc__, epilog=settings, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; see configs/data/")
    parser.add_argument("--out", help="folder to write (default: the file's)")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    args = parser.parse_intermixed_args(arguments)
    more = [f"out={args.out}"] if args.out else []

    def work() -> None:
        config = load_prepare(args.config, [*args.overrides, *more])
        from jaxrl_sql.datagen.prepare.preparing import prepare

        print_text("\n".join(prepare(config)))

    return report_errors(work)
