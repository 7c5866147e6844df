"""Forms of the grammar by Spider's level, with sampling weights.

A form is tried for the levels that it can reach, and candidates of another level are rejected. The weights reproduce
the shares of joins, groups, sorting, nesting and other constructs in Spider's development set
(`scripts/compare_generated.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.synth.grammar import forms, joined_forms
from jaxrl_sql.datagen.synth.grammar.builder import Builder
from jaxrl_sql.datagen.synth.question_template import TEMPLATES, QuestionCandidate, Template
from jaxrl_sql.datagen.synth.spec import SynthDatabase


class Form(NamedTuple):
    """A form of questions and its sampling weight."""

    weight: float
    make: Callable[[Builder], QuestionCandidate]

    def build(self, rng: random.Random, database: SynthDatabase) -> QuestionCandidate:
        """Build a question about the database; raises NoFit if the form does not apply."""
        return self.make(Builder(rng, database))


GRAMMAR: Mapping[str, Sequence[Form | Template]] = {
    "easy": (
        Form(34, forms.rows),
        Form(24, forms.number),
        Form(14, forms.aggregates),
        Form(11, forms.different),
        Form(14, forms.row),
        Form(8, forms.groups_having),
    ),
    "medium": (
        Form(14, forms.rows),
        Form(5, forms.number),
        Form(8, forms.aggregates),
        Form(3, forms.either),
        Form(8, forms.ask_per_group),
        Form(16, forms.extreme),
        Form(3, forms.row),
        Form(2.3, forms.containing),
        Form(14, joined_forms.children),
        Form(10, joined_forms.both_ends),
        Form(5, joined_forms.per_parent),
        Form(4, joined_forms.per_parent_group),
        Form(9, joined_forms.parents_having),
        Form(5, joined_forms.parents_with),
    ),
    "hard": (
        Form(3, joined_forms.per_parent),
        Form(2, joined_forms.per_parent_group),
        Form(2, joined_forms.parents_having),
        Form(12, forms.most_common),
        Form(10, forms.extreme),
        Form(20, forms.ask_against_average),
        Form(14, forms.ask_shared_values),
        Form(6, forms.rows),
        Form(18, joined_forms.childless),
        Form(18, joined_forms.parents_with),
        Form(8, joined_forms.of_extreme_parent),
        Form(90, joined_forms.chain),
        Form(16, joined_forms.total_of_chain),
        Form(10, joined_forms.first_by_parent),
        Form(5, joined_forms.children),
    ),
    "extra": (
        Form(34, joined_forms.most_children),
        Form(25, joined_forms.sets_of_parents),
        Form(18, forms.ask_against_average),
        Form(10, joined_forms.childless),
        Form(9, joined_forms.parents_with),
        Form(12, joined_forms.first_by_parent),
        Form(4, joined_forms.of_extreme_parent),
        Form(6, forms.extreme),
        Form(10, joined_forms.chain),
        Form(5, forms.most_common),
        Form(6, joined_forms.total_of_chain),
    ),
    "advanced": TEMPLATES["advanced"],
}
"""The forms by grade; the advanced grade uses templates in both styles."""
