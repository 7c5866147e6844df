"""Record the changes of a step, so that every difference from the original set is documented."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_sql.types import Fields, Record


class Change(NamedTuple):
    """A change: the step, the id of the question (or database), and details."""

    step: str
    id: str
    details: Fields

    def record(self) -> Record:
        """Return the line of a file of changes."""
        return {"step": self.step, "id": self.id, **self.details}
