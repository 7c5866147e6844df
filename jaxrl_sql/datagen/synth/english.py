"""Turn names of tables and columns into English words, singular and plural."""

from __future__ import annotations

import re

_PREFIXES = frozenset({"tbl", "tb", "dim", "fact", "vw"})
# Where a capital begins a word: `orderDate`, `HTTPCode`; digits stay with the letters before them.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IRREGULAR_SINGULARS = {"people": "person", "children": "child", "men": "man", "women": "woman", "series": "series"}
_IRREGULAR_PLURALS = {"person": "people", "policeman": "policemen", "staff": "staff", "series": "series"}


def spaced(name: str) -> str:
    """Return the English of a snake_case name."""
    return name.replace("_", " ")


def plural(word: str) -> str:
    """Return the English plural of the last part of a snake_case word."""
    head, _, last = word.rpartition("_")
    if last in _IRREGULAR_PLURALS:
        many = _IRREGULAR_PLURALS[last]
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        many = last[:-1] + "ies"
    elif last.endswith(("s", "x", "ch", "sh", "z")):
        many = last + "es"
    else:
        many = last + "s"
    return f"{head}_{many}" if head else many


def column_words(name: str, kind: str) -> str:
    """Return the English of a column name; dates and years say what they are (`hired on date`)."""
    said = spaced(name.removeprefix("is_") if kind == "bool" else name)
    if kind == "date" and not said.endswith(("date", "night", "birth")):
        return f"{said} date"
    if kind == "year" and "year" not in said and said != "vintage":
        return f"{said} year"
    return said


def split_words(name: str) -> str:
    """Return the words of a name: `orderDate`, `ORDER_DATE` and `Order Date` are `order date`.

    A name of marks alone is its own word.
    """
    parts = re.split(r"[\W_]+", _HUMP.sub(" ", name))
    words = [part.lower() for part in parts if part]
    if len(words) > 1 and words[0] in _PREFIXES:
        words = words[1:]
    return " ".join(words) or name.strip() or name


def singular_of(words: str) -> str:
    """Return the singular of the last word; what does not look like a plural stays as it is."""
    head, _, last = words.rpartition(" ")
    if last in _IRREGULAR_SINGULARS:
        last = _IRREGULAR_SINGULARS[last]
    elif len(last) > 4 and last.endswith("ies"):
        last = last[:-3] + "y"
    elif len(last) > 4 and last.endswith(("sses", "xes", "ches", "shes", "zes")):
        last = last[:-2]
    elif len(last) > 3 and last.endswith("s") and not last.endswith(("ss", "us", "is")):
        last = last[:-1]
    return f"{head} {last}".strip()


def plural_of(words: str) -> str:
    """Return the plural of the last word of a singular; words of other scripts stay as they are."""
    last = words.rpartition(" ")[2]
    if not (last.isascii() and last.isalpha()):
        return words
    return spaced(plural(words.replace(" ", "_")))
