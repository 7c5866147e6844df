"""What tables and columns are called at an engine: as in SQLite in lower case, or otherwise where that is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from jaxrl_sql.databases.engines.tables import NameRules


def new_names(names: Sequence[str], noun: str, rules: NameRules) -> tuple[dict[str, str], list[str]]:
    """Return what each name becomes, and those that become more than themselves in lower case.

    `noun` is `table` or `column`, and what a name without letters becomes, with its place.
    """
    found: dict[str, str] = {}
    changed = []
    for place, name in enumerate(names, 1):
        folded = fold(name)
        usable = _usable(folded, f"{noun}_{place}", rules, is_column=noun == "column")
        while usable in found.values():
            usable = _shortened(f"{usable}_{place}", rules)
        found[name] = usable
        if usable != folded:
            changed.append(name)
    return found, changed


def fold(name: str) -> str:
    """Return a name as unquoted SQL is read by PostgreSQL: ASCII letters in lower case, which SQLite takes as equal."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _usable(name: str, place: str, rules: NameRules, *, is_column: bool) -> str:
    """Return a name that the engine takes: not empty, not its own, and no longer than it may be."""
    usable = name.rstrip(" ") or place
    if rules.is_basic:
        usable = "".join(letter if letter <= "\uffff" else "_" for letter in usable)
    return _shortened(f"{usable}_" if is_column and usable in rules.reserved else usable, rules)


def _shortened(name: str, rules: NameRules) -> str:
    """Return a name of at most the engine's length, with a hash of all of it at its end where it was cut."""

    def length(text: str) -> int:
        return len(text.encode("utf-8", "surrogateescape")) if rules.counts_bytes else len(text)

    if not rules.length or length(name) <= rules.length:
        return name
    tail = "_" + hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    head = name
    while length(head + tail) > rules.length:
        head = head[:-1]
    return head + tail
