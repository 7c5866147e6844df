"""The command line: `sqlexec {run,score,bench}`, or `python -m sqlexec_rs`.

Exit codes: 0 all well, 1 the query of `run` was not `ok`, 2 the arguments or a file are wrong, 130 interrupted.
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
        # Whoever read has seen enough; the interpreter's last flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> argparse.ArgumentParser:
    name = Path(sys.argv[0]).name
    prog = "python -m sqlexec_rs" if name == "__main__.py" else name
    parser = _Parser(prog=prog, description="Run SQL read-only under hard limits.")
    shown = f"sqlexec_rs {version('sqlexec-rs')}, SQLite {sqlite_version()}"
    parser.add_argument("--version", action="version", version=shown)
    commands = parser.add_subparsers(required=True, metavar="{run,score,bench}")
    _add_run(commands.add_parser("run", help="run one query and print its rows"))
    _add_score(commands.add_parser("score", help="score a file of predictions against a file of golds"))
    _add_bench(commands.add_parser("bench", help="measure queries a second on a small generated database"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    # As it stands: a path has one slash where a URL has two.
    parser.add_argument("db", metavar="DB", help="the SQLite file, duckdb:FILE, or the URL of a server's database")
    parser.add_argument("sql", metavar="SQL", help="the query; - reads it from standard input")
    parser.add_argument("--format", choices=running.FORMATS, default="table", help="how to print; default: table")
    plan = "print the engine's plan for the query, which is not run"
    parser.add_argument("--explain", action="store_true", help=plan)
    _add_bounds(parser)
    parser.set_defaults(command=running.run)


def _add_score(parser: argparse.ArgumentParser) -> None:
    files = "JSON lines or a CSV with id and sql, BIRD's predict JSON, a folder of ID.sql, or one SQL a line"
    parser.add_argument("--pred", type=Path, required=True, metavar="FILE", help=f"predictions: {files}")
    files = "JSON or JSON lines with db_id and SQL or query, or lines of SQL, tab, db_id"
    parser.add_argument("--gold", type=Path, required=True, metavar="FILE", help=f"golds: {files}")
    field = "where the predicted SQL stands, if not in pred_sql or sql; with it golds may be scored against themselves"
    parser.add_argument("--field", default="", metavar="NAME", help=field)
    parser.add_argument("--allow-missing", action="store_true", help="leave questions without a prediction out")
    parser.add_argument("--allow-extra", action="store_true", help="leave predictions for no question out")
    root = "the folder that holds DB_ID/DB_ID.sqlite, duckdb:FOLDER of DB_ID.duckdb, or a server's URL"
    parser.add_argument("--db-root", required=True, metavar="DIR", help=root)
    known = f"comma-separated, of {', '.join(RULE_NAMES)}; default: bird"
    parser.add_argument("--rules", type=_rules, default=("bird",), metavar="RULES", help=known)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON, item by item")
    strip = "take DISTINCT out of both texts, as Spider's command does unless told otherwise"
    parser.add_argument("--strip-distinct", action="store_true", help=strip)
    parser.add_argument("--threads", type=_positive, metavar="N", help="default: one a core")
    _add_bounds(parser)
    parser.set_defaults(command=scoring.score)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_positive, metavar="N", help="measure up to N threads; default: the cores")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="time of one figure; default: 0.5")
    _add_isolation(parser)
    parser.set_defaults(command=bench.bench)


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    timeout = "wall time of a query in milliseconds; default: 30000"
    parser.add_argument("--timeout-ms", type=_positive, default=30_000, metavar="MS", help=timeout)
    rows = "a result of more rows is too_large, never cut; default: 1000000"
    parser.add_argument("--max-rows", type=_positive, default=1_000_000, metavar="N", help=rows)
    steps = "instructions of SQLite's virtual machine a query may take, the same on every machine; default: no bound"
    parser.add_argument("--vm-steps", type=_positive, metavar="N", help=steps)
    version = "refuse functions and syntax that SQLite added after this version, such as 3.40"
    parser.add_argument("--sqlite-version", metavar="V", help=version)
    _add_isolation(parser)


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    where = "run queries in worker processes, or in threads of this one (for SQL and files you trust); default: process"
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
