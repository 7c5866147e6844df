"""The command `run`: runs a query; rows go to standard output, errors to standard error."""

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
    """Run or plan the query and return the exit code: 0 if it is `ok`."""
    sql = sys.stdin.read() if options.sql == "-" else options.sql
    with make_executor(options, threads=1) as executor:
        outcome = (executor.explain if options.explain else executor.execute)(options.db, sql)
    if outcome.status != "ok":
        sys.stderr.write(explain(outcome, sql))
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Invalid UTF-8 is written as the stored bytes.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    write(outcome, options.format, sys.stdout)
    return 0


def make_executor(options: argparse.Namespace, threads: int | None) -> Executor:
    """Return an executor with the limits of the command line."""
    limits = Limits(timeout_ms=options.timeout_ms, vm_steps=options.vm_steps, max_rows=options.max_rows)
    return Executor(threads=threads, limits=limits, isolation=options.isolation, sqlite_version=options.sqlite_version)


def explain(outcome: Outcome, sql: str) -> str:
    """Return the error, its position in the SQL, and the hint, as lines."""
    lines = [f"{outcome.status}: {outcome.error}"]
    if outcome.error_offset is not None:
        before = sql.encode("utf-8", "surrogatepass")[: outcome.error_offset].decode("utf-8", "ignore")
        line = sql.split("\n")[before.count("\n")].rstrip()
        column = len(before) - (before.rfind("\n") + 1)
        # Tabs are kept, so that the caret is aligned for any tab width.
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
    # JSON lacks infinity, NaN and invalid Unicode, so the nearest text replaces them.
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if isinstance(cell, str) and not cell.isascii():
        return cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _blob(cell)
