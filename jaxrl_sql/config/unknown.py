"""Suggest the intended key for an unknown key.

It may be a key of another section, the name of a setting in another library, or a misspelling.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from jaxrl_sql.config.fields import Field, fields_of

# Minimum similarity of suggestions (the ratio of difflib): of keys in the same section, and of any keys.
_MIN_RATIO_IN_SECTION = 0.8
_MIN_RATIO = 0.5
_MAX_SUGGESTIONS = 4


def unknown_key(key: str, root: type, siblings: Sequence[str] = ()) -> str:
    """Return the error message for an unknown key of a command, with suggestions.

    root: class of the command's configuration. siblings: valid keys in the section of the first unknown name.
    These suggestions are tried in order: another library's full key; a key of the same section with this last name, or
    a similar one; keys of other sections with this last name; another library's last name; any similar key.
    """
    fields = fields_of(root)
    section, _, name = key.rpartition(".")
    siblings_of_section = [other for other in (*siblings, *fields) if section and other.rpartition(".")[0] == section]
    if suggestion := _synonym_text(fields, key, siblings_of_section, by_last_name=False):
        return f"unknown key {key}{suggestion}"
    namesakes = [other for other in fields if other.rpartition(".")[2] == name]
    in_section = [other for other in namesakes if section and other.partition(".")[0] == key.partition(".")[0]]
    close = difflib.get_close_matches(key, in_section, n=1, cutoff=0.0)
    if close := close or difflib.get_close_matches(key, siblings_of_section, n=1, cutoff=_MIN_RATIO_IN_SECTION):
        return f"unknown key {key}; the nearest is {close[0]}"
    if section and namesakes:
        namesakes = difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0)
    if namesakes:
        return f"unknown key {key}; the nearest {'is' if len(namesakes) == 1 else 'are'} {_join_keys(namesakes)}"
    if suggestion := _synonym_text(fields, name, siblings_of_section, by_last_name=True):
        return f"unknown key {key}{suggestion}"
    # The key up to its first unknown name.
    unknown_part = ".".join(key.split(".")[: siblings[0].count(".") + 1]) if siblings else key
    for text, others in ((key, fields), (unknown_part, siblings)):
        if nearest := difflib.get_close_matches(text, others, n=1, cutoff=_MIN_RATIO):
            return f"unknown key {key}; the nearest is {nearest[0]}"
    return f"unknown key {key}; --help lists the keys"


def _synonym_text(fields: Mapping[str, Field], name: str, preferred: Sequence[str], *, by_last_name: bool) -> str:
    """Return a suggestion if `name` is another library's name for a key, first for keys in `preferred`; else ""."""
    for library, title in (("trl", "TRL"), ("verl", "verl")):
        keys = [key for key, field in fields.items() if name in _names_in(field, library, by_last_name=by_last_name)]
        if keys := [key for key in keys if key in preferred] or keys:
            return f", which is {title}'s name for {_join_keys(keys)}"
    return ""


def find_keys(name: str, root: type) -> list[str]:
    """Return up to `_MAX_SUGGESTIONS` keys of a command that equal `name` or whose last name does."""
    return [key for key in fields_of(root) if name in (key, key.rpartition(".")[2])][:_MAX_SUGGESTIONS]


def _names_in(field: Field, library: str, *, by_last_name: bool) -> set[str]:
    """Return the key of another library for a field, or its last name; empty if it has none."""
    key = getattr(field.synonyms, library, "")
    return {key.rpartition(".")[2] if by_last_name else key} - {""}


def _join_keys(keys: list[str]) -> str:
    """Return the first keys as text, joined by commas and "and"."""
    *others, last = keys[:_MAX_SUGGESTIONS]
    return f"{', '.join(others)} and {last}" if others else last
