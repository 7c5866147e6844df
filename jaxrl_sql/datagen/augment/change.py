"""Name what a step changed, so that every difference from the original set can be looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Change(NamedTuple):
    """One change: the step, the question (or database) that it was for, and what is different now."""

    step: str
    id: str
    details: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the line of a file of changes."""
        return {"step": self.step, "id": self.id, **self.details}
