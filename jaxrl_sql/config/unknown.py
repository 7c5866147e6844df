"""What an unknown key was most likely meant to be: another section's, another library's, or a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from jaxrl_sql.config.fields import Field, fields_of

_SAME_SECTION = 0.8
_LIKENESS = 0.5
_MOST_NAMED = 4


def unknown_key(key: str, root: type, siblings: Sequence[str] = ()) -> str:
    """Return the words that refuse an unknown key of a command and name the keys that it may mean.

    `siblings` are the names that are known where the first unknown one stands, with what precedes it.
    """
    fields = fields_of(root)
    section, _, name = key.rpartition(".")
    known = [other for other in (*siblings, *fields) if section and other.rpartition(".")[0] == section]
    if close := difflib.get_close_matches(key, known, n=1, cutoff=_SAME_SECTION):
        return f"unknown key {key}; the nearest is {close[0]}"
    namesakes = [other for other in fields if other.rpartition(".")[2] == name]
    if section and namesakes:
        namesakes = difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0)
    if namesakes:
        return f"unknown key {key}; the nearest {'is' if len(namesakes) == 1 else 'are'} {_listed(namesakes)}"
    for library, shown in (("trl", "TRL"), ("verl", "verl")):
        meant = [other for other, field in fields.items() if _is_called(field, library, {key, name})]
        if meant := [other for other in meant if other in known] or meant:
            return f"unknown key {key}, which is {shown}'s name for {_listed(meant)}"
    first = ".".join(key.split(".")[: siblings[0].count(".") + 1]) if siblings else key
    for text, others in ((key, fields), (first, siblings)):
        if nearest := difflib.get_close_matches(text, others, n=1, cutoff=_LIKENESS):
            return f"unknown key {key}; the nearest is {nearest[0]}"
    return f"unknown key {key}; --help lists the keys"


def settings_called(name: str, root: type) -> list[str]:
    """Return the keys of a command whose last word is `name`."""
    return [key for key in fields_of(root) if key.rpartition(".")[2] == name][:_MOST_NAMED]


def _is_called(field: Field, library: str, names: set[str]) -> bool:
    """Return whether another library calls a field by one of these names, or its key ends with one."""
    called: str = getattr(field.synonyms, library, "")
    return any(word in names for name in called.split(", ") if name for word in (name, name.rpartition(".")[2]))


def _listed(keys: list[str]) -> str:
    *others, last = keys[:_MOST_NAMED]
    return f"{', '.join(others)} and {last}" if others else last
