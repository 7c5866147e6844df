"""Name what a step changed, so that every difference from the original set can be looked up."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_sql.types import Fields, Record


class Change(NamedTuple):
    """One change: the step, the question (or database) that it was for, and what is different now."""

    step: str
    id: str
    details: Fields

    def record(self) -> Record:
        """Return the line of a file of changes."""
        return {"step": self.step, "id": self.id, **self.details}
