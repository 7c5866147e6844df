"""Look for what is wrong with sets: `jaxrl-sql data audit --train DIR … --eval DIR … --out DIR`.

Questions, SQL and databases that evaluation shares with training, and golds that fail, take long, return nothing, are
matched by an empty or a constant answer, or do not change with the rows of a test suite. Shows a table; the folder gets
`audit.json` with the counts and `findings.jsonl` with a line a finding, which names the ids.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.command import report_errors
from jaxrl_sql.runtime.arguments import Parser
from jaxrl_sql.types import InputError

_DESCRIPTION = (__doc__ or "").replace("`", "")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(description=_DESCRIPTION)
    parser.add_argument("--train", type=Path, nargs="*", default=[], metavar="DIR", help="sets that are trained on")
    parser.add_argument("--eval", type=Path, nargs="*", default=[], metavar="DIR", help="sets that are measured with")
    parser.add_argument("--suite", type=Path, metavar="DIR", help="databases/<db_id>/*.sqlite: other rows, same schema")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"), metavar="DIR", help="default runs/audit")
    parser.add_argument("--limit", type=int, default=0, help="the first so many questions of each set; 0: all")
    parser.add_argument("--near-question", type=float, default=0.8, help="share of common words, default 0.8")
    parser.add_argument("--near-schema", type=float, default=0.8, help="share of common columns, default 0.8")
    parser.add_argument("--timeout-ms", type=int, default=30_000, help="of a gold, default 30000")
    parser.add_argument("--slow-ms", type=float, default=5_000, help="what is called slow, default 5000; 0: nothing")
    parser.add_argument("--threads", type=int, default=0, help="queries at a time; 0: one a core")
    parser.add_argument("--no-golds", action="store_true", help="run nothing: only what is shared")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, look, and return the exit code: findings are no fault."""
    given = _parser().parse_args(arguments)

    def look() -> int:
        _check(given)
        from jaxrl_sql.datagen.audit.report import audit

        audit(given)
        return 0

    return report_errors(look)


def _check(options: argparse.Namespace) -> None:
    """Raise InputError for options that cannot be used."""
    for name in ("near_question", "near_schema"):
        if not 0 < getattr(options, name) <= 1:
            raise InputError(f"audit: {name} must lie in (0, 1], not {getattr(options, name)}")
    for name in ("limit", "timeout_ms", "slow_ms", "threads"):
        if not getattr(options, name) >= 0:
            raise InputError(f"audit: {name} must be 0 or more, not {getattr(options, name)}")
    if not options.train and not options.eval:
        raise InputError("audit: name sets with --train and --eval")
    if options.suite and not (options.suite / "databases").is_dir():
        raise InputError(f"{options.suite}: no databases/ in it")
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"{options.out} is no folder")
