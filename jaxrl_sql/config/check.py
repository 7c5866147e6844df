"""Validate a configuration: the rules of its fields, and the constraints between fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_sql.config.fields import sections_of
from jaxrl_sql.types import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def find_errors(config: Any) -> Iterator[str]:
    """Yield a line for each invalid value of a configuration, with its key and the allowed values."""
    for section in sections_of(config):
        for field in section.fields:
            # `default` is the value that the field has in `config`.
            if field.rule is not None and (error := field.rule.find_error(field.default)):
                yield f"{field.key}{error}"
    for section in sections_of(config):
        if section.name and hasattr(section.values, "find_errors"):
            yield from section.values.find_errors(section.name)
    yield from config.find_errors()


def check_config(config: Any, origin: str = "config") -> None:
    """Raise InputError for the first invalid value, with its key and the allowed values."""
    for error in find_errors(config):
        raise InputError(f"{origin}: {error}")


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of all values in nested mappings; an empty mapping is a value. `prefix` begins keys."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def values_by_key(config: DataclassInstance) -> dict[str, Any]:
    """Return the value of each dotted key of a configuration or of a section."""
    return dict(flatten(dataclasses.asdict(config)))
