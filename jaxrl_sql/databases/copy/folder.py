"""Copy a folder of SQLite files to another engine, and the questions about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.databases.copy.copying import CopyOptions, copy_files
from jaxrl_sql.databases.copy.golds import check_golds, summary_lines, write_golds
from jaxrl_sql.databases.copy.manifest import open_manifest
from jaxrl_sql.databases.copy.source import find_files
from jaxrl_sql.databases.engines.registry import open_target
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.benchmarks import load_benchmark
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.text2sql.env.executor import Executor, Limits
from jaxrl_sql.types import InputError

_MAX_ROWS = 100_000
# A session belongs to one database, and a server allows a hundred by default.
_MAX_SESSIONS = 16


class QuestionSource(NamedTuple):
    """A set's folder or a file of questions, its split, the address that golds run at, and their time limit."""

    path: Path
    split: str
    reader: Address
    timeout_ms: int


def copy_folder(
    source: Path,
    address: Address,
    out: Path,
    options: CopyOptions,
    only: Sequence[str],
    questions: QuestionSource | None,
    report: Callable[[str], None],
) -> None:
    """Copy the databases of a folder (those in `only`, if set), write a manifest to `out`, and translate the golds.

    `report` is called with lines about each database, the whole copy, and the golds. Raises InputError as `copy_files`
    does.
    """
    examples = load_benchmark(questions.path, questions.split).examples if questions else ()
    files = find_files(source)
    if only:
        db_ids = {file.db_id for file in files}
        if unknown := [db_id for db_id in only if db_id not in db_ids]:
            raise InputError(f"--only {unknown[0]}: no such database in {source}")
        files = [file for file in files if file.db_id in only]
    target = open_target(address)
    manifest = open_manifest(out, address, target.version)
    copy_files(files, target, manifest, options, report)
    report(f"{manifest.path}: {quantity(len(files), 'databases')} at {address.shown}, {target.version}")
    if questions:
        limits = Limits(timeout_ms=questions.timeout_ms, max_rows=_MAX_ROWS)
        with Executor(limits=limits, max_open=_MAX_SESSIONS) as executor:
            golds = check_golds(executor, examples, manifest, questions.reader)
        write_golds(out, golds, questions.reader)
        report("\n".join(summary_lines(golds, target.version)))
