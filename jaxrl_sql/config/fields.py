"""Metadata in the declaration of a configuration field: its rule, its help text and its synonyms.

    lr: Annotated[float, Above(0), "peak learning rate", Synonyms(trl="learning_rate")] = 1e-6

Validation, `--help` and docs/reference/settings.md read them from here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Annotated, Any, NamedTuple, Protocol, Self, get_args, get_origin, get_type_hints


class Constraint(Protocol):
    """A constraint on the values of a field."""

    def find_error(self, value: Any) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        ...

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        ...


class OneOf(tuple[str, ...]):
    """The names that are valid for a field."""

    __slots__ = ()

    def __new__(cls, *names: str) -> Self:
        """Create a rule from the names."""
        return super().__new__(cls, names)

    def find_error(self, value: Any) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        return "" if value in self else f"={value!r} is not one of {', '.join(self)}"

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        return " | ".join(self)


@dataclasses.dataclass(frozen=True)
class Above:
    """A number that must be larger than `minimum`, and at most `maximum`."""

    minimum: float
    maximum: float | None = None

    def find_error(self, value: float) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        is_allowed = value > self.minimum and (self.maximum is None or value <= self.maximum)
        return "" if is_allowed else f"={value} must be {self.description}"

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        return f"above {self.minimum:g}" + ("" if self.maximum is None else f" and at most {self.maximum:g}")


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """A number that must be `minimum` or more, at most `maximum`, and less than `below`."""

    minimum: float
    maximum: float | None = None
    below: float | None = None

    def find_error(self, value: float) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        is_below = self.below is None or value < self.below
        is_allowed = value >= self.minimum and (self.maximum is None or value <= self.maximum) and is_below
        return "" if is_allowed else f"={value} must be {self.description}"

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        if self.maximum is not None:
            return f"from {self.minimum:g} to {self.maximum:g}"
        return f"{self.minimum:g} or more" + ("" if self.below is None else f" and below {self.below:g}")


@dataclasses.dataclass(frozen=True)
class ZeroOr:
    """A number that is 0 or satisfies `rule`; `zero` follows "or 0" in descriptions, such as "to disable it"."""

    rule: Above | AtLeast
    zero: str

    def find_error(self, value: float) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        return "" if value == 0 or not self.rule.find_error(value) else f"={value} must be {self.description}"

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        return f"{self.rule.description}, or 0 {self.zero}"


class Among(tuple[int, ...]):
    """The whole numbers that are valid for a field."""

    __slots__ = ()

    def __new__(cls, *numbers: int) -> Self:
        """Create a rule from the numbers."""
        return super().__new__(cls, numbers)

    def find_error(self, value: int) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        return "" if value in self else f"={value} must be {self.description}"

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        return " or ".join(map(str, self))


class SomeOf(tuple[str, ...]):
    """The names that are valid in a list."""

    __slots__ = ()

    def __new__(cls, *names: str) -> Self:
        """Create a rule from the names."""
        return super().__new__(cls, names)

    def find_error(self, value: Collection[str]) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        unknown = [name for name in value if name not in self]
        return f" holds {', '.join(map(repr, unknown))}, which is not in {', '.join(self)}" if unknown else ""

    @property
    def description(self) -> str:
        """Return the rule as `--help` shows it."""
        return f"some of {', '.join(self)}"


@dataclasses.dataclass(frozen=True)
class Matches:
    """A text that fully matches a regular expression, which `description` describes."""

    pattern: str
    description: str

    def find_error(self, value: str) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        return "" if re.fullmatch(self.pattern, value) else f"={value!r} must be {self.description}"


@dataclasses.dataclass(frozen=True)
class NotEmpty:
    """A text or list that must not be empty; `purpose` ends the error message, such as "it names the folder"."""

    purpose: str
    description: str = dataclasses.field(default="not empty", init=False)

    def find_error(self, value: Collection[str]) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        return "" if value else f" is empty; {self.purpose}"


@dataclasses.dataclass(frozen=True)
class Texts:
    """A list without empty texts; `effect` ends the error message: the consequence of an empty text."""

    effect: str
    description: str = dataclasses.field(default="none of them empty", init=False)

    def find_error(self, value: Collection[str]) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        return "" if all(value) else f" holds an empty text: {self.effect}"


@dataclasses.dataclass(frozen=True)
class Day:
    """An ISO date such as 2026-11-29, or an empty text."""

    description: str = dataclasses.field(default="a day such as 2026-11-29, or empty", init=False)

    def find_error(self, value: str) -> str:
        """Return the reason why a value is rejected, to append to the field's key; "" if it is valid."""
        if not value:
            return ""
        with contextlib.suppress(ValueError):
            if date.fromisoformat(value).isoformat() == value:
                return ""
        return f"={value!r} must be {self.description}"


