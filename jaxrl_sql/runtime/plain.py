"""Convert values for JSON: for a run's files, and for programs that read numbers as doubles."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxrl_sql.types import Json

_EXACT = 2**53 - 1
"""The largest n such that a double represents every whole number up to n."""


def plain(value: Json) -> Json:
    """Return a value of JSON's types: Python numbers for NumPy's, and null for NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def exact(value: Json) -> Json:
    """Return a value with integers beyond 2^53 as text, at any depth: programs that read doubles would round them.

    A browser is such a program, as JavaScript's numbers are doubles.
    """
    if isinstance(value, Mapping):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) > _EXACT else value
