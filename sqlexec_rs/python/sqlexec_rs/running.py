"""The command `run`: one query, its rows on standard output, what went wrong on standard error."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import shutil
import sys
from typing import Any, TextIO

from sqlexec_rs._native import Executor, Limits, Outcome
from sqlexec_rs.terminal import printable

FORMATS = ("table", "csv", "json", "jsonl")


def run(options: argparse.Namespace) -> int:
    """Run the query, or plan it, and return the exit code: 0 when it is `ok`."""
    sql = sys.stdin.read() if options.sql == "-" else options.sql
    with make_executor(options, threads=1) as executor:
        outcome = (executor.explain if options.explain else executor.execute)(options.db, sql)
    if outcome.status != "ok":
        sys.stderr.write(explain(outcome, sql))
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Text that is no UTF-8 goes out as the bytes that are stored.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    write(outcome, options.format, sys.stdout)
    return 0


def make_executor(options: argparse.Namespace, threads: int | None) -> Executor:
    """Make the executor with the bounds that were given on the command line."""
    limits = Limits(timeout_ms=options.timeout_ms, vm_steps=options.vm_steps, max_rows=options.max_rows)
    return Executor(threads=threads, limits=limits, isolation=options.isolation, sqlite_version=options.sqlite_version)


def explain(outcome: Outcome, sql: str) -> str:
    """Return the lines that say what went wrong, where in the SQL, and what may have been meant."""
    lines = [f"{outcome.status}: {outcome.error}"]
    if outcome.error_offset is not None:
        before = sql.encode("utf-8", "surrogatepass")[: outcome.error_offset].decode("utf-8", "ignore")
        line = sql.split("\n")[before.count("\n")].rstrip()
        column = len(before) - (before.rfind("\n") + 1)
        # A tab stays a tab, so that the caret stands right below whatever its width.
        lines += [f"  {line}", "  " + "".join("\t" if c == "\t" else " " for c in printable(line[:column])) + "^"]
    if outcome.hint:
        lines.append(f"hint: {outcome.hint}")
    return printable("\n".join(lines)) + "\n"


def write(outcome: Outcome, form: str, stream: TextIO) -> None:
    """Write the rows in one of `FORMATS`; a blob is written as the SQL literal x'…', NULL is empty in CSV."""
    if form == "table":
        width = shutil.get_terminal_size().columns if stream.isatty() else None
        stream.write(outcome.pretty(max_rows=None, max_width=width) + "\n")
    elif form == "csv":
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(outcome.columns)
        writer.writerows([[_blob(cell) for cell in row] for row in outcome.rows])
    elif form == "json":
        rows = [[_json(cell) for cell in row] for row in outcome.rows]
        stream.write(json.dumps({"columns": outcome.columns, "rows": rows}, ensure_ascii=False) + "\n")
    else:
        names = outcome.to_arrow(unique_names=True).names
        for row in outcome.rows:
            cells = zip(names, map(_json, row), strict=True)
            stream.write(json.dumps(dict(cells), ensure_ascii=False) + "\n")


def _blob(cell: Any) -> Any:
    return f"x'{cell.hex()}'" if isinstance(cell, bytes) else cell


def _json(cell: Any) -> Any:
    # JSON has no infinity, no NaN and no text but Unicode: the nearest text replaces them.
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if isinstance(cell, str) and not cell.isascii():
        return cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _blob(cell)
