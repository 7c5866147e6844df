"""Audit question sets: `jaxrl-sql data audit --train DIR … --eval DIR … --out DIR`.

Reports questions, SQL and databases that evaluation shares with training, and golds that fail, are slow, return no
rows, match an empty or constant answer, or do not change with the rows of a test suite. Prints a table, and writes
`audit.json` with the counts and `findings.jsonl` with a line per finding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.config.audit import AuditConfig
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text

_DESCRIPTION = (__doc__ or "").replace("`", "")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(description=_DESCRIPTION, argument_default=argparse.SUPPRESS)
    parser.add_argument("--train", type=Path, nargs="*", metavar="DIR", help="training sets")
    parser.add_argument("--eval", type=Path, nargs="*", metavar="DIR", help="evaluation sets")
    parser.add_argument("--suite", type=Path, metavar="DIR", help="databases/<db_id>/*.sqlite: other rows, same schema")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default runs/audit")
    parser.add_argument("--limit", type=int, help="number of questions of each set, the first ones; 0: all")
    parser.add_argument("--near-question", type=float, help="minimum share of common words, default 0.8")
    parser.add_argument("--near-schema", type=float, help="minimum share of common columns, default 0.8")
    parser.add_argument("--timeout-ms", type=int, help="time limit of a gold, default 30000")
    parser.add_argument("--slow-ms", type=float, help="threshold of slow golds, default 5000; 0: none")
    parser.add_argument("--threads", type=int, help="concurrent queries; 0: one per core")
    parser.add_argument("--no-golds", action="store_true", help="do not run golds: only check for leakage")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, audit, and return the exit code, which is 0 also with findings."""
    args = _parser().parse_args(arguments)

    def look() -> None:
        config = AuditConfig(**vars(args))
        from jaxrl_sql.datagen.audit.report import audit, table

        result = audit(config, lambda line: print_text(line, sys.stderr))
        show_table(sys.stdout, *table(result))
        print_text(str(result.path))

    return report_errors(look)
