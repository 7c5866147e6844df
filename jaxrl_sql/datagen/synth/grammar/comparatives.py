"""Classify columns, so that a question can use natural phrases: *older than 30*, *the cheapest*, *hired after*.

Rules match a column's name or any of its synonyms. Columns without a matching rule are called by their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from jaxrl_sql.datagen.synth.spec import AnnotatedColumn


class Comparatives(NamedTuple):
    """Words for the highest and lowest value of a column, and for more and less than a value `{}`; "" if unknown."""

    most: str = ""
    least: str = ""
    more: str = ""
    less: str = ""


_ANY, _PEOPLE, _THINGS = "any", "people", "things"
# Pattern of a name, kind of rows (people, things or any), and the words.
_COMPARATIVES: tuple[tuple[str, str, Comparatives], ...] = tuple(
    (pattern, of, Comparatives(*(text.strip() for text in phrases.split("|"))))
    for pattern, of, phrases in (
        (r"age|age years|patient age", _ANY, "oldest | youngest | older than {} | younger than {}"),
        (
            r"birth (date|year)|date of birth|year of birth|born|born on",
            _ANY,
            "youngest | oldest | born after {} | born before {}",
        ),
        (
            (
                r"price|unit price|list price|cost|fare|menu price|retail price|bottle price|asking price|sticker price"
                r"|cover price|purchase price|nightly rate|price per night"
            ),
            _THINGS,
            "most expensive | cheapest | that cost more than {} | that cost less than {}",
        ),
        (
            (
                r"salary|wage|pay|annual pay|annual salary|yearly salary|monthly wage|compensation|daily wage"
                r"|hourly wage|earnings|income|yearly income|annual income|hourly rate"
            ),
            _PEOPLE,
            "best paid | worst paid | who earn more than {} | who earn less than {}",
        ),
        (
            r"(body |gross |curb |package )?weight",
            _ANY,
            "heaviest | lightest | weighing more than {} | weighing less than {}",
        ),
        (r"(body )?height|height cm", _ANY, "tallest | shortest | taller than {} | shorter than {}"),
        (
            r"duration|runtime|length|length km|length minutes|route length|term|talk length|running time",
            _THINGS,
            "longest | shortest",
        ),
        (
            r"area|size|surface|hectares|acreage|square meters|floor area|land area|room size|field size",
            _THINGS,
            "largest | smallest | larger than {} | smaller than {}",
        ),
        (
            r"population|inhabitants|residents",
            _THINGS,
            "most populous | least populous | with more than {} inhabitants | with fewer than {} inhabitants",
        ),
        (
            r"((?!credit)[a-z]+ )?rating|stars",
            _ANY,
            "highest rated | lowest rated | rated above {} | rated below {}",
        ),
        (r"depth|shaft depth", _THINGS, "deepest | shallowest | deeper than {} | less than {} deep"),
        (
            r"experience|years of experience|years of practice",
            _PEOPLE,
            (
                "most experienced | least experienced | with more than {} years of experience"
                " | with less than {} years of experience"
            ),
        ),
        (
            r"capacity|max capacity|seating capacity|audience capacity|seats",
            _THINGS,
            "largest | smallest | with room for more than {} | with room for fewer than {}",
        ),
    )
)
# Events of time columns: the words before *after 2010*.
_EVENTS: tuple[tuple[str, str], ...] = (
    (r"(founded|established|created|formed|since|started)( year)?|formed year", "founded"),
    (r"hire (date|year)|hired on", "hired"),
    (r"joined on|join date|start date|membership start|membership date", "joined"),
    (r"opened year|opening year|opening date|inaugurated|started", "opened"),
    (r"built year|year built|construction year", "built"),
    (r"release (date|year)|released|premiere (date|year)|published year|publication year", "released"),
    (r"launch date|launched on|liftoff date", "launched"),
    (r"sold on|sale date|deal date", "made"),
    (r"order date|purchase date", "placed"),
    (r"bought on", "bought"),
    (r"ship date|sent on|dispatch date", "sent"),
    (r"filed on|report date|reported on", "reported"),
    (r"enrolled on|enrollment date", "enrolled"),
    (r"planted on|planting date|sown on", "planted"),
    (r"acquired on|acquisition date", "acquired"),
    (r"created year|year made", "made"),
    (r"installed on|installed year|setup (date|year)", "installed"),
    (r"performed on|treatment date", "performed"),
    (r"played on|game date|kickoff date", "played"),
    (r"held on|session date|workout date", "held"),
    (r"listed on|listing date", "listed"),
    (r"admitted on|admission date", "admitted"),
    (r"registered on|filing date|signup date", "registered"),
)
# Names such as `hired on date` and `founded year`, and their form with the noun of `_NOUNS`: `hiring date`.
_NATURAL = (
    (re.compile(r"(\w+) (?:on|for|at|by) date"), "{0} date"),
    (re.compile(r"(\w+(?:ed|t|d|n|since)) year"), "{0} year"),
)
# The nouns of events.
_NOUNS = {
    "hired": "hiring", "joined": "joining", "founded": "founding", "established": "founding", "created": "creation",
    "formed": "founding", "since": "founding", "opened": "opening", "built": "construction", "released": "release",
    "launched": "launch", "sold": "sale", "bought": "purchase", "sent": "dispatch", "filed": "filing",
    "issued": "issue", "enrolled": "enrollment", "planted": "planting", "sown": "sowing", "acquired": "acquisition",
    "installed": "installation", "performed": "treatment", "played": "game", "held": "session", "listed": "listing",
    "admitted": "admission", "registered": "registration", "signed": "signing", "published": "publication",
    "born": "birth", "inaugurated": "inauguration", "started": "start", "staged": "staging", "rented": "rental",
    "dug": "digging", "reported": "report", "tasted": "tasting", "fed": "feeding", "paid": "payment",
    "selected": "selection", "given": "injection", "measured": "measurement", "observed": "observation",
    "borrowed": "loan", "returned": "return", "resolved": "resolution", "closed": "closing", "emptied": "emptying",
    "filled": "filling", "licensed": "license", "renovated": "renovation", "reserved": "reservation",
    "departs": "departure", "return": "return", "donated": "donation", "opening": "opening", "died": "death",
    "added": "menu", "awarded": "award", "updated": "update", "modified": "change", "completed": "completion",
}  # fmt: skip
# Names with a unit: `height cm` becomes `height in cm`.
_UNIT = re.compile(
    r"(height|width|length|duration|term|age|delay|distance|drive|session length)"
    r" (cm|km|days|months|minutes|seconds|years)"
)
# Columns whose values precede the noun: *pending orders*, *rock artists*.
_ADJECTIVAL = re.compile(
    r"(.* )?(status|state|type|kind|genre|style|color|colour|tier|segment|fuel|cuisine|theme|variety|medium|material"
    r"|climate|diet|sex|gender|language|movement|format|binding|conditions|orientation|leaning|priority|severity)"
)
_PLACE = re.compile(r"(.* )?(city|town|location|district|region|county|country|neighborhood|quarter|borough|office)")
_ORIGIN = re.compile(r"(.* )?(nationality|citizenship|origin|country|birthplace|home town|home city|residence)")
# Names that end in a particle (`directed by`) are no noun phrases.
_PARTICLE = re.compile(r" (by|through|for|against)$")


def names(column: AnnotatedColumn) -> tuple[str, ...]:
    """Return the words and synonyms of a column."""
    return (column.words, *column.synonyms)


def comparatives_of(column: AnnotatedColumn, are_people: bool) -> Comparatives:
    """Return the comparatives of a column by any of its names; an empty `Comparatives` if no rule matches."""
    kind = _PEOPLE if are_people else _THINGS
    return next(
        (
            comparatives
            for pattern, of, comparatives in _COMPARATIVES
            if of in (_ANY, kind) and _matches(pattern, _with_short_forms(names(column)))
        ),
        Comparatives(),
    )


def event_of(column: AnnotatedColumn, are_people: bool) -> str:
    """Return the event of a time column (`hired`), or ""."""
    event = next((event for pattern, event in _EVENTS if _matches(pattern, _with_short_forms(names(column)))), "")
    if event == "joined":
        return "who joined" if are_people else "started"
    # People are born, hired, admitted, enrolled and registered; they are not made, placed or opened.
    return event if not are_people or event in ("hired", "admitted", "enrolled", "registered", "installed") else ""


def noun_phrases(column: AnnotatedColumn) -> tuple[str, ...]:
    """Return noun phrases for a column, best first: `hiring date` for `hired on date`."""
    nouns = tuple(dict.fromkeys(_natural(name) for name in names(column) if not _PARTICLE.search(name)))
    return nouns or names(column)


def _natural(phrase: str) -> str:
    if match := _UNIT.fullmatch(phrase):
        return f"{match[1]} in {match[2]}"
    for pattern, form in _NATURAL:
        if (match := pattern.fullmatch(phrase)) and match[1] in _NOUNS:
            return form.format(_NOUNS[match[1]])
    return phrase


def is_adjectival(column: AnnotatedColumn) -> bool:
    """Return whether a value of the column can precede the noun."""
    return any(_ADJECTIVAL.fullmatch(name) for name in names(column))


def place_word(column: AnnotatedColumn, are_people: bool) -> str:
    """Return the preposition for values of a place column, or "" for other columns."""
    if any(_ORIGIN.fullmatch(name) for name in names(column)):
        return "from"
    if any(_PLACE.fullmatch(name) for name in names(column)):
        return "from" if are_people else "in"
    return ""


def _with_short_forms(phrases: Iterable[str]) -> tuple[str, ...]:
    """Return the phrases and the short forms that the rules match: `hired on` for `hired on date`."""
    return tuple(text for phrase in phrases for text in (phrase, re.sub(r" (on|for|at|by) date$", r" \1", phrase)))


def _matches(pattern: str, phrases: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, phrase) for phrase in phrases)
