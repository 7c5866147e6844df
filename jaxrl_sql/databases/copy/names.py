"""Choose the names of copied tables and columns: SQLite's names in lower case, changed if the engine refuses them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from jaxrl_sql.databases.engines.tables import NameRules


def new_names(names: Sequence[str], noun: str, rules: NameRules) -> tuple[dict[str, str], list[str]]:
    """Return the new name of each name, and the names that change in more than case.

    `noun` is `table` or `column`. An empty name becomes `noun` with its position, such as `column_3`.
    """
    renamed: dict[str, str] = {}
    changed = []
    for number, name in enumerate(names, 1):
        folded = fold(name)
        usable = _make_usable(folded, f"{noun}_{number}", rules, is_column=noun == "column")
        while usable in renamed.values():
            usable = _shorten(f"{usable}_{number}", rules)
        renamed[name] = usable
        if usable != folded:
            changed.append(name)
    return renamed, changed


def fold(name: str) -> str:
    """Return a name with ASCII letters in lower case, as PostgreSQL folds unquoted names."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _make_usable(name: str, fallback: str, rules: NameRules, *, is_column: bool) -> str:
    """Return a name that the engine accepts: not empty (then `fallback`), not reserved, and not too long."""
    usable = name.rstrip(" ") or fallback
    if rules.is_basic:
        usable = "".join(letter if letter <= "\uffff" else "_" for letter in usable)
    return _shorten(f"{usable}_" if is_column and usable in rules.reserved else usable, rules)


def _shorten(name: str, rules: NameRules) -> str:
    """Return a name of at most the engine's length; a truncated name ends with a hash of the whole name."""

    def length(text: str) -> int:
        return len(text.encode("utf-8", "surrogateescape")) if rules.counts_bytes else len(text)

    if not rules.length or length(name) <= rules.length:
        return name
    tail = "_" + hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    head = name
    while length(head + tail) > rules.length:
        head = head[:-1]
    return head + tail
