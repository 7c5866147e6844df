"""The manifest of copies: a JSON file that records the finished and the unfinished ones.

It is written atomically before and after each database, so that an interrupted command can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrl_sql.databases.copy.digest import TableDigest
from jaxrl_sql.databases.engines.sqlite import SourceFile
from jaxrl_sql.databases.engines.tables import CopyPlan, PlannedTable
from jaxrl_sql.runtime.atomic import atomic_write
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.text2sql.files.jsonl import load_json
from jaxrl_sql.types import InputError

FILE = "manifest.json"
_FORMAT_VERSION = 1

ManifestEntry = dict[str, Any]
"""A copied database (keys: see `make_entry`); `notes` are messages about differences from the source."""


@dataclass
class Manifest:
    """The databases that were copied to one engine: `target` is its address, and `version` its name and version.

    `databases` has the entry of each finished copy by `db_id`; `unfinished` are the target names of the others.
    """

    path: Path
    target: str
    version: str
    databases: dict[str, ManifestEntry] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    def begin(self, db_id: str, name: str) -> None:
        """Record that a database is about to be written."""
        self.databases.pop(db_id, None)
        self.unfinished = [*dict.fromkeys([*self.unfinished, name])]
        self.write()

    def finish(self, db_id: str, entry: ManifestEntry) -> None:
        """Record that a database is complete."""
        self.databases[db_id] = entry
        self.unfinished = [name for name in self.unfinished if name != entry["name"]]
        self.write()

    def set_path(self, file: SourceFile) -> None:
        """Record the current path of a copied file, after it was moved.

        A gold (reference query) names the path of its SQLite file; the copy with this source path is used for it.
        """
        source, path = self.databases[file.db_id]["source"], str(file.path.resolve())
        if source["path"] != path:
            source["path"] = path
            self.write()

    def was_created_here(self, name: str) -> bool:
        """Return whether a database was created by a copy of this manifest, so that it may be replaced."""
        return name in self.unfinished or any(entry["name"] == name for entry in self.databases.values())

    def write(self) -> None:
        """Write the file atomically; raises InputError if it cannot be written."""
        content = {
            "form": _FORMAT_VERSION,
            "target": self.target,
            "version": self.version,
            "unfinished": self.unfinished,
            "databases": self.databases,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as file:
                file.write((json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace"))
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror}): choose another --out") from error


def open_manifest(folder: Path, address: Address, version: str) -> Manifest:
    """Return the manifest of a folder, or a new one; raises InputError for a manifest of another target."""
    path = folder / FILE
    if not path.exists():
        return Manifest(path, address.shown, version)
    manifest = load_manifest(folder)
    if manifest.target != address.shown:
        raise InputError(f"{path}: its copies are at {manifest.target}, not at {address.shown}: choose another --out")
    manifest.version = version
    return manifest


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; raises InputError if there is no valid one."""
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    content = load_json(text, path)
    if not isinstance(content, dict) or content.get("form") != _FORMAT_VERSION:
        raise InputError(f"{path}: not a manifest that this version can read: choose another --out")
    return Manifest(path, content["target"], content["version"], content["databases"], content["unfinished"])


def make_entry(
    file: SourceFile,
    name: str,
    target: str,
    plan: CopyPlan,
    digests: Mapping[str, TableDigest],
    settings: Mapping[str, Any],
) -> ManifestEntry:
    """Return the entry of a finished database: `name` on the engine, `target` with the engine's address.

    `digests` has the digest of each table by its name on the engine. `settings` are the options that determine the
    written rows.
    """
    stat = file.path.stat()
    return {
        "name": name,
        "target": target,
        "source": {
            "path": str(file.path.resolve()),
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "digest": file.digest,
        },
        "settings": dict(settings),
        "tables": {table.source.name: _table(table, digests[table.name]) for table in plan.tables},
        "notes": list(plan.notes),
    }


def _table(table: PlannedTable, digest: TableDigest) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": digest.rows,
        "digest": f"{digest.digest:016x}",
        "columns": {column.source: {"name": column.name, "type": column.kind} for column in table.columns},
        "primary_key": table.primary_key,
        "unique": table.uniques,
        "indexes": table.indexes,
        "foreign_keys": [
            {"columns": key.columns, "table": key.table, "targets": key.targets} for key in table.foreign_keys
        ],
    }
