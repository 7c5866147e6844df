"""Copy databases: what others read stays as it is."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.bird import description_folder
from jaxrl_sql.text2sql.schema.cache import content_of
from jaxrl_sql.text2sql.schema.describe import natural_records
from jaxrl_sql.text2sql.schema.sqlite_file import read_file
from jaxrl_sql.types import Example, InputError


def refuse_namesakes(where: str, examples: Iterable[Example]) -> None:
    """Raise InputError where two databases of other content have one name: a plain folder holds one of each."""
    first: dict[str, str] = {}
    for db_id, path in dict.fromkeys((example.db_id, example.db_path) for example in examples):
        other = first.setdefault(db_id, path)
        if other != path and content_of(other) != content_of(path):
            raise InputError(
                f"{where}: {other} and {path} are both called {db_id}, and only one would be written: "
                "name them apart by the db_id of their questions"
            )


def copy_descriptions(source: Path, target: Path) -> None:
    """Copy what was written about a database's columns, BIRD's folder of CSV files, beside another one."""
    described = description_folder(source)
    if described is not None:
        shutil.copytree(described, target.parent / described.name, dirs_exist_ok=True)


def write_natural_names(folder: Path, databases: Iterable[tuple[str, Path]]) -> None:
    """Write what `tables.json` says of databases, Spider's natural names, for their copies in a folder."""
    named = [{**record, "db_id": db_id} for db_id, path in databases for record in natural_records(path.resolve())]
    if named:
        (folder / "tables.json").write_text(json.dumps(named, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_database(source: Path, target: Path, is_linked: bool = False) -> None:
    """Copy a database as it is at one moment, with what its write-ahead log holds; or link to it.

    A copy is not in WAL mode: rows that are written to it later are in the file, which may then be moved.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        target.symlink_to(source.resolve())
        return
    target.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(target)) as here:
            read_file(source, lambda there: there.backup(here))
            here.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise InputError(f"{source}: cannot be copied ({error})") from error
