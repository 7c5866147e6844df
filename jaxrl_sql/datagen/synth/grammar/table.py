"""Forms of the grammar by Spider's difficulty, with sampling weights.

A form is listed under each difficulty that its questions may have; a candidate whose query has another difficulty is
rejected. The weights reproduce the shares of joins, groups, sorting, nesting and other constructs in Spider's
development set (`scripts/compare_generated.py`).
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
    """A form, a function that builds a question of one structure, and its relative frequency."""

    weight: float
    make: Callable[[Builder], QuestionCandidate]

    def build(self, rng: random.Random, database: SynthDatabase) -> QuestionCandidate:
        """Build a question about the database; raises NoFit if the form does not apply to it."""
        return self.make(Builder(rng, database))


GRAMMAR: Mapping[str, Sequence[Form | Template]] = {
    "easy": (
        Form(34, forms.ask_rows),
        Form(24, forms.ask_count),
        Form(14, forms.ask_aggregates),
        Form(11, forms.ask_distinct_values),
        Form(14, forms.ask_labelled_row),
        Form(8, forms.ask_groups_having),
    ),
    "medium": (
        Form(14, forms.ask_rows),
        Form(5, forms.ask_count),
        Form(8, forms.ask_aggregates),
        Form(3, forms.ask_either_value),
        Form(8, forms.ask_per_group),
        Form(16, forms.ask_extreme_row),
        Form(3, forms.ask_labelled_row),
        Form(2.3, forms.ask_containing),
        Form(14, joined_forms.ask_children),
        Form(10, joined_forms.ask_children_and_parents),
        Form(5, joined_forms.ask_per_parent),
        Form(4, joined_forms.ask_per_parent_category),
        Form(9, joined_forms.ask_parents_having),
        Form(5, joined_forms.ask_parents_with_children),
    ),
    "hard": (
        Form(3, joined_forms.ask_per_parent),
        Form(2, joined_forms.ask_per_parent_category),
        Form(2, joined_forms.ask_parents_having),
        Form(12, forms.ask_most_common),
        Form(10, forms.ask_extreme_row),
        Form(20, forms.ask_against_average),
        Form(14, forms.ask_shared_values),
        Form(6, forms.ask_rows),
        Form(18, joined_forms.ask_parents_without_children),
        Form(18, joined_forms.ask_parents_with_children),
        Form(8, joined_forms.ask_children_of_extreme_parent),
        Form(90, joined_forms.ask_over_three_tables),
        Form(16, joined_forms.ask_total_over_grandchildren),
        Form(10, joined_forms.ask_parent_of_extreme_child),
        Form(5, joined_forms.ask_children),
    ),
    "extra": (
        Form(34, joined_forms.ask_parent_with_most_children),
        Form(25, joined_forms.ask_parents_of_two_kinds),
        Form(18, forms.ask_against_average),
        Form(10, joined_forms.ask_parents_without_children),
        Form(9, joined_forms.ask_parents_with_children),
        Form(12, joined_forms.ask_parent_of_extreme_child),
        Form(4, joined_forms.ask_children_of_extreme_parent),
        Form(6, forms.ask_extreme_row),
        Form(10, joined_forms.ask_over_three_tables),
        Form(5, forms.ask_most_common),
        Form(6, joined_forms.ask_total_over_grandchildren),
    ),
    "advanced": TEMPLATES["advanced"],
}
"""The forms by difficulty.

The advanced difficulty has no forms, only templates. So its questions come from templates in both styles of data, that
of templates and that of the grammar (`STYLES` of `spec.py`).
"""
