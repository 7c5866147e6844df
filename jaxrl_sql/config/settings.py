"""Every setting with its default and what it may hold, read from the sections: for `--help` and docs/settings.md."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl_sql.config.check import RULES
from jaxrl_sql.config.fields import Above, AtLeast, OneOf, Rule
from jaxrl_sql.config.load import type_words
from jaxrl_sql.config.roots import TrainConfig


class Setting(NamedTuple):
    """A dotted key, its default as YAML has it, and in words what it may hold."""

    key: str
    default: str
    allowed: str


class Section(NamedTuple):
    """A section by its dotted name ("": what stands in none), what its class says, and the settings right in it."""

    name: str
    words: str
    settings: tuple[Setting, ...]


def sections() -> Iterator[Section]:
    """Yield all sections in order, each before those in it."""
    yield from _sections(TrainConfig(), "", RULES)


def settings_help(names: Collection[str]) -> str:
    """Return the settings of some sections, and of what is in them, as `--help` shows them."""
    parts = ["settings, as key.sub=value or in the file of --config:"]
    for section in sections():
        if section.name.partition(".")[0] in names:
            lines = [f"  {one.key}={one.default}  ({one.allowed})" for one in section.settings]
            words = textwrap.indent(section.words, "  ")
            parts.append("\n".join([f"{section.name or 'the whole run'}:", words, "", *lines]))
    return "\n\n".join(parts)


def _sections(config: Any, name: str, rules: Mapping[str, Rule]) -> Iterator[Section]:
    prefix = f"{name}." if name else ""
    own = {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
    inner = {key: value for key, value in own.items() if dataclasses.is_dataclass(value)}
    plain = ((prefix + key, value) for key, value in own.items() if key not in inner)
    settings = (Setting(key, _shown(value), _allowed(key, value, rules)) for key, value in plain)
    bases = [one for one in type(config).__mro__ if dataclasses.is_dataclass(one)]
    yield Section(name, "\n\n".join(inspect.getdoc(one) or "" for one in bases), tuple(settings))
    for key, value in inner.items():
        yield from _sections(value, prefix + key, rules)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)


def _allowed(key: str, default: Any, rules: Mapping[str, Rule]) -> str:
    rule = rules.get(key)
    if isinstance(rule, OneOf):
        return " | ".join(rule)
    bound = f" {rule.words}" if isinstance(rule, Above) else f", {rule.words}" if isinstance(rule, AtLeast) else ""
    return f"{type_words(default)}{bound}"
