"""Name what an audit is about and what it finds."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_sql.types import Example, Fields, Record


class Set(NamedTuple):
    """A set of questions under the name that findings call it by; `skipped` holds (uid, reason) of unusable lines."""

    name: str
    examples: tuple[Example, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def databases(self) -> list[tuple[str, str]]:
        """Return (db_id, file) of each database; two files may have one name."""
        return list(dict.fromkeys((example.db_id, example.db_path) for example in self.examples))


class Finding(NamedTuple):
    """One thing found: `kind`, the set and the id of the question (or database) it is about, and what says so."""

    kind: str
    set: str
    id: str
    details: Fields

    def record(self) -> Record:
        """Return the line of a findings file."""
        return {"kind": self.kind, "set": self.set, "id": self.id, **self.details}
