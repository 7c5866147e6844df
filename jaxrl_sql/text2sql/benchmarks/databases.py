"""Where the databases of a set lie, which of them can be used, and what variants of them there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.files import Notes
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError

_ENDINGS = (".sqlite", ".db", ".sqlite3")
_SUITES = ("test_suite_database", "test_suite_databases", "test_suite", "testsuite", "testsuite_databases")

# What a file's name may be, without its ending, in bytes; of a longer text so many characters are told.
_LONGEST, _SHOWN = 240, 40


class Databases:
    """Folders in which a database is `<db_id>/<db_id>.sqlite` or `<db_id>.sqlite`; the first that has it counts.

    `suites` are folders with variants, `<db_id>/*.sqlite`, for sets that have such. In their databases' own folders,
    those that are called as the database and more are variants too: so the test suite was published.
    """

    def __init__(self, roots: Iterable[Path], suites: Iterable[Path] = ()) -> None:
        self.roots = [root for root in roots if root.is_dir()]
        wanted = list(suites)
        self.suites = [suite for suite in wanted if suite.is_dir()]
        self._has_suites = bool(wanted)
        self._paths: dict[str, str] = {}
        self._faults: dict[str, str] = {}
        self._omissions: dict[str, tuple[str, ...]] = {}
        self._names: dict[Path, dict[str, str]] = {}
        self._other_case: dict[str, str] = {}
        self._variants: dict[str, tuple[str, ...]] = {}

    def path(self, db_id: str) -> str:
        """Return the database's file, or nothing. A name in other upper and lower case is found, and told of."""
        if db_id not in self._paths:
            self._paths[db_id] = (self._find(db_id) or self._find_other_case(db_id)) if _is_name(db_id) else ""
        return self._paths[db_id]

    def root(self, db_id: str) -> Path | None:
        """Return the folder, of those that are looked in, that has the database, or None."""
        path = self.path(db_id)
        return next((root for root in self.roots if path and Path(path).is_relative_to(root)), None)

    def fault(self, db_id: str, path: str = "") -> str:
        """Return why a database cannot be used, or an empty text; `path` where it is known."""
        if not path and not _is_name(db_id):
            return f"db_id {db_id if len(db_id) <= _LONGEST else db_id[:_SHOWN] + '…'!r} is not a folder name"
        key = path or self.path(db_id)
        if key not in self._faults:
            self._faults[key] = self._look(db_id, key)
        return self._faults[key] if key else f"no database {db_id}"

    def suite(self, db_id: str) -> tuple[str, ...]:
        """Return the database and its variants, or nothing where it has none."""
        if db_id not in self._variants:
            own = self.path(db_id)
            found = {str(path) for suite in self.suites for path in (suite / db_id).glob("*.sqlite")}
            if own and self._has_suites and Path(own).parent.name == db_id:
                found |= {str(path) for path in Path(own).parent.glob(f"{escape(db_id)}*.sqlite")}
            found -= {own}
            self._variants[db_id] = (own, *sorted(found)) if own and found else ()
        return self._variants[db_id]

    def tell(self, notes: Notes) -> None:
        """Note which names were found in another case, and how many databases have variants."""
        if self._other_case:
            first = "; ".join(f"{name} as {found}" for name, found in list(self._other_case.items())[:3])
            notes.append(f"{len(self._other_case)} databases were found under a name in another case: {first}")
        if self._omissions:
            parts = [f"{key}: {line}" for key, lines in self._omissions.items() for line in lines]
            notes.append(
                f"{len(self._omissions)} databases have parts that this SQLite cannot read: {'; '.join(parts[:3])}"
                + (f" and {len(parts) - 3} more" if parts[3:] else "")
            )
        used = [suite for suite in self._variants.values() if suite]
        if used:
            files = sum(len(suite) - 1 for suite in used)
            notes.append(f"test suite: {len(used)} of {len(self._variants)} databases have variants, {files} in all")

    def _find(self, db_id: str) -> str:
        for root in self.roots:
            for ending in _ENDINGS:
                for path in (root / db_id / (db_id + ending), root / (db_id + ending)):
                    if path.is_file():
                        return str(path)
        return ""

    def _look(self, db_id: str, path: str) -> str:
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
            self._omissions[db_id or path] = schema.omissions
        return "" if schema.tables else f"database {db_id or path} has no tables"

    def _find_other_case(self, db_id: str) -> str:
        for root in self.roots:
            if root not in self._names:
                self._names[root] = {entry.name.lower(): entry.name for entry in sorted(root.iterdir())}
            for wanted in (db_id, *(db_id + ending for ending in _ENDINGS)):
                name = self._names[root].get(wanted.lower(), "")
                if name and (found := _file_of(root / name)):
                    self._other_case[db_id] = name
                    return found
        return ""


def _is_name(db_id: str) -> bool:
    """Return whether a file may be called so."""
    is_plain = db_id not in (".", "..") and not any(character in db_id for character in "/\\\0")
    return is_plain and len(db_id.encode(errors="replace")) <= _LONGEST


def _file_of(path: Path) -> str:
    """Return a database's file: the path itself, or the one in this folder that is called as it is."""
    if path.is_file():
        return str(path)
    names = (entry for entry in sorted(path.iterdir()) if entry.suffix in _ENDINGS)
    return next((str(entry) for entry in names if entry.stem.lower() == path.name.lower()), "")


def suites_of(folder: Path) -> list[Path]:
    """Return the folders in which a set's test suite may lie: in it, or beside it."""
    beside = [folder.parent / f"{folder.name}{ending}" for ending in ("_testsuite", "_test_suite")]
    places = [
        *(folder / name for name in _SUITES),
        *beside,
        *(folder.parent / name for name in _SUITES),
        folder.parent / "test-suite-sql-eval",
    ]
    return [deeper for place in places for deeper in (place / "databases", place / "database", place)]


def beside(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders of these names in the folders that stand beside a set, in order."""
    if not folder.parent.is_dir():
        return []
    others = [folder.parent, *sorted(one for one in folder.parent.iterdir() if one.is_dir() and one != folder)]
    return [other / name for other in others for name in names]
