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
# The executor keeps this many connections open. Each belongs to one database, and servers allow about 100 by default.
_MAX_SESSIONS = 16


class QuestionSource(NamedTuple):
    """The questions whose golds (reference queries) are translated.

    `path` is a benchmark's folder or a file of questions, and `split` a part of it. `reader` is the address of the
    copies with a user who may only read; golds run there, each with the time limit `timeout_ms`.
    """

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
    """Copy the databases of a folder to `address`, record them in a manifest in `out`, and translate the golds.

    `only` has the ids of the databases to copy (empty: all). `report` is called with lines about each database, the
    whole copy, and the golds. Raises InputError and CopyError as `copy_files` does.
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
