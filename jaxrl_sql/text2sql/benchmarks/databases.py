"""Locate the databases of a set and their variants, and check them.

A variant of a database has the same schema and other rows. Spider's test suite publishes several per database: a wrong
query may return the right rows on one of them, but rarely on all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path

from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.text2sql.benchmarks.files import Notes
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError

# File extensions of databases, and usual names of folders with variants.
_ENDINGS = (".sqlite", ".db", ".sqlite3")
_SUITES = ("test_suite_database", "test_suite_databases", "test_suite", "testsuite", "testsuite_databases")

# The maximum length of a database's name in bytes, and the number of characters of a longer one that messages show.
_MAX_ID_BYTES, _SHOWN_CHARACTERS = 240, 40


class Databases:
    """Folders with databases `<db_id>/<db_id>.sqlite` or `<db_id>.sqlite`; the first folder with a match counts.

    `suites` are folders that may have variants, `<db_id>/*.sqlite`. If any are passed, files next to a database whose
    names start with its name are variants, too, as in Spider's published test suite.
    """

    def __init__(self, roots: Iterable[Path], suites: Iterable[Path] = ()) -> None:
        self.roots = [root for root in roots if root.is_dir()]
        suite_folders = list(suites)
        self.suites = [suite for suite in suite_folders if suite.is_dir()]
        self._has_suites = bool(suite_folders)
        # Results are cached: files and variants by db_id, errors by file.
        self._paths: dict[str, str] = {}
        self._errors: dict[str, str] = {}
        self._unreadable_parts: dict[str, tuple[str, ...]] = {}
        self._entries_by_lower_name: dict[Path, dict[str, str]] = {}
        self._differing_case: dict[str, str] = {}
        self._variants: dict[str, tuple[str, ...]] = {}

    def path(self, db_id: str) -> str:
        """Return the database's file, or "" if it is missing; names that differ only in case match, with a note."""
        if db_id not in self._paths:
            self._paths[db_id] = (self._find(db_id) or self._find_other_case(db_id)) if _is_file_name(db_id) else ""
        return self._paths[db_id]

    def root(self, db_id: str) -> Path | None:
        """Return the folder of `roots` that contains the database, or None."""
        path = self.path(db_id)
        return next((root for root in self.roots if path and Path(path).is_relative_to(root)), None)

    def error(self, db_id: str, path: str = "") -> str:
        """Return why a database cannot be used, or ""; `path` is its file, if known, else it is located by `db_id`."""
        if not path and not _is_file_name(db_id):
            short_id = db_id if len(db_id) <= _MAX_ID_BYTES else db_id[:_SHOWN_CHARACTERS] + "…"
            return f"db_id {short_id!r} is not a folder name"
        key = path or self.path(db_id)
        if key not in self._errors:
            self._errors[key] = self._check(db_id, key)
        return self._errors[key] if key else f"no database {db_id}"

    def suite(self, db_id: str) -> tuple[str, ...]:
        """Return the files of the database and its variants; an empty tuple if it has no variants."""
        if db_id not in self._variants:
            main_path = self.path(db_id)
            variants = {str(path) for suite in self.suites for path in (suite / db_id).glob("*.sqlite")}
            if main_path and self._has_suites and Path(main_path).parent.name == db_id:
                variants |= {str(path) for path in Path(main_path).parent.glob(f"{escape(db_id)}*.sqlite")}
            variants -= {main_path}
            self._variants[db_id] = (main_path, *sorted(variants)) if main_path and variants else ()
        return self._variants[db_id]

    def add_notes(self, notes: Notes) -> None:
        """Add notes on the databases that were located so far: names that differ in case, unreadable parts, variants.

        Unreadable parts are tables and columns that this SQLite cannot read, for example for lack of an extension.
        """
        if self._differing_case:
            first = "; ".join(f"{name} as {actual}" for name, actual in list(self._differing_case.items())[:3])
            subject = quantity(len(self._differing_case), "databases", "have")
            notes.append(f"{subject} a name of other case than the questions: {first}")
        if self._unreadable_parts:
            parts = [f"{key}: {line}" for key, lines in self._unreadable_parts.items() for line in lines]
            notes.append(
                f"{quantity(len(self._unreadable_parts), 'databases', 'have')} parts that this SQLite cannot read: "
                + "; ".join(parts[:3])
                + (f" and {len(parts) - 3} more" if parts[3:] else "")
            )
        used = [suite for suite in self._variants.values() if suite]
        if used:
            files = sum(len(suite) - 1 for suite in used)
            subject = f"{len(used)} of {len(self._variants)} databases {agree(len(used), 'have')}"
            notes.append(f"test suite: {subject} variants, {files} in all")

    def _find(self, db_id: str) -> str:
        """Return the database's file, by its name in exact case; "" without one."""
        for root in self.roots:
            for ending in _ENDINGS:
                for path in (root / db_id / (db_id + ending), root / (db_id + ending)):
                    if path.is_file():
                        return str(path)
        return ""

    def _check(self, db_id: str, path: str) -> str:
        """Read the schema of a file, and return why the database cannot be used, or ""."""
        if not path:
            return f"no database {db_id}"
        if not Path(path).is_file():
            return f"no database {path}"
        try:
            schema = read_schema(path)
        except InputError as error:
            if isinstance(error.__cause__, sqlite3.OperationalError):
                return f"database {db_id or path} cannot be read ({error.__cause__})"
            return f"database {db_id or path} is corrupt"
        if schema.omissions:
            self._unreadable_parts[db_id or path] = schema.omissions
        return "" if schema.tables else f"database {db_id or path} has no tables"

    def _find_other_case(self, db_id: str) -> str:
        """Return the database's file, by its name regardless of case; "" without one."""
        for root in self.roots:
            if root not in self._entries_by_lower_name:
                self._entries_by_lower_name[root] = {entry.name.lower(): entry.name for entry in sorted(root.iterdir())}
            for file_name in (db_id, *(db_id + ending for ending in _ENDINGS)):
                name = self._entries_by_lower_name[root].get(file_name.lower(), "")
                if name and (path := _file_of(root / name)):
                    self._differing_case[db_id] = name
                    return path
        return ""


def _is_file_name(db_id: str) -> bool:
    """Return whether a text is valid as a file name, so that it cannot refer to other folders."""
    is_plain = db_id not in (".", "..") and not any(character in db_id for character in "/\\\0")
    return is_plain and len(db_id.encode(errors="replace")) <= _MAX_ID_BYTES


def _file_of(path: Path) -> str:
    """Return a database's file: the path itself, or the file in this folder with the folder's name; "" without one."""
    if path.is_file():
        return str(path)
    names = (entry for entry in sorted(path.iterdir()) if entry.suffix in _ENDINGS)
    return next((str(entry) for entry in names if entry.stem.lower() == path.name.lower()), "")


def suites_of(folder: Path) -> list[Path]:
    """Return the possible folders of a set's variants, inside and next to the set; they need not exist."""
    siblings = [folder.parent / f"{folder.name}{ending}" for ending in ("_testsuite", "_test_suite")]
    folders = [
        *(folder / name for name in _SUITES),
        *siblings,
        *(folder.parent / name for name in _SUITES),
        folder.parent / "test-suite-sql-eval",
    ]
    return [deeper for inner in folders for deeper in (inner / "databases", inner / "database", inner)]


def sibling_folders(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the paths of these names in a set's parent and sibling folders, in order; they need not exist."""
    if not folder.parent.is_dir():
        return []
    others = [folder.parent, *sorted(path for path in folder.parent.iterdir() if path.is_dir() and path != folder)]
    return [other / name for other in others for name in names]
