"""The table of templates: every row builds questions, and a row that cannot is refused when it is read."""

from __future__ import annotations

import random

import pytest

from jaxrl_sql.datagen.synth.draw import draw_database
from jaxrl_sql.datagen.synth.notation import UNSEEN_DOMAINS
from jaxrl_sql.datagen.synth.part_sampler import NoFit
from jaxrl_sql.datagen.synth.question_template import TEMPLATES, QuestionCandidate, Template, parse_templates

DATABASES = [draw_database(random.Random(domain.name), domain, domain.name, mean_rows=100) for domain in UNSEEN_DOMAINS]
ALL = [template for templates in TEMPLATES.values() for template in templates]


def build(template: Template, tries: int = 60) -> list[QuestionCandidate]:
    found = []
    for number in range(tries):
        try:
            found.append(template.build(random.Random(number), DATABASES[number % len(DATABASES)]))
        except NoFit:
            continue
    return found


@pytest.mark.parametrize("template", ALL, ids=lambda template: template.name)
def test_a_template_fills_every_wording_and_query(template: Template) -> None:
    candidates = build(template)
    assert candidates
    for candidate in candidates:
        assert len(set(candidate.texts)) == len(candidate.texts) >= 4
        assert not any("{" in text for text in (*candidate.texts, candidate.sql, candidate.order_check))
        assert bool(candidate.order_check) == ("LIMIT" in candidate.sql)


def test_each_choice_has_its_wordings() -> None:
    for template in ALL:
        texts = "\n".join(text for candidate in build(template) for text in candidate.texts)
        for wordings in template.wordings.values():
            fixed = max((part for part in wordings[0].replace("{", "}").split("}")[::2]), key=len)
            assert fixed in texts, (template.name, fixed)


def test_names_are_different_and_shares_of_the_shapes_stay() -> None:
    assert len({template.name for template in ALL}) == len(ALL) == 49
    assert [sum(template.weight for template in TEMPLATES[grade]) for grade in TEMPLATES] == [26, 28, 34, 24]


def test_options_are_sql_and_words() -> None:
    [template] = parse_templates(
        "== some 2: table; one sign; say table\nsign: > as above | < as below\nthings: {table} {sign}\n"
        "[<]\nBelow {table}\n[>]\n{things} {sign}\nSELECT {sign}\n"
    )
    assert (template.name, template.weight) == ("some", 2)
    found = {(candidate.sql, candidate.texts[0].split()[-1]) for candidate in build(template)}
    assert ("SELECT >", "above") in found
    assert len([sql for sql, _ in found if sql == "SELECT >"]) == 1
    assert all(candidate.texts[0].startswith("Below ") == ("<" in candidate.sql) for candidate in build(template))


@pytest.mark.parametrize("step", ["tables", "_set_table", "say_table"])
def test_a_step_that_does_not_exist_is_refused(step: str) -> None:
    with pytest.raises(ValueError, match=step):
        parse_templates(f"== wrong 1: table; {step} x\nSELECT 1\n")
