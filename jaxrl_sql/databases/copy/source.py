"""Find the SQLite files that are copied, and compute digests of a file's tables."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from jaxrl_sql.databases.copy.digest import TableDigest
from jaxrl_sql.databases.engines.sqlite import SourceFile, SqliteReader, open_source
from jaxrl_sql.text2sql.schema.cache import content_of
from jaxrl_sql.text2sql.schema.read import Table
from jaxrl_sql.types import InputError

# Names that benchmarks give to the folder of their databases.
_ROOTS = ("databases", "database", "dev_databases", "train_databases")
_ENDINGS = (".sqlite", ".db", ".sqlite3")


def find_files(folder: Path) -> list[SourceFile]:
    """Return the SQLite files of a folder: `ID/ID.sqlite` or `ID.sqlite`, there or in its folder of databases.

    `folder` may be a file. Raises InputError if there is no file, or if two have the same identifier.
    """
    if folder.is_file():
        return [SourceFile(folder.stem, folder, content_of(folder))]
    if not folder.is_dir():
        raise InputError(f"{folder}: neither a folder nor a SQLite file")
    root = next((folder / name for name in _ROOTS if (folder / name).is_dir()), folder)
    paths: dict[str, Path] = {}
    for path in sorted(root.iterdir()):
        file = _database_file(path) if path.is_dir() else path
        if file is None or file.suffix not in _ENDINGS:
            continue
        db_id = path.name if path.is_dir() else path.stem
        if db_id in paths:
            raise InputError(f"{file}: {paths[db_id]} has the same id {db_id}: rename or remove one of them")
        paths[db_id] = file
    if not paths:
        raise InputError(f"{root}: no SQLite file ID/ID.sqlite or ID.sqlite in it")
    return [SourceFile(db_id, path, content_of(path)) for db_id, path in paths.items()]


def _database_file(folder: Path) -> Path | None:
    """Return the database of a folder: the file with its name, or the only one."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in _ENDINGS]
    named = [path for path in files if path.stem == folder.name]
    return (named or files)[0] if named or len(files) == 1 else None


@lru_cache(maxsize=256)
def table_digests(path: str, content: str) -> dict[str, tuple[tuple[str, ...], TableDigest]] | None:
    """Return (columns, digest of the rows) of each table of a file by name; None if the file cannot be read.

    Files with different bytes may have the same rows, for example after a copy by SQLite. `content` is a hash of the
    file's bytes, so that a changed file is not looked up in this function's cache.
    """
    try:
        with open_source(SourceFile(Path(path).stem, Path(path), content)) as source:
            return {table.name: _table_digest(source, table) for table in source.schema().tables}
    except InputError:
        return None


def _table_digest(source: SqliteReader, table: Table) -> tuple[tuple[str, ...], TableDigest]:
    digest = TableDigest()
    for rows in source.rows(table):
        digest = digest.plus(rows)
    return tuple(column.name for column in table.columns), digest
