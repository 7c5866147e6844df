"""Phrase columns, rows, values and conditions in words, and write their SQL.

In the wordings `{c}` is a column, `{v}` a value, `{r}` a relation such as `above`, `{b}` the verb, and `{s}` a noun for
a row. The argument `many` asks for a plural. The argument `side` is one of the tables of a query: a query with
a join has two sides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxrl_sql.datagen.synth.english import plural
from jaxrl_sql.datagen.synth.grammar.comparatives import (
    comparatives_of,
    event_of,
    is_adjectival,
    names,
    noun_phrases,
    place_word,
)
from jaxrl_sql.datagen.synth.notation import SEEN_DOMAINS, UNSEEN_DOMAINS
from jaxrl_sql.datagen.synth.part_sampler import (
    MEASURE,
    RELATIONS,
    TIME_RELATIONS,
    NoFit,
    PartSampler,
    is_repetitive,
    literal,
    round_value,
)
from jaxrl_sql.datagen.synth.spec import AnnotatedColumn, AnnotatedTable, Value, flag_of

# Probabilities: of a synonym for a column, of a synonym for a table's rows, and of quotation marks around a text.
SYNONYM_SHARE = 0.35
_OTHER_NOUN_SHARE = 0.12
_QUOTED_SHARE = 0.2
# Nouns for rows that are people: the tables whose first column is a person's name, and further ones.
_PEOPLE = frozenset(
    name.replace("_", " ")
    for domain in (*SEEN_DOMAINS, *UNSEEN_DOMAINS)
    for table in domain.tables
    if table.columns[0].args == ("person",) and table.columns[0].names[0] != "holder_name"
    for name in table.names
) | {"person", "user", "student", "teacher", "singer", "owner", "professional", "visitor", "conductor"}
# Plural words for an amount instead of a number of things.
_NO_COUNT = re.compile(
    r"\b(hours|minutes|seconds|days|months|years|miles|liters|hectares|kilometers|units|tons|degrees|earnings|holdings"
    r"|assets|sales|dues|watts|square meters|fines|donations|millions|funds|costs|profits|revenues)\b"
)
# Amounts without a meaningful sum.
_NO_SUM = re.compile(r"\b(total|average|mean|rate|age|year|rating|score|price|level|temperature|height|number)\b")
# Particles at the end (`directed by`), and modifiers after the noun (`tickets sold`).
_PARTICLE = re.compile(r" (of|in|on|at|by|to|for|from|with|per)$")
_PARTICIPLE = re.compile(r" (\w+ed|coding|available|sold|made|late|spent|written|overdue|won|for|against|in space)$")
# Numbers that identify or rank things, without a meaningful average.
_NO_QUANTITY = re.compile(
    r"(shirt|jersey|track|door|badge|floor|patrol) number|badge|position|billing( order)?|floor|storey|(fare )?zone"
    r"|grade( level)?"
)
# Names that repeat the kind of row (`singer name`), shortened to `name`; `full name` and others stay.
_OWN_NAME = re.compile(r"(?!full|stage|pen|first|last|character|donor|holder|case|user)\w+( \w+)? name")
# Uncountable nouns, which stay in the singular.
_NO_PLURAL = frozenset(
    """pay income upkeep financing experience stock humidity moisture rainfall precipitation weather transport equipment
    energy fuel revenue mileage noise soil attendance compensation wealth effort diet""".split()
)
# `paid by card`, `produced by Ada Cohen`.
_DONE_BY = re.compile(r"\w+(ed|paid|written) (by|through)")
# An amount with its unit: `height in cm`.
_IN_UNIT = re.compile(r"(.+) in (\w+)")
_COMPASS = ("north", "south", "east", "west")
# The particle after the noun of a phrase: `date of birth`.
_AFTER_NOUN = re.compile(r" (?:of|in|on|at|by|to|for|from|with|per)\b")
_AGGREGATES = {
    "AVG": ("average {}", "mean {}"),
    "MAX": ("maximum {}", "highest {}"),
    "MIN": ("minimum {}", "lowest {}"),
    "SUM": ("total {}",),
}
_TIME_AGGREGATES = {"MAX": ("latest {}", "most recent {}"), "MIN": ("earliest {}",)}


@dataclass(frozen=True)
class Clause:
    """A condition: its SQL, and its words, which are before (`remote`) or after the noun (`older than 30`)."""

    sql: str
    before: str = ""
    after: str = ""


@dataclass
class QueryTable:
    """A table in a query: the prefix of its columns (`T1.` or ""), and the columns used so far."""

    table: AnnotatedTable
    prefix: str = ""
    used: list[AnnotatedColumn] = field(default_factory=list)

    @property
    def are_people(self) -> bool:
        """Return whether the rows are people."""
        return self.table.singular in _PEOPLE

    def name(self, column: AnnotatedColumn) -> str:
        """Return a column as SQL writes it."""
        return self.prefix + column.name

    def free(self) -> list[AnnotatedColumn]:
        """Return the columns that are not used yet."""
        return [column for column in self.table.columns if column not in self.used]

    def take(self, column: AnnotatedColumn) -> AnnotatedColumn:
        """Mark a column as used and return it."""
        self.used.append(column)
        return column


def join_phrases(phrases: Sequence[str]) -> str:
    """Return words as a list: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))


