"""Convert names of tables and columns to English words, singular and plural.

`plural` and `column_words` are for the names of the built-in domains, the subjects of generated
databases. `split_words`, `singular_of` and `plural_of` are
for names of any database, and use the library inflect.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import inflect

# Prefixes of table names, such as `tbl_customer` and `dim_date`, which are omitted.
_PREFIXES = frozenset({"tbl", "tb", "dim", "fact", "vw"})
# A capital that begins a word: `orderDate`, `HTTPCode`; digits belong to the letters before them.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IRREGULAR_PLURALS = {"person": "people", "policeman": "policemen", "staff": "staff", "series": "series"}
# Uncountable nouns, whose rows are called records.
_UNCOUNTED = re.compile(
    r"\b((meta)?data|info|information|weather|safety|furniture|equipment|management|employment|attendance|availability)$"
)
# Nouns whose plural equals the singular.
_INVARIABLE = ("staff", "aircraft", "physics", "mathematics")
# Nouns that inflect gets wrong, with their plurals.
_CORRECTED = (("lens", "lenses"), ("campus", "campuses"), ("mine", "mines"), ("person", "people"))
_PARTICLES = "of|in|on|at|by|to|for|from|with"
_PARTICLE = re.compile(rf"\w (?:{_PARTICLES})$")
# Modifiers after the noun of a phrase: `in detention`, `booked`.
_TAIL = re.compile(rf" (?:(?:{_PARTICLES}) (?!records?$)\w.*|\w{{3,}}(?<!e)ed(?: .*)?)$")


def add_spaces(name: str) -> str:
    """Return a snake_case name as English words."""
    return name.replace("_", " ")


def plural(word: str) -> str:
    """Return a snake_case word of the built-in domains with its last part in the plural.

    Generated sets depend on these rules byte for byte, so they do not use a library.
    """
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
    """Return a column name as English words, with `date` or `year` appended to such columns (`hired on date`)."""
    text = add_spaces(name.removeprefix("is_") if kind == "bool" else name)
    if kind == "date" and not text.endswith(("date", "night", "birth")):
        return f"{text} date"
    if kind == "year" and "year" not in text and text != "vintage":
        return f"{text} year"
    return text


def split_words(name: str) -> str:
    """Return the words of a name: `order date` for `orderDate`, `ORDER_DATE` and `Order Date`.

    A name that consists of punctuation only is returned unchanged.
    """
    words = [word.lower() for word in re.split(r"[\W_]+", _HUMP.sub(" ", name)) if word]
    if len(words) > 1 and words[0] in _PREFIXES:
        words = words[1:]
    return " ".join(words) or name.strip() or name


@functools.cache
def _engine() -> inflect.engine:
    """Return the inflection engine with additional nouns of schemas; the import takes seconds."""
    import inflect  # noqa: PLC0415 - slow, and only user databases need it

    engine = inflect.engine()
    for word in _INVARIABLE:
        engine.defnoun(word, word)
    for singular, plural_form in _CORRECTED:
        engine.defnoun(singular, plural_form)
    return engine


def _singular(word: str) -> str:
    """Return the singular of a word; words that only look like plurals (`bus`) are returned unchanged."""
    engine = _engine()
    singular = engine.singular_noun(word) if _is_english(word) else False
    is_plural = not word.endswith("s") or engine.plural_noun(word) == f"{word}s"
    return str(singular) if singular and is_plural else word


def _is_english(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _change_noun(phrase: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the noun of a phrase: the last word, or the word before `of club`, `in concert`, `booked`."""
    tail_match = _TAIL.search(phrase)
    head, tail = (phrase[: tail_match.start()], tail_match[0]) if tail_match else (phrase, "")
    before, _, noun = head.rpartition(" ")
    return f"{before} {change(noun)}{tail}".strip()


def singular_of(phrase: str) -> str:
    """Return the singular of a table's words; `record` is appended to words without a countable noun (`lives in`)."""
    is_record = _PARTICLE.search(phrase) or _UNCOUNTED.search(phrase)
    return f"{phrase} record" if is_record else _change_noun(phrase, _singular)


def plural_of(phrase: str) -> str:
    """Return the plural of a singular that `singular_of` returned; words in other scripts are unchanged."""
    return _change_noun(phrase, lambda word: _engine().plural_noun(word) if _is_english(word) else word)
