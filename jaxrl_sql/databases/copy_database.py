"""Copy SQLite databases to SQLite files, with the descriptions of their columns, without changing the originals."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.bird import description_folder
from jaxrl_sql.text2sql.schema.cache import content_of
from jaxrl_sql.text2sql.schema.describe import tables_file_records
from jaxrl_sql.text2sql.schema.sqlite_file import read_file
from jaxrl_sql.types import Example, InputError


def refuse_namesakes(where: str, examples: Iterable[Example]) -> None:
    """Raise InputError if two databases with different content have one name, because a folder can have only one."""
    first: dict[str, str] = {}
    for db_id, path in dict.fromkeys((example.db_id, example.db_path) for example in examples):
        other = first.setdefault(db_id, path)
        if other != path and content_of(other) != content_of(path):
            raise InputError(
                f"{where}: {other} and {path} both have the name {db_id}, and only one would be written: "
                "give their questions different db_id values"
            )


def copy_descriptions(source: Path, target: Path) -> None:
    """Copy the descriptions of a database's columns (BIRD's folder of CSV files) next to another database."""
    described = description_folder(source)
    if described is not None:
        shutil.copytree(described, target.parent / described.name, dirs_exist_ok=True)


def write_natural_names(folder: Path, databases: Iterable[tuple[str, Path]]) -> None:
    """Write `tables.json`, Spider's file with natural names of tables and columns, for the copies in a folder.

    `databases` has (db_id, path of the original), next to which its natural names are.
    """
    named = [{**record, "db_id": db_id} for db_id, path in databases for record in tables_file_records(path.resolve())]
    if named:
        (folder / "tables.json").write_text(json.dumps(named, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_database(source: Path, target: Path, is_linked: bool = False) -> None:
    """Copy a consistent snapshot of a database, including its write-ahead log; if `is_linked`, link to it instead.

    A copy does not use a write-ahead log (WAL), so later writes are in the file itself, which may then be moved.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        target.symlink_to(source.resolve())
        return
    target.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(target)) as connection:
            read_file(source, lambda source_connection: source_connection.backup(connection))
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise InputError(f"{source}: cannot be copied ({error})") from error
