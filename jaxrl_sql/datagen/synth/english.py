"""Read the names of somebody's tables and columns as English words, one thing and many."""

from __future__ import annotations

import re

from jaxrl_sql.datagen.synth.draw import plural

_PREFIXES = frozenset({"tbl", "tb", "dim", "fact", "vw"})
# Where a capital begins a word: `orderDate`, `HTTPCode`; digits stay with the letters before them.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "series": "series"}


def split_words(name: str) -> str:
    """Return the words of a name: `orderDate`, `ORDER_DATE` and `Order Date` are `order date`.

    A name of marks alone is its own word.
    """
    parts = re.split(r"[\W_]+", _HUMP.sub(" ", name))
    words = [part.lower() for part in parts if part]
    if len(words) > 1 and words[0] in _PREFIXES:
        words = words[1:]
    return " ".join(words) or name.strip() or name


def one_of(words: str) -> str:
    """Return the singular of the last word; what does not look like a plural stays as it is."""
    head, _, last = words.rpartition(" ")
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    elif len(last) > 4 and last.endswith("ies"):
        last = last[:-3] + "y"
    elif len(last) > 4 and last.endswith(("sses", "xes", "ches", "shes", "zes")):
        last = last[:-2]
    elif len(last) > 3 and last.endswith("s") and not last.endswith(("ss", "us", "is")):
        last = last[:-1]
    return f"{head} {last}".strip()


def many_of(words: str) -> str:
    """Return the plural of the last word of a singular; words of other scripts stay as they are."""
    last = words.rpartition(" ")[2]
    if not (last.isascii() and last.isalpha()):
        return words
    return plural(words.replace(" ", "_")).replace("_", " ")
