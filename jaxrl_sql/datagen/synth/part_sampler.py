"""Sample parts of questions: names, values of rows, conditions and aggregates, in words and in SQL.

In the wordings `{c}` is a column, `{v}` a value, `{r}` a relation such as `above`, and `{}` the words that are
modified.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TypeVar

from jaxrl_sql.datagen.synth.spec import AnnotatedColumn, AnnotatedTable, Value, flag_of
from jaxrl_sql.text2sql.schema.quote import quote_text

T = TypeVar("T")
MEASURE = ("int", "real")
"""The kinds of columns that have an average."""
SYNONYM_SHARE = 0.06
"""The probability of a synonym instead of a name."""
# Things that a row has without an article: `that have parking`.
NO_ARTICLE = ("parking", "catering", "isolation", "tours")
IS_VALUE = ("whose {c} is {v}", "with {c} {v}", "where the {c} is {v}", "with {v} as {c}")
IS_NUMBER = ("whose {c} is {v}", "with a {c} of {v}", "whose {c} equals {v}")
COMPARES = ("whose {c} is {r} {v}", "with {c} {r} {v}", "where {c} is {r} {v}")
RELATIONS = {
    ">": ("above", "greater than", "more than"),
    ">=": ("at least", "no less than"),
    "<": ("below", "less than", "under"),
    "<=": ("at most", "no more than"),
}
TIME_RELATIONS = {
    ">": ("after", "later than"),
    ">=": ("on or after", "not before"),
    "<": ("before", "earlier than"),
    "<=": ("on or before", "not after"),
}
AGGREGATES = {
    "AVG": ("average {}", "mean {}"),
    "MAX": ("maximum {}", "highest {}", "largest {}"),
    "MIN": ("minimum {}", "lowest {}", "smallest {}"),
    "SUM": ("total {}", "sum of {}"),
}
TIME_AGGREGATES = {"MAX": ("latest {}", "most recent {}"), "MIN": ("earliest {}", "first {}")}


class NoFit(Exception):  # noqa: N818 - a signal to the caller, not an error
    """Raised if a template does not apply to a database."""


def literal(value: Value) -> str:
    """Write a value as an SQL literal."""
    if isinstance(value, str):
        return quote_text(value)
    return "NULL" if value is None else repr(value)


def is_repetitive(column: AnnotatedColumn) -> bool:
    """Return whether a column has far fewer values than rows."""
    return len(set(column.values)) < len(column.values) // 3


def round_value(column: AnnotatedColumn, value: Value, is_up: bool) -> Value:
    """Round a value to at most `column.digits` significant digits, so that a comparison selects the same rows.

    With `is_up` (for `>` and `<=`) the value is rounded up, and no row lies above the value and at or below the result.
    Otherwise (for `>=` and `<`) it is rounded down, and no row lies below the value and at or above the result. If
    there is no such number, values of nearby rank are tried instead. Raises NoFit if all fail.
    """
    if not column.digits:
        return value
    ranked = sorted({cell for cell in column.values if isinstance(cell, (int, float))})
    start = ranked.index(value)  # type: ignore[arg-type]
    for index in sorted(range(len(ranked)), key=lambda index: abs(index - start)):
        exact = Decimal(repr(ranked[index]))
        # The next value in the direction of rounding, which the result must not reach; the value itself at the ends.
        limit = ranked[index + 1 if is_up else index - 1] if 0 < index < len(ranked) - 1 else ranked[index]
        if len(exact.normalize().as_tuple().digits) <= column.digits:
            return ranked[index]
        for digits in range(2, column.digits + 1):
            unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
            short = (exact / unit).to_integral_value(ROUND_CEILING if is_up else ROUND_FLOOR) * unit
            number = int(short) if short == short.to_integral_value() else float(short)
            if (number < limit if is_up else number > limit) and "e" not in repr(number):
                return number
    raise NoFit


class PartSampler:
    """A random generator for the parts of questions, determined by a seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < share

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options; raises NoFit if there are none."""
        if not options:
            raise NoFit
        return self.rng.choice(options)

    def plural(self, table: AnnotatedTable) -> str:
        """Name a table in the plural, sometimes by a synonym."""
        return self.rng.choice(table.synonyms) if table.synonyms and self.chance(SYNONYM_SHARE) else table.plural

    def words(self, column: AnnotatedColumn) -> str:
        """Name a column, sometimes by a synonym."""
        return self.rng.choice(column.synonyms) if column.synonyms and self.chance(SYNONYM_SHARE) else column.words

    def value(self, column: AnnotatedColumn, without: Value = None) -> Value:
        """Return a value of a row that is neither NULL nor `without`."""
        return self.choose([value for value in column.values if value not in (without, None)])

    def quantile(self, column: AnnotatedColumn, low: float, high: float) -> Value:
        """Return a value between two quantiles of the column; raises NoFit if it has fewer than 8 values."""
        ranked = sorted(value for value in column.values if value is not None)
        if len(ranked) < 8:
            raise NoFit
        return ranked[int((len(ranked) - 1) * self.rng.uniform(low, high))]

    def condition(
        self, table: AnnotatedTable, used: Sequence[AnnotatedColumn], prefix: str
    ) -> tuple[AnnotatedColumn, str, str]:
        """Return a column, a condition on it, and words that follow a plural (`whose salary is above 100`).

        The column is not in `used` and not the label; texts and ids must repeat across rows. `prefix` precedes the
        column's name in SQL (`T1.` or "").
        """
        columns = [column for column in table.columns if column not in used and column is not table.label]
        column = self.choose(
            [column for column in columns if column.kind not in ("text", "id") or is_repetitive(column)]
        )
        if column.kind == "bool":
            test, phrase = self._claim(column)
        elif column.kind in ("text", "category", "id"):
            test, phrase = self._equality(column, IS_VALUE, self.words(column))
        else:
            name = self.words(column)
            if column.kind in ("int", "year") and self.chance(0.12):
                test, phrase = self._equality(column, IS_NUMBER, name)
            else:
                test, phrase = self._comparison(column, name)
        return column, f"{prefix}{column.name} {test}", phrase

    def _claim(self, column: AnnotatedColumn) -> tuple[str, str]:
        """Return the test of a flag and its words, positive or negative: `= 0`, `that are not active`."""
        holds = self.chance(0.65)
        if column.words.startswith("has "):
            patterns: tuple[str, ...] = ("that have {}", "with {}") if holds else ("that do not have {}", "without {}")
        else:
            patterns = ("that are {}",) if holds else ("that are not {}",)
        claim = column.words
        if claim.startswith("has "):
            thing = claim.removeprefix("has ")
            claim = thing if thing in NO_ARTICLE or thing.endswith("s") else f"a {thing}"
        value = next((value for value in column.values if flag_of(value) == holds), int(holds))
        return f"= {literal(value)}", self.choose(patterns).format(claim)

    def _equality(self, column: AnnotatedColumn, texts: Sequence[str], name: str) -> tuple[str, str]:
        value = self.value(column)
        return f"= {literal(value)}", self.choose(texts).format(c=name, v=value)

    def _comparison(self, column: AnnotatedColumn, name: str) -> tuple[str, str]:
        """Return a comparison with a value that selects some rows but not all, and its words."""
        is_upward = self.chance(0.5)
        value = self.quantile(column, *((0.3, 0.92) if is_upward else (0.08, 0.7)))
        sign = (">" if is_upward else "<") + ("" if self.chance(0.75) else "=")
        value = round_value(column, value, sign in (">", "<="))
        relation = self.choose((RELATIONS if column.kind in MEASURE else TIME_RELATIONS)[sign])
        return f"{sign} {literal(value)}", self.choose(COMPARES).format(c=name, r=relation, v=value)

    def aggregate(self, column: AnnotatedColumn, prefix: str) -> tuple[str, str]:
        """Return an aggregate of a column and its words (`average price`)."""
        name, is_measure = self.words(column), column.kind in MEASURE
        function = self.choose(("AVG", "AVG", "MAX", "MIN", "SUM") if is_measure else ("MAX", "MIN"))
        texts = (AGGREGATES if is_measure else TIME_AGGREGATES)[function]
        if function == "SUM" and "total" in name:
            texts = ("sum of {}",)
        return f"{function}({prefix}{column.name})", self.choose(texts).format(name)
