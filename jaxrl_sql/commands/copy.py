"""Copy SQLite databases to another engine: `jaxrl-sql data copy --from FOLDER --to URL --out DIR`.

Each file becomes a database of the server (or a DuckDB file), with types that hold its values, keys, indexes and
comments. Its rows are read back and compared. DIR holds manifest.json, from which an interrupted copy resumes. With
--questions, golds are translated and run, and DIR holds questions.jsonl, with the questions whose results equal
SQLite's, and left_out.jsonl, with the others. `--from URL --help` and `--from FILE.sql --help` describe the other
modes: sampling a server's database, and loading a published dump.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser, add_leave_out, not_empty
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.text2sql.env.address import Address, is_address, parse_address, users_of
from jaxrl_sql.types import InputError

_SAMPLE = """Sample a database: the first rows of each table, then their parents, the rows that they reference.

Parents may reference further rows, so these are read in turn, up to a limited number of levels. Each read is a separate
transaction, so a sample of a changing database may hold rows of different times. Rows whose parent is missing (deleted
between reads, absent on the server, or beyond the last level) are counted and reported.
"""
_DUMP = """Load a published dump: `--from FILE.sql --to postgresql://USER@HOST/NAME`, or `mysql://…`.

FILE is the text output of `pg_dump` or `mysqldump`. The server's client, psql or mariadb, runs it in the database NAME,
which is new or empty; --reader names the user who may then read it. A dump is a program with the rights of USER: only
load dumps that you trust.
"""


def _parser(description: str | None) -> Parser:
    return Parser(
        prog="jaxrl-sql data copy",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _copy(arguments: Sequence[str]) -> None:
    """Copy SQLite files to an engine."""
    parser = _parser(__doc__)
    parser.add_argument(
        "--from", dest="source", type=not_empty, required=True, help="folder of SQLite files, or one file"
    )
    parser.add_argument(
        "--to", type=not_empty, required=True, help="postgresql://USER:PASSWORD@HOST, mysql://… or duckdb:FOLDER"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for manifest.json, and for questions")
    parser.add_argument("--only", nargs="+", metavar="ID", help="databases to copy; default all")
    parser.add_argument("--prefix", default="", help="prefix of each database's name")
    parser.add_argument("--reader", default="", help="user who may read the copies, or its URL to run golds")
    parser.add_argument(
        "--leave-out", nargs="+", action="extend", default=[], metavar="TABLE.COLUMN", help="columns to omit"
    )
    parser.add_argument("--replace", action="store_true", help="replace values that the engine cannot hold")
    golds = parser.add_argument_group("questions")
    golds.add_argument("--questions", type=Path, metavar="PATH", help="a set's folder, or a file of questions")
    golds.add_argument(
        "--split", default="", help="split of the set; default the one that the benchmark scores, such as dev"
    )
    golds.add_argument("--timeout-ms", type=int, default=30_000, help="time limit of each gold, default 30,000")
    _run_copy(parser.parse_args(arguments))


def _sample(arguments: Sequence[str]) -> None:
    """Sample a server's database."""
    from jaxrl_sql.databases.sample.sample import ROWS, sample

    parser = _parser(_SAMPLE)
    parser.add_argument(
        "--from", dest="source", type=not_empty, required=True, help="postgresql:// or mysql://USER:PASSWORD@HOST/NAME"
    )
    parser.add_argument("--to", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"first rows per table, parents not counted; default {ROWS}"
    )
    add_leave_out(parser)
    options = parser.parse_args(arguments)
    report = sample(options.source, options.to, options.rows, options.leave_out, _print_progress)
    lines = [
        *report.notes,
        f"{report.path}: {quantity(sum(report.rows.values()), 'rows')} of {quantity(len(report.rows), 'tables')}",
    ]
    print_text("\n".join(lines))


def _print_progress(line: str) -> None:
    print_text(line, sys.stderr)
    sys.stderr.flush()


def _load_dump(arguments: Sequence[str]) -> None:
    """Load a dump into a server's database."""
    parser = _parser(_DUMP)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="the dump, an SQL file")
    parser.add_argument(
        "--to", type=not_empty, required=True, help="postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME"
    )
    parser.add_argument("--reader", default="", help="user who may read the database, or its URL")
    options = parser.parse_args(arguments)
    from jaxrl_sql.databases.copy.dump import load_dump

    loaded = load_dump(options.source, options.to, options.reader)
    print_text(f"{options.source}: loaded into {loaded}")


def _omitted_columns(names: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Return (table, column) in lower case of the columns to omit, from names TABLE.COLUMN."""
    columns = set()
    for name in names:
        table, dot, column = name.lower().partition(".")
        if not (table and dot and column):
            raise InputError(f"--leave-out {name}: expected TABLE.COLUMN")
        columns.add((table, column))
    return frozenset(columns)


def _run_copy(options: argparse.Namespace) -> None:
    address = parse_address(options.to).single
    reader = parse_address(options.reader) if is_address(options.reader) else None
    _check(options, address, reader)
    from jaxrl_sql.databases.copy.copying import CopyOptions
    from jaxrl_sql.databases.copy.folder import QuestionSource, copy_folder

    omitted = _omitted_columns(options.leave_out)
    copying = CopyOptions(options.prefix, users_of(options.reader), omitted, options.replace)
    questions = None
    if options.questions:
        questions = QuestionSource(options.questions, options.split, reader or address, options.timeout_ms)
    copy_folder(Path(options.source), address, options.out, copying, options.only or (), questions, print_text)


def _check(options: argparse.Namespace, address: Address, reader: Address | None) -> None:
    """Raise InputError for incompatible options."""
    if options.reader and address.engine == "duckdb":
        raise InputError("--reader: a file has no users: omit it with duckdb:")
    if reader and (reader.engine, reader.host, reader.port) != (address.engine, address.host, address.port):
        raise InputError(f"--reader: {reader.shown} is not the server of --to, {address.shown}")
    if options.questions and address.engine != "duckdb" and not reader:
        url = f"{address.engine}://NAME:PASSWORD@{address.host}:{address.port}"
        raise InputError(f"--questions: golds run as a read-only user: set --reader {url}")
    if options.timeout_ms < 1:
        raise InputError(f"--timeout-ms {options.timeout_ms}: must be at least 1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy databases, print a summary, and return the exit code."""
    argv = sys.argv[1:] if arguments is None else arguments
    parser = Parser(add_help=False)
    parser.add_argument("--from", dest="source", default="")
    source = parser.parse_known_args(argv)[0].source
    # Sampling and loading a dump have different options.
    run = _sample if is_address(source) else _load_dump if source.endswith(".sql") else _copy
    return report_errors(lambda: run(argv))