def plural_words(phrase: str) -> str:
    """Return the plural of a column's words; the noun is the last word, or the word before `of`, `in` or `made`.

    Words that end in a particle (`directed by`) have no noun and are returned unchanged.
    """
    if _PARTICLE.search(phrase):
        return phrase
    match = _AFTER_NOUN.search(phrase) or _PARTICIPLE.search(phrase)
    head, tail = (phrase[: match.start()], phrase[match.start() :]) if match else (phrase, "")
    return (
        phrase
        if _is_plural(head) or head.rpartition(" ")[2] in _NO_PLURAL
        else plural(head.replace(" ", "_")).replace("_", " ") + tail
    )


def number_words(number: int) -> str:
    """Return `one` for 1, and other numbers in digits."""
    return "one" if number == 1 else str(number)


def verb(phrase: str) -> str:
    """Return the verb that agrees with a column's words."""
    return "are" if _is_plural(phrase) and not phrase.startswith("number of ") else "is"


def _is_plural(phrase: str) -> bool:
    noun = _PARTICIPLE.sub("", phrase)
    if noun.endswith(("people", "children")):
        return True
    return noun.endswith("s") and not noun.endswith(("ss", "us", "is")) and noun != "series"


class Phrases(PartSampler):
    """Chooses words and conditions of one question with a random generator."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._nouns: dict[str, str] = {}

    def noun_of(self, column: AnnotatedColumn, side: QueryTable | None = None, *, many: bool = False) -> str:
        """Name a column, in a share of the cases by a synonym.

        `side` is the table that the question names next to the column, so the `agent name` of an agent becomes the
        `name`. Counted things become the `number of` things.
        """
        known = noun_phrases(column)
        phrase = self.choose(known[1:]) if len(known) > 1 and self.chance(SYNONYM_SHARE) else known[0]
        if column.kind == "int" and self._is_counted(phrase):
            return f"number of {phrase}"
        if side is not None:
            phrase = phrase.removeprefix(f"{side.table.singular} ")
            if column is side.table.label and _OWN_NAME.fullmatch(phrase) and self.chance(0.8):
                phrase = "name"
        return plural_words(phrase) if many else phrase

    def is_quantity(self, column: AnnotatedColumn) -> bool:
        """Return whether a column is a number with a meaningful average."""
        return column.kind in MEASURE and not any(
            _NO_QUANTITY.fullmatch(noun_phrase) for noun_phrase in noun_phrases(column)
        )

    def amount(self, column: AnnotatedColumn) -> str:
        """Name a numeric column in the singular; counted things become the `number of` things."""
        known = noun_phrases(column)
        single = [phrase for phrase in known if not _is_plural(phrase)]
        if known[0] not in single or (len(single) > 1 and self.chance(SYNONYM_SHARE)):
            counted = [f"number of {phrase}" for phrase in known if self._is_counted(phrase)]
            return self.choose(single or counted or known)
        return known[0]

    def value_words(self, value: Value) -> str:
        """Write a value in a question, with quotes around some of the texts."""
        return f'"{value}"' if isinstance(value, str) and self.chance(_QUOTED_SHARE) else str(value)

    def noun(self, side: QueryTable, *, many: bool = True) -> str:
        """Name the rows of a table, sometimes by a synonym, with the same noun throughout a question."""
        table = side.table
        if not many:
            return table.singular
        if table.name not in self._nouns:
            is_other = bool(table.synonyms) and self.chance(_OTHER_NOUN_SHARE)
            self._nouns[table.name] = self.choose(table.synonyms) if is_other else table.plural
        return self._nouns[table.name]

    def things(self, side: QueryTable, clauses: Sequence[Clause] = (), *, many: bool = True, extra: str = "") -> str:
        """Return a noun with its conditions: `remote employees working in the Sales department`."""
        before = " ".join(clause.before for clause in clauses if clause.before)
        # A condition that ends in another noun comes last, because a following one would attach to that noun.
        after = [*(clause.after for clause in clauses if clause.after), *filter(None, (extra,))]
        if not extra:
            after.sort(key=lambda phrase: phrase.startswith("whose "))
        return " ".join(filter(None, (before, self.noun(side, many=many), " and ".join(after))))

    def label_condition(self, side: QueryTable) -> Clause:
        """Return the condition on a row's label, with words for that row (`the singer named Joe Sharp`)."""
        label = side.table.label
        if label is None:
            raise NoFit
        value = self.value(label)
        text, singular = self.value_words(value), side.table.singular
        form = "the {s} named {v}" if side.are_people else "the {s} {v}" if self.chance(0.35) else ""
        form = form or ("the {s} called {v}" if "name" in label.words else "the {s} with the {c} {v}")
        phrase = form.format(s=singular, v=text, c=noun_phrases(label)[0].removeprefix(f"{singular} "))
        return Clause(f"{side.name(label)} = {literal(value)}", after=phrase)

    def clause(self, side: QueryTable) -> Clause:
        """Choose a condition on an unused column that is neither the label nor unique."""
        columns = [column for column in side.free() if column is not side.table.label]
        column = self.choose(
            [candidate for candidate in columns if candidate.kind not in ("text", "id") or is_repetitive(candidate)]
        )
        side.take(column)
        name = side.name(column)
        if column.kind == "bool":
            return self._flag_condition(column, name, side)
        if column.kind in ("text", "category", "id"):
            return self._equality_condition(column, name, side)
        if column.kind in ("date", "year"):
            return self._time_condition(column, name, side)
        return self._number_condition(column, name, side)

    def _flag_condition(self, column: AnnotatedColumn, name: str, side: QueryTable) -> Clause:
        """Return a condition on a flag, positive or negative; `name` is the column in SQL, here and below."""
        holds = self.chance(0.7)
        value = next((value for value in column.values if flag_of(value) == holds), int(holds))
        sql, claim = f"{name} = {literal(value)}", column.words
        if claim.startswith("has "):
            thing = claim.removeprefix("has ")
            article = "" if not holds or thing.endswith(("s", "ing")) else "a "
            return Clause(sql, after=f"{'with' if holds else 'without'} {article}{thing}")
        if holds and " " not in claim and self.chance(0.6):
            return Clause(sql, before=claim)
        return Clause(sql, after=f"{'who' if side.are_people else 'that'} are {'' if holds else 'not '}{claim}")

    def _equality_condition(self, column: AnnotatedColumn, name: str, side: QueryTable) -> Clause:
        """Return a condition that a text or category equals a value, or sometimes that it does not."""
        value = self.value(column)
        if column.kind == "category" and len(set(column.values)) > 2 and self.chance(0.12):
            other = f"whose {self.noun_of(column)} is not {self.value_words(value)}"
            return Clause(f"{name} != {literal(value)}", after=other)
        sql, text = f"{name} = {literal(value)}", self.value_words(value)
        if value in _COMPASS:
            return Clause(sql, after=f"in the {value}")
        if done := next((phrase for phrase in names(column) if _DONE_BY.fullmatch(phrase)), ""):
            return Clause(sql, after=f"{done} {text}")
        preposition = place_word(column, side.are_people)
        if preposition and column.kind == "text" and self.chance(0.7):
            return Clause(sql, after=f"{preposition} {text}")
        if is_adjectival(column) and '"' not in text and self.chance(0.55):
            return Clause(sql, before=text)
        form = self.choose(("whose {c} is {v}", "with the {c} {v}"))
        return Clause(sql, after=form.format(c=self.noun_of(column), v=text))

    def _time_condition(self, column: AnnotatedColumn, name: str, side: QueryTable) -> Clause:
        """Return a condition on a date or year: a year, a range, or a bound, with the words of its event (`hired`)."""
        event = event_of(column, side.are_people)
        if column.kind == "year" and self.chance(0.25):
            value = self.value(column)
            phrase = f"{event} in {value}" if event else f"whose {self.noun_of(column)} is {value}"
            return Clause(f"{name} = {literal(value)}", after=phrase)
        if self.chance(0.12):
            low, high = self.quantile(column, 0.1, 0.4), self.quantile(column, 0.6, 0.95)
            phrase = event or f"whose {self.noun_of(column)} is"
            if low == high:
                raise NoFit
            text = f"{phrase} between {low} and {high}"
            return Clause(f"{name} BETWEEN {literal(low)} AND {literal(high)}", after=text)
        sign, value = self._choose_bound(column)
        comparatives = comparatives_of(column, side.are_people)
        if sign in (">", "<") and comparatives.more:
            return Clause(
                f"{name} {sign} {literal(value)}",
                after=(comparatives.more if sign == ">" else comparatives.less).format(value),
            )
        relation = self.choose(TIME_RELATIONS[sign])
        if event and " or " not in relation:
            relation = {">": "after", ">=": "in or after", "<": "before", "<=": "in or before"}[sign]
            if column.kind == "date":
                relation = relation.replace("in or", "on or")
            return Clause(f"{name} {sign} {literal(value)}", after=f"{event} {relation} {value}")
        return Clause(f"{name} {sign} {literal(value)}", after=f"whose {self.noun_of(column)} is {relation} {value}")

    def _number_condition(self, column: AnnotatedColumn, name: str, side: QueryTable) -> Clause:
        """Return a condition on a number: a value, a range, or a bound, with comparatives if there are any."""
        if column.kind == "int" and self.chance(0.08) and len(set(column.values)) < 40:
            value = self.value(column)
            return Clause(f"{name} = {literal(value)}", after=f"whose {self.amount(column)} is {value}")
        if self.chance(0.1):
            low, high = self.quantile(column, 0.05, 0.4), self.quantile(column, 0.55, 0.95)
            low, high = round_value(column, low, is_up=False), round_value(column, high, is_up=True)
            if low == high:
                raise NoFit
            noun = self.amount(column)
            text = f"whose {noun} {verb(noun)} between {low} and {high}"
            return Clause(f"{name} BETWEEN {literal(low)} AND {literal(high)}", after=text)
        sign, value = self._choose_bound(column)
        sql = f"{name} {sign} {literal(value)}"
        comparatives = comparatives_of(column, side.are_people)
        if sign in (">", "<") and comparatives.more and self.chance(0.75):
            return Clause(sql, after=(comparatives.more if sign == ">" else comparatives.less).format(value))
        counted = [noun_phrase for noun_phrase in noun_phrases(column) if self._is_counted(noun_phrase)]
        if column.kind == "int" and counted and value not in (0, 1) and self.chance(0.7):
            amount = {">": "more than", ">=": "at least", "<": "fewer than", "<=": "at most"}[sign]
            return Clause(sql, after=f"with {amount} {value} {self.choose(counted)}")
        form = self.choose(("whose {c} {b} {r} {v}", "with a {c} {r} {v}", "with a {c} of {r} {v}"))
        relation = self.choose(RELATIONS[sign])
        if "of {r}" in form:
            relation = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}[sign]
        noun = self.amount(column)
        if (unit := _IN_UNIT.fullmatch(noun)) and "number" not in noun:
            amount = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}[sign]
            return Clause(sql, after=f"with a {unit[1]} of {amount} {value} {unit[2]}")
        if _is_plural(noun):
            form = "with {c} {r} {v}"
        elif noun.startswith("number of"):
            form = "whose {c} {b} {r} {v}"
        return Clause(sql, after=form.format(c=noun, b=verb(noun), r=relation, v=value))

    def _is_counted(self, phrase: str) -> bool:
        """Return whether a column's words are a number of things (`seats`), not an amount (`hours`)."""
        return _is_plural(phrase) and not _NO_COUNT.search(phrase)

    def _choose_bound(self, column: AnnotatedColumn) -> tuple[str, Value]:
        """Return a comparison operator and a value that selects some rows."""
        is_upward = self.chance(0.55)
        value = self.quantile(column, *((0.3, 0.92) if is_upward else (0.08, 0.7)))
        sign = (">" if is_upward else "<") + ("" if self.chance(0.8) else "=")
        return sign, round_value(column, value, sign in (">", "<="))

    def aggregate_of(self, side: QueryTable, column: AnnotatedColumn, functions: Sequence[str] = ()) -> tuple[str, str]:
        """Return an aggregate of a column and its words (`average price`); `functions` are those to choose from."""
        is_measure = column.kind in MEASURE
        texts = _AGGREGATES if is_measure else _TIME_AGGREGATES
        function = self.choose(functions or (("AVG", "AVG", "MAX", "MIN", "SUM") if is_measure else ("MAX", "MIN")))
        if function not in texts:
            raise NoFit
        noun = self.amount(column) if is_measure else self.noun_of(column)
        noun = noun.removeprefix(f"{side.table.singular} ")
        if function == "SUM" and _NO_SUM.search(noun):
            raise NoFit
        return f"{function}({side.name(column)})", self.choose(texts[function]).format(noun)

    def extreme(self, side: QueryTable, column: AnnotatedColumn, is_highest: bool) -> Clause:
        """Return words for the row with the highest or lowest value of a column; the clause's SQL is DESC or ASC."""
        way = "DESC" if is_highest else "ASC"
        comparatives = comparatives_of(column, side.are_people)
        best = comparatives.most if is_highest else comparatives.least
        if best and self.chance(0.8):
            return Clause(way, before=best)
        if column.kind in ("date", "year"):
            event = event_of(column, side.are_people)
            if event and not event.startswith("who") and self.chance(0.6):
                return Clause(way, after=f"{event} {'most recently' if is_highest else 'first'}")
            return Clause(way, after=f"with the {'latest' if is_highest else 'earliest'} {self.noun_of(column)}")
        ranks = ("highest", "largest") if is_highest else ("lowest", "smallest")
        counted = [noun_phrase for noun_phrase in noun_phrases(column) if self._is_counted(noun_phrase)]
        if column.kind == "int" and counted and self.chance(0.7):
            return Clause(way, after=f"with the {'most' if is_highest else 'fewest'} {self.choose(counted)}")
        return Clause(way, after=f"with the {self.choose(ranks)} {self.amount(column)}")
