"""Audit question sets: `jaxrl-sql data audit --train DIR … --eval DIR … --out DIR`.

A gold is the reference SQL of a question. The audit reports questions, SQL and databases that evaluation shares with
training. It also reports golds that fail, are slow, return no rows, match an empty or constant answer, or have equal
results on all databases of a test suite, which differ in their rows. A file or folder in both lists is split as in
training: its `train` questions, and its `dev` questions. Prints a table, and writes `audit.json` with the counts and
`findings.jsonl` with a line per finding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.config.audit import AuditConfig
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text

_DATABASE = "data.database="
_FAILING_SHOWN = 20
_DESCRIPTION = (__doc__ or "").replace("`", "")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(description=_DESCRIPTION, argument_default=argparse.SUPPRESS)
    parser.add_argument("--train", type=Path, nargs="*", metavar="DIR", help="training sets")
    parser.add_argument("--eval", type=Path, nargs="*", metavar="DIR", help="evaluation sets")
    suite = "test suite: databases/<db_id>/*.sqlite of equal schemas with different rows"
    parser.add_argument("--suite", type=Path, metavar="DIR", help=suite)
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder, default runs/audit")
    parser.add_argument("--limit", type=int, help="number of questions of each set, the first ones; 0: all")
    question = "minimum share of common words of questions that are reported as similar, default 0.8"
    parser.add_argument("--near-question", type=float, help=question)
    schema = "minimum share of common columns of databases that are reported as similar, default 0.8"
    parser.add_argument("--near-schema", type=float, help=schema)
    parser.add_argument("--timeout-ms", type=int, help="time limit of a gold, default 30000")
    parser.add_argument("--slow-ms", type=float, help="threshold of slow golds, default 5000; 0: none")
    parser.add_argument("--threads", type=int, help="concurrent queries; 0: one per core")
    parser.add_argument("--no-golds", action="store_true", help="do not run golds: only check for leakage")
    parser.epilog = (
        "data.database=URL: database of your own files of questions, such as postgresql://USER@HOST/NAME, duckdb:FILE"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, audit, and return the exit code, which is 0 also with findings."""
    command_line = sys.argv[1:] if arguments is None else arguments
    databases = [item.removeprefix(_DATABASE) for item in command_line if item.startswith(_DATABASE)]
    args = _parser().parse_args([item for item in command_line if not item.startswith(_DATABASE)])
    if databases:
        args.database = databases[-1]

    def run_audit() -> None:
        config = AuditConfig(**vars(args))
        from jaxrl_sql.datagen.audit.report import audit, failing_golds, table
        from jaxrl_sql.runtime.display import make_display

        with make_display("plain", 0, "", sys.stderr) as display:
            result = audit(config, display)
        show_table(sys.stdout, *table(result))
        failing = failing_golds(result)
        if failing:
            print_text("\n".join(failing[:_FAILING_SHOWN]))
        if len(failing) > _FAILING_SHOWN:
            print_text(f"and {quantity(len(failing) - _FAILING_SHOWN, 'more golds')}, in {result.path}")
        print_text(str(result.path))

    return report_errors(run_audit)
