"""Suggest the intended key for an unknown one: of another section, of another library, or a misspelling."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from jaxrl_sql.config.fields import Field, fields_of

_SAME_SECTION = 0.8
_LIKENESS = 0.5
_MAX_NAMED = 4


def unknown_key(key: str, root: type, siblings: Sequence[str] = ()) -> str:
    """Return the error message for an unknown key of a command, with suggestions.

    `siblings` are the valid keys in the section of the first unknown name.
    """
    fields = fields_of(root)
    section, _, name = key.rpartition(".")
    siblings_of_section = [other for other in (*siblings, *fields) if section and other.rpartition(".")[0] == section]
    if suggestion := _synonym_words(fields, key, siblings_of_section, by_last_word=False):
        return f"unknown key {key}{suggestion}"
    namesakes = [other for other in fields if other.rpartition(".")[2] == name]
    in_section = [other for other in namesakes if section and other.partition(".")[0] == key.partition(".")[0]]
    close = difflib.get_close_matches(key, in_section, n=1, cutoff=0.0)
    if close := close or difflib.get_close_matches(key, siblings_of_section, n=1, cutoff=_SAME_SECTION):
        return f"unknown key {key}; the nearest is {close[0]}"
    if section and namesakes:
        namesakes = difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0)
    if namesakes:
        return f"unknown key {key}; the nearest {'is' if len(namesakes) == 1 else 'are'} {_join_keys(namesakes)}"
    if suggestion := _synonym_words(fields, name, siblings_of_section, by_last_word=True):
        return f"unknown key {key}{suggestion}"
    first = ".".join(key.split(".")[: siblings[0].count(".") + 1]) if siblings else key
    for text, others in ((key, fields), (first, siblings)):
        if nearest := difflib.get_close_matches(text, others, n=1, cutoff=_LIKENESS):
            return f"unknown key {key}; the nearest is {nearest[0]}"
    return f"unknown key {key}; --help lists the keys"


def _synonym_words(fields: Mapping[str, Field], name: str, known: Sequence[str], *, by_last_word: bool) -> str:
    """Return a suggestion if `name` is another library's, preferably of a key in `known`; "" otherwise."""
    for library, title in (("trl", "TRL"), ("verl", "verl")):
        meant = [key for key, field in fields.items() if name in _names_in(field, library, by_last_word=by_last_word)]
        if meant := [key for key in meant if key in known] or meant:
            return f", which is {title}'s name for {_join_keys(meant)}"
    return ""


def find_keys(name: str, root: type) -> list[str]:
    """Return the keys of a command that equal `name` or whose last part does."""
    return [key for key in fields_of(root) if name in (key, key.rpartition(".")[2])][:_MAX_NAMED]


def _names_in(field: Field, library: str, *, by_last_word: bool) -> set[str]:
    """Return the key of another library for a field, or its last part; empty if it has none."""
    key = getattr(field.synonyms, library, "")
    return {key.rpartition(".")[2] if by_last_word else key} - {""}


def _join_keys(keys: list[str]) -> str:
    *others, last = keys[:_MAX_NAMED]
    return f"{', '.join(others)} and {last}" if others else last
