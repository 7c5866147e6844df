"""What the declaration of a configuration's field holds besides its type: its rule, its help text and its synonyms.

    lr: Annotated[float, Above(0), "peak learning rate", Synonyms(trl="learning_rate")] = 1e-6

Validation, `--help` and docs/settings.md read them from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Protocol, Self, get_args, get_origin, get_type_hints


class Rule(Protocol):
    """What a field may hold."""

    def fault(self, value: Any) -> str:
        """Return why a value is refused, to follow the field's key; empty if it is accepted."""
        ...

    @property
    def words(self) -> str:
        """Return the rule as `--help` shows it."""
        ...


class OneOf(tuple[str, ...]):
    """The names that a field may hold."""

    __slots__ = ()

    def __new__(cls, *names: str) -> Self:
        """Make a rule of the names."""
        return super().__new__(cls, names)

    def fault(self, value: Any) -> str:
        """Return why a value is refused, to follow the field's key; empty if it is accepted."""
        return "" if value in self else f"={value!r} is none of {', '.join(self)}"

    @property
    def words(self) -> str:
        """Return the rule as `--help` shows it."""
        return " | ".join(self)


@dataclasses.dataclass(frozen=True)
class Above:
    """A number that must be larger than `least`, and at most `most`."""

    least: float
    most: float | None = None

    def fault(self, value: float) -> str:
        """Return why a value is refused, to follow the field's key; empty if it is accepted."""
        is_allowed = value > self.least and (self.most is None or value <= self.most)
        return "" if is_allowed else f"={value} must be {self.words}"

    @property
    def words(self) -> str:
        """Return the rule as `--help` shows it."""
        return f"above {self.least:g}" + ("" if self.most is None else f" and at most {self.most:g}")


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """A number that must be `least` or more, at most `most`, and less than `below`."""

    least: float
    most: float | None = None
    below: float | None = None

    def fault(self, value: float) -> str:
        """Return why a value is refused, to follow the field's key; empty if it is accepted."""
        is_allowed = value >= self.least
        is_allowed = is_allowed and (self.most is None or value <= self.most)
        is_allowed = is_allowed and (self.below is None or value < self.below)
        return "" if is_allowed else f"={value} must be {self.words}"

    @property
    def words(self) -> str:
        """Return the rule as `--help` shows it."""
        if self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        return f"{self.least:g} or more" + ("" if self.below is None else f" and below {self.below:g}")


@dataclasses.dataclass(frozen=True)
class Synonyms:
    """The keys of other libraries that mean the same; `note` says what differs, such as a unit or the default."""

    trl: str = ""
    verl: str = ""
    note: str = ""


PositiveInt = Annotated[int, Above(0)]
PositiveFloat = Annotated[float, Above(0)]
Share = Annotated[float, AtLeast(0, most=1)]


class Field(NamedTuple):
    """A field of a section: its dotted key, type, default, help text, rule and synonyms."""

    key: str
    type: Any
    default: Any
    help: str
    rule: Rule | None
    synonyms: Synonyms | None


class Section(NamedTuple):
    """A section of a configuration: its dotted name (empty for the root), its class, and its own fields."""

    name: str
    type: type
    fields: tuple[Field, ...]


def sections_of(config: Any, name: str = "") -> Iterator[Section]:
    """Yield the sections of a configuration in order, each before the sections in it; its values are the defaults.

    A number without a rule must be 0 or more.
    """
    prefix = f"{name}." if name else ""
    fields, inner = [], []
    for field_name, hint in get_type_hints(type(config), include_extras=True).items():
        metadata, value = getattr(hint, "__metadata__", ()), getattr(config, field_name)
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if dataclasses.is_dataclass(value):
            inner.append((value, prefix + field_name))
            continue
        rules = [item for item in metadata if hasattr(item, "fault")]
        help_text = next((item for item in metadata if type(item) is str), "")
        synonyms = next((item for item in metadata if isinstance(item, Synonyms)), None)
        rule = rules[-1] if rules else AtLeast(0) if plain in (int, float) else None
        fields.append(Field(prefix + field_name, plain, value, help_text, rule, synonyms))
    yield Section(name, type(config), tuple(fields))
    for section, section_name in inner:
        yield from sections_of(section, section_name)
