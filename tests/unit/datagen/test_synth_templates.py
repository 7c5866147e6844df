"""The table of templates: every entry builds questions, and an invalid entry is refused at load time."""

from __future__ import annotations

import functools
import random
import sqlite3
from collections.abc import Callable, Sequence

import pytest

from jaxrl_sql.datagen.synth.databases import generate_database
from jaxrl_sql.datagen.synth.notation import UNSEEN_DOMAINS
from jaxrl_sql.datagen.synth.part_sampler import NoFit
from jaxrl_sql.datagen.synth.question_template import TEMPLATES, QuestionCandidate, Template, parse_templates
from jaxrl_sql.datagen.synth.spec import SynthDatabase

ConnectAll = Callable[[Sequence[SynthDatabase]], dict[str, sqlite3.Connection]]
ALL = [template for templates in TEMPLATES.values() for template in templates]


@functools.cache
def databases() -> list[SynthDatabase]:
    return [
        generate_database(random.Random(domain.name), domain, domain.name, mean_rows=100) for domain in UNSEEN_DOMAINS
    ]


def build(template: Template, tries: int = 60) -> list[tuple[str, QuestionCandidate]]:
    result = []
    for number in range(tries):
        database = databases()[number % len(UNSEEN_DOMAINS)]
        try:
            result.append((database.db_id, template.build(random.Random(number), database)))
        except NoFit:
            continue
    return result


@pytest.fixture(scope="module")
def connections(connect_all: ConnectAll) -> dict[str, sqlite3.Connection]:
    return connect_all(databases())


@pytest.mark.parametrize("template", ALL, ids=lambda template: template.name)
def test_template_fills_its_wordings_and_its_queries_run(
    template: Template, connections: dict[str, sqlite3.Connection]
) -> None:
    built = build(template)
    assert built
    for db_id, candidate in built:
        assert len(set(candidate.texts)) == len(candidate.texts) >= 4
        assert not any("{" in text for text in candidate.texts)
        assert bool(candidate.order_check) == ("LIMIT" in candidate.sql)
        for sql in filter(None, (candidate.sql, candidate.order_check, candidate.sort_check)):
            connections[db_id].execute(sql).fetchall()


def test_each_choice_has_its_wordings() -> None:
    for template in ALL:
        texts = "\n".join(text for _, candidate in build(template) for text in candidate.texts)
        for wordings in template.wordings.values():
            fixed = max((part for part in wordings[0].replace("{", "}").split("}")[::2]), key=len)
            assert fixed in texts, (template.name, fixed)


def test_template_names_are_unique_and_weights_are_unchanged() -> None:
    assert len({template.name for template in ALL}) == len(ALL) == 63
    assert [sum(template.weight for template in TEMPLATES[grade]) for grade in TEMPLATES] == [26, 28, 34, 24, 29]


def test_options_have_sql_and_a_phrase() -> None:
    [template] = parse_templates(
        "== some 2: table; one sign; say table\nsign: > as above | < as below\nthings: {table} {sign}\n"
        "[<]\nBelow {table}\n[>]\n{things} {sign}\nSELECT {sign}\n"
    )
    assert (template.name, template.weight) == ("some", 2)
    result = {(candidate.sql, candidate.texts[0].split()[0]) for _, candidate in build(template)}
    assert {sql for sql, _ in result} == {"SELECT >", "SELECT <"}
    assert all((word == "Below") == (sql == "SELECT <") for sql, word in result)
    assert all(candidate.texts[0].endswith("above") for _, candidate in build(template) if ">" in candidate.sql)


@pytest.mark.parametrize("step", ["tables", "_set_table", "say_table"])
def test_unknown_step_is_refused(step: str) -> None:
    with pytest.raises(ValueError, match=step):
        parse_templates(f"== wrong 1: table; {step} x\nSELECT 1\n")
