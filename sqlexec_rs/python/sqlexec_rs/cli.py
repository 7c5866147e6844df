"""The command line: `sqlexec {run,score,bench}`, or `python -m sqlexec_rs`.

Exit codes: 0 success, 1 the query of `run` was not `ok`, 2 invalid arguments or files, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from sqlexec_rs import RULE_NAMES, bench, running, scoring, sqlite_version
from sqlexec_rs.files import InputError
from sqlexec_rs.terminal import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except InputError as error:
        print(printable(f"sqlexec_rs: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sqlexec_rs: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's last flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> argparse.ArgumentParser:
    name = Path(sys.argv[0]).name
    prog = "python -m sqlexec_rs" if name == "__main__.py" else name
    parser = _Parser(prog=prog, description="Run SQL read-only under hard limits.")
    versions = f"sqlexec_rs {version('sqlexec-rs')}, SQLite {sqlite_version()}"
    parser.add_argument("--version", action="version", version=versions)
    commands = parser.add_subparsers(required=True, metavar="{run,score,bench}")
    _add_run(commands.add_parser("run", help="run one query and print its rows"))
    _add_score(commands.add_parser("score", help="score a file of predictions against a file of golds"))
    _add_bench(commands.add_parser("bench", help="measure queries per second on a small generated database"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    # A str, because a Path would reduce the two slashes of a URL to one.
    parser.add_argument("db", metavar="DB", help="the SQLite file, duckdb:FILE, or the URL of a server's database")
    parser.add_argument("sql", metavar="SQL", help="the query; - reads it from standard input")
    parser.add_argument("--format", choices=running.FORMATS, default="table", help="how to print; default: table")
    plan = "print the query plan without running the query"
    parser.add_argument("--explain", action="store_true", help=plan)
    _add_bounds(parser)
    parser.set_defaults(command=running.run)


def _add_score(parser: argparse.ArgumentParser) -> None:
    files = "JSON lines or a CSV with id and sql, BIRD's predict JSON, a folder of ID.sql, or one query per line"
    parser.add_argument("--pred", type=Path, required=True, metavar="FILE", help=f"predictions: {files}")
    files = "JSON or JSON lines with db_id and SQL or query, or lines of SQL, tab, db_id"
    parser.add_argument("--gold", type=Path, required=True, metavar="FILE", help=f"golds: {files}")
    field = "field of the predicted SQL, if not pred_sql or sql; also allows scoring golds against themselves"
    parser.add_argument("--field", default="", metavar="NAME", help=field)
    parser.add_argument("--allow-missing", action="store_true", help="skip questions without a prediction")
    parser.add_argument("--allow-extra", action="store_true", help="skip predictions that match no question")
    root = "folder of DB_ID/DB_ID.sqlite, duckdb:FOLDER of DB_ID.duckdb, or the URL of a server"
    parser.add_argument("--db-root", required=True, metavar="DIR", help=root)
    rules = f"comma-separated list of {', '.join(RULE_NAMES)}; default: bird"
    parser.add_argument("--rules", type=_rules, default=("bird",), metavar="RULES", help=rules)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report with all items as JSON")
    strip = "remove DISTINCT from both queries, which is the default of Spider's command"
    parser.add_argument("--strip-distinct", action="store_true", help=strip)
    parser.add_argument("--threads", type=_positive, metavar="N", help="default: one per core")
    _add_bounds(parser)
    parser.set_defaults(command=scoring.score)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="measure up to N threads; default: number of cores"
    )
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="seconds per measurement; default: 0.5")
    _add_isolation(parser)
    parser.set_defaults(command=bench.bench)


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    timeout = "wall time of a query in milliseconds; default: 30000"
    parser.add_argument("--timeout-ms", type=_positive, default=30_000, metavar="MS", help=timeout)
    rows = "maximum rows; a larger result is too_large and not cut; default: 1000000"
    parser.add_argument("--max-rows", type=_positive, default=1_000_000, metavar="N", help=rows)
    steps = "maximum instructions of SQLite's virtual machine, the same on every machine; default: no limit"
    parser.add_argument("--vm-steps", type=_positive, metavar="N", help=steps)
    version = "refuse functions and syntax that SQLite added after this version, such as 3.40"
    parser.add_argument("--sqlite-version", metavar="V", help=version)
    _add_isolation(parser)


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    where = "run queries in worker processes, or in threads (for trusted SQL and files); default: process"
    parser.add_argument("--isolation", choices=("process", "thread"), default="process", help=where)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def _rules(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in RULE_NAMES:
            raise argparse.ArgumentTypeError(f"no rule is named {name!r}; the rules are {', '.join(RULE_NAMES)}")
    return names