@dataclasses.dataclass(frozen=True)
class Synonyms:
    """The equivalent keys in TRL and verl; `note` states differences, such as the unit or the default."""

    trl: str = ""
    verl: str = ""
    note: str = ""


PositiveInt = Annotated[int, Above(0)]
PositiveFloat = Annotated[float, Above(0)]
Share = Annotated[float, AtLeast(0, maximum=1)]


# Results of `read_annotations` by class; resolving type hints is slow.
_ANNOTATIONS = dict[type, Mapping[str, tuple[Any, Sequence[Any]]]]()


class Field(NamedTuple):
    """A field of a section: its dotted key, type, value, help text, rule and synonyms.

    `default` is the field's value in the configuration that `sections_of` reads, which often has the defaults.
    """

    key: str
    type: Any
    default: Any
    help: str
    rule: Constraint | None
    synonyms: Synonyms | None


class Section(NamedTuple):
    """A section of a configuration: its dotted name (empty for the root), the section object, and its fields.

    Subsections are not among the fields.
    """

    name: str
    values: Any
    fields: tuple[Field, ...]


def password_error(key: str, url: str) -> Iterator[str]:
    """Yield an error message if the URL in the setting `key` holds a password, which the files of a run would show."""
    scheme, _, rest = url.partition("://")
    user, _, password = rest.rpartition("@")[0].partition(":")
    if password:
        variable = "MYSQL_PWD" if scheme in ("mysql", "mariadb") else "PGPASSWORD"
        yield f"{key} holds the password of {user}: remove it, and set {variable}"


def read_annotations(section: type) -> Mapping[str, tuple[Any, Sequence[Any]]]:
    """Return the type and the metadata of each field of a section's class, by name."""
    if section not in _ANNOTATIONS:
        hints = get_type_hints(section, include_extras=True)
        _ANNOTATIONS[section] = {
            field.name: (
                get_args(hints[field.name])[0] if get_origin(hints[field.name]) is Annotated else hints[field.name],
                getattr(hints[field.name], "__metadata__", ()),
            )
            for field in dataclasses.fields(section)
        }
    return _ANNOTATIONS[section]


def sections_of(config: Any, name: str = "") -> Iterator[Section]:
    """Yield the sections of a configuration in order, each before its subsections; `name` is the root's dotted name.

    A number without a rule gets the rule that it must be 0 or more. A field that maps names of the user's choice to
    sections, such as `sources` of `data prepare`, yields these sections.
    """
    prefix = f"{name}." if name else ""
    fields, subsections = list[Field](), list[tuple[Any, str]]()
    for field_name, (annotation, metadata) in read_annotations(type(config)).items():
        value = getattr(config, field_name)
        if dataclasses.is_dataclass(value):
            subsections.append((value, prefix + field_name))
        elif isinstance(value, dict):
            subsections += [(section, f"{prefix}{field_name}.{key}") for key, section in value.items()]
        else:
            fields.append(_field(prefix + field_name, annotation, value, metadata))
    yield Section(name, config, tuple(fields))
    for section, section_name in subsections:
        yield from sections_of(section, section_name)


def fields_of(root: type) -> dict[str, Field]:
    """Return the fields of a root configuration by their dotted keys."""
    return {field.key: field for section in sections_of(root()) for field in section.fields}


def _field(key: str, annotation: Any, value: Any, metadata: Sequence[Any]) -> Field:
    # Nested Annotated types list their rules in order, such as PositiveInt's first; a field's own rule is the last.
    rules = [item for item in metadata if hasattr(item, "find_error")]
    return Field(
        key,
        annotation,
        value,
        help=next((item for item in metadata if type(item) is str), ""),
        rule=rules[-1] if rules else AtLeast(0) if annotation in (int, float) else None,
        synonyms=next((item for item in metadata if isinstance(item, Synonyms)), None),
    )
