"""What was copied: a JSON file that is written whole after each database, and says what a broken copy goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrl_sql.databases.copy.digest import TableDigest
from jaxrl_sql.databases.engines.sqlite import SourceFile
from jaxrl_sql.databases.engines.tables import Plan, PlannedTable
from jaxrl_sql.runtime.written import written_whole
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.text2sql.files.jsonl import load_json
from jaxrl_sql.types import InputError

FILE = "manifest.json"
_FORM = 1

Entry = dict[str, Any]
"""A copied database: its source, its name, its tables, and `told`, the lines that say what is not as it was."""


@dataclass
class Manifest:
    """The databases that were copied to one place; `begun` are those that were not finished, by their names there."""

    path: Path
    target: str
    version: str
    databases: dict[str, Entry] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def begin(self, db_id: str, name: str) -> None:
        """Note that a database is being written, before it is."""
        self.databases.pop(db_id, None)
        self.begun = [*dict.fromkeys([*self.begun, name])]
        self.write()

    def finish(self, db_id: str, entry: Entry) -> None:
        """Note that a database is whole."""
        self.databases[db_id] = entry
        self.begun = [name for name in self.begun if name != entry["name"]]
        self.write()

    def locate(self, file: SourceFile) -> None:
        """Note where a file lies that was copied, and has been moved since: golds find their copy by it."""
        source, path = self.databases[file.db_id]["source"], str(file.path.resolve())
        if source["path"] != path:
            source["path"] = path
            self.write()

    def is_ours(self, name: str) -> bool:
        """Return whether a database was made by a copy that this manifest is of."""
        return name in self.begun or any(entry["name"] == name for entry in self.databases.values())

    def write(self) -> None:
        """Write the file, whole or not at all; raises InputError where it cannot be written."""
        found = {
            "form": _FORM,
            "target": self.target,
            "version": self.version,
            "begun": self.begun,
            "databases": self.databases,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(self.path) as file:
                file.write((json.dumps(found, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace"))
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror}): name another --out") from error


def open_manifest(folder: Path, address: Address, version: str) -> Manifest:
    """Return the manifest of a folder, or a new one; raises InputError for one of another place."""
    path = folder / FILE
    if not path.exists():
        return Manifest(path, address.shown, version)
    manifest = load_manifest(folder)
    if manifest.target != address.shown:
        raise InputError(f"{path}: is of copies to {manifest.target}, not to {address.shown}: name another --out")
    manifest.version = version
    return manifest


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; raises InputError where there is none that can be read."""
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    found = load_json(text, path)
    if not isinstance(found, dict) or found.get("form") != _FORM:
        raise InputError(f"{path}: no manifest of copies that this version reads: name another --out")
    return Manifest(path, found["target"], found["version"], found["databases"], found["begun"])


def make_entry(
    file: SourceFile, name: str, shown: str, plan: Plan, digests: Mapping[str, TableDigest], settings: Mapping[str, Any]
) -> Entry:
    """Return what is kept of a finished database; `settings` are those of the command that decide what is written."""
    stat = file.path.stat()
    return {
        "name": name,
        "target": shown,
        "source": {
            "path": str(file.path.resolve()),
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "digest": file.digest,
        },
        "settings": dict(settings),
        "tables": {table.source.name: _table(table, digests[table.name]) for table in plan.tables},
        "told": list(plan.told),
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
