"""What a field of the configuration may hold, said at the field: `Annotated[str, OneOf("a", "b")]`, `PositiveInt`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Self, get_type_hints


class OneOf(tuple[str, ...]):
    """The names that a key may hold; the code of each is in the package of its section."""

    __slots__ = ()

    def __new__(cls, *names: str) -> Self:
        """Make a rule of the names."""
        return super().__new__(cls, names)

    def fault(self, value: Any) -> str:
        """Return why a value is refused, if it is."""
        return "" if value in self else f"={value!r} is none of {', '.join(self)}"


class Above(int):
    """A bound that a number has to be above; every other number but those of `mesh` is 0 or more."""

    def fault(self, value: Any) -> str:
        """Return why a value is refused, if it is."""
        return "" if value > self else f"={value} must be above {int(self)}"


PositiveInt = Annotated[int, Above(0)]
PositiveFloat = Annotated[float, Above(0)]


def rules_of(section: type, prefix: str = "") -> Iterator[tuple[str, OneOf | Above]]:
    """Yield (dotted key, rule) of a section's fields and of the sections in it."""
    for name, hint in get_type_hints(section, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            yield from rules_of(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
        for rule in getattr(hint, "__metadata__", ()):
            yield f"{prefix}{name}", rule
