"""Define the input (`QuestionSet`) and the output (`Finding`) of an audit."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_sql.types import Example, Fields, Record


class QuestionSet(NamedTuple):
    """A named set of questions; `skipped` holds (uid, reason) of unusable lines."""

    name: str
    examples: tuple[Example, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def databases(self) -> list[tuple[str, str]]:
        """Return (db_id, file) of each database; two files may share a db_id."""
        return list(dict.fromkeys((example.db_id, example.db_path) for example in self.examples))


class Finding(NamedTuple):
    """A finding: its kind, the name of the set, the id of the question (or database), and details."""

    kind: str
    set: str
    id: str
    details: Fields

    def record(self) -> Record:
        """Return the line of a findings file."""
        return {"kind": self.kind, "set": self.set, "id": self.id, **self.details}
