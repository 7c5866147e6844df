"""Record the changes of the augmentation, so that every difference from the original question set is documented."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_sql.types import Fields, Record


class Change(NamedTuple):
    """A change: the step that made it (such as `fill`), the id of the question (or database), and details."""

    step: str
    id: str
    details: Fields

    def record(self) -> Record:
        """Return the change as a record of the file of changes."""
        return {"step": self.step, "id": self.id, **self.details}
