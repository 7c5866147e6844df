"""Parse question templates in the notation of `templates.py`, and build questions from them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxrl_sql.datagen.synth import templates, templates_advanced
from jaxrl_sql.datagen.synth.question_builder import QuestionBuilder
from jaxrl_sql.datagen.synth.spec import DIFFICULTIES, SynthDatabase

LISTING = (
    "List the {shown} of {things}.",
    "Show the {shown} of all {things}.",
    "What is the {shown} of {things}?",
    "Find the {shown} of the {things}.",
    "Give the {shown} for all {things}.",
    "For {things}, show the {shown}.",
    "Return the {shown} of every one of the {things}.",
    "I want to see the {shown} of {things}.",
)
AGGREGATING = (
    "What is the {aggregate} of {things}?",
    "Find the {aggregate} of {things}.",
    "Give the {aggregate} across {things}.",
    "Show the {aggregate} for {things}.",
    "Compute the {aggregate} over {things}.",
)
COUNTING = (
    "How many {things} are there?",
    "Count the {things}.",
    "Find the number of {things}.",
    "What is the number of {things}?",
)
# `part: …` or `part [CHOICE]: …`
_PART = re.compile(r"([a-z_]+)(?: \[(.+)\])?: (.+)")


@dataclass(frozen=True)
class QuestionCandidate:
    """A question in several wordings and its SQL.

    The checks are queries that find ambiguous golds, or "". `order_check`, for a query with LIMIT, selects the sort
    keys up to the limit and one more: if two are equal, the answer is ambiguous. `sort_check`, for a sorted list,
    selects (sort key, result column) of all rows: rows with equal keys must have equal results.
    """

    texts: tuple[str, ...]
    sql: str
    order_check: str = ""
    sort_check: str = ""


@dataclass(frozen=True)
class Template:
    """A parsed template (`templates.py` describes the notation).

    `weight` is its relative frequency. `steps` are methods of `QuestionBuilder` with their arguments. `options` has the
    options of a part by (part, choice), and `wordings` the wordings by choice, where the choice "" always applies.
    `sql` and the checks contain parts in braces.
    """

    name: str
    weight: int
    steps: tuple[tuple[Callable[..., None], tuple[str, ...]], ...]
    options: Mapping[tuple[str, str], tuple[str, ...]]
    wordings: Mapping[str, tuple[str, ...]]
    sql: str
    order_check: str = ""
    sort_check: str = ""

    def build(self, rng: random.Random, database: SynthDatabase) -> QuestionCandidate:
        """Choose the parts and write the question; raises NoFit if the template does not apply to the database."""
        builder = QuestionBuilder(rng, database, self.options)
        for step, arguments in self.steps:
            step(builder, *arguments)
        phrases = dict(builder.words)
        # Options may contain other parts. A part with a single option is not chosen by a step.
        fixed = {part: texts[0] for (part, choice), texts in self.options.items() if not choice and len(texts) == 1}
        for part, text in (builder.chosen | fixed).items():
            phrases[part] = text.format_map(phrases)
        choices = ("", *builder.choices)
        wordings = next((texts for choice, texts in self.wordings.items() if choice in choices), None)
        if wordings is None:
            wordings = COUNTING if "count" in choices else LISTING if "shown" in phrases else AGGREGATING
        queries = (query.format_map(builder.sql) for query in (self.sql, self.order_check, self.sort_check))
        return QuestionCandidate(tuple(wording.format_map(phrases) for wording in wordings), *queries)


def parse_templates(text: str) -> tuple[Template, ...]:
    """Parse templates; raises ValueError for an unknown step."""
    return tuple(_template(block) for block in re.split(r"^== ", text, flags=re.MULTILINE)[1:])


def _template(block: str) -> Template:
    head, *lines = re.sub(r"\n +", " ", block.strip()).splitlines()
    title, _, steps = head.partition(": ")
    name, weight = title.split()
    options: dict[tuple[str, str], tuple[str, ...]] = {}
    wordings: dict[str, tuple[str, ...]] = {}
    queries: dict[str, str] = {}
    choice = ""
    for line in lines:
        if part := _PART.fullmatch(line):
            if part[1] in ("order_check", "sort_check"):
                queries[part[1]] = part[3]
            else:
                options[part[1], part[2] or ""] = tuple(part[3].split(" | "))
        elif line.startswith("["):
            choice = line.strip("[]")
        elif line.startswith(("SELECT ", "WITH ")):
            queries["sql"] = line
        else:
            wordings[choice] = (*wordings.get(choice, ()), line)
    return Template(name, int(weight), tuple(map(_step, steps.split("; "))), options, wordings, **queries)


def _step(text: str) -> tuple[Callable[..., None], tuple[str, ...]]:
    name, *arguments = text.split()
    if name.startswith("_") or not hasattr(QuestionBuilder, name):
        raise ValueError(f"templates have no step {name!r}")
    return getattr(QuestionBuilder, name), tuple(arguments)


TEMPLATES: Mapping[str, tuple[Template, ...]] = {
    difficulty: parse_templates(
        getattr(templates_advanced if difficulty == "advanced" else templates, difficulty.upper())
    )
    for difficulty in DIFFICULTIES
}
"""The templates by difficulty."""
