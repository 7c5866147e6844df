"""Describe every setting with its default, allowed values and meaning, for `--help` and the documentation."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from jaxrl_sql.config.fields import Field, Section, sections_of
from jaxrl_sql.config.load import type_text
from jaxrl_sql.config.roots import ROOTS, RootConfig

_WIDTH = 100


def all_sections() -> Iterator[Section]:
    """Yield the sections of all commands in order, each once and before its subsections."""
    yielded = set[str]()
    for root in ROOTS:
        for section in sections_of(root()):
            if section.name not in yielded:
                yield section
            yielded.add(section.name)


def settings_help(config: RootConfig) -> str:
    """Return the settings of a command as text for `--help`; the values of `config` are the defaults."""
    sections = (
        "\n".join([f"{section.name or 'the whole run'}: {section_help(section)}", *map(_help_of, section.fields)])
        for section in sections_of(config)
    )
    return "\n\n".join(["settings, as key.sub=value or in the file of --config:", *sections])


def section_help(section: Section) -> str:
    """Return the docstring of a section's class."""
    return inspect.getdoc(type(section.values)) or ""


def format_value(value: Any) -> str:
    """Return a value as written after `key=`; "" for an empty text."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def describe_rule(field: Field) -> str:
    """Return a description of the valid values of a field."""
    rule = field.rule.description if field.rule is not None else ""
    if " | " in rule:
        return rule
    return f"{type_text(field.type)}{', ' * bool(rule)}{rule}"


def synonyms_text(field: Field) -> str:
    """Return the names of a field in TRL and verl; "" if neither has it."""
    if field.synonyms is None:
        return ""
    names = (("TRL", field.synonyms.trl), ("verl", field.synonyms.verl))
    note = f" ({field.synonyms.note})" if field.synonyms.note else ""
    return "; ".join(f"{library}: {name}" for library, name in names if name) + note


def _help_of(field: Field) -> str:
    """Return a field's lines of `--help`: key and default, then meaning, valid values and synonyms."""
    text = f"{field.help} [{describe_rule(field)}]"
    if names := synonyms_text(field):
        text += f" [{names}]"
    lines = textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
    return "\n".join([f"  {field.key}={format_value(field.default)}", *lines])
