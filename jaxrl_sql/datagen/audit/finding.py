"""Define the input (`QuestionSet`) and the output (`Finding`) of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_sql.types import Example, Fields, Record


class QuestionSet(NamedTuple):
    """A named set of questions.

    `skipped` has (uid, reason) of unusable questions. `lines` has the place (`file:line`) of questions in a user's
    file, by uid.
    """

    name: str
    examples: tuple[Example, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    lines: Mapping[str, str] = {}

    @property
    def databases(self) -> list[tuple[str, str]]:
        """Return (db_id, file) of each database; two files may share a db_id."""
        return list(dict.fromkeys((example.db_id, example.db_path) for example in self.examples))


class Finding(NamedTuple):
    """A finding: its kind (such as `gold: fails`), the name of the set, the id of the question (or database), details.

    `line` is the place of the question in a user's file (`file:line`), or "".
    """

    kind: str
    set: str
    id: str
    details: Fields
    line: str = ""

    def with_line(self, line: str) -> Finding:
        """Return the finding with the place of its question."""
        return self._replace(line=line)

    def record(self) -> Record:
        """Return the finding as a record of the file `findings.jsonl`."""
        place = {"line": self.line} if self.line else {}
        return {"kind": self.kind, "set": self.set, "id": self.id, **place, **self.details}
