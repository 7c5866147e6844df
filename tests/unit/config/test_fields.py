"""Each field of a configuration declares its help text; rules reject values and name the field's key."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from jaxrl_sql.config.fields import (
    Above,
    Among,
    AtLeast,
    Constraint,
    Day,
    Field,
    Matches,
    NotEmpty,
    SomeOf,
    Texts,
    ZeroOr,
    sections_of,
)
from jaxrl_sql.config.roots import ROOTS

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclasses.dataclass(frozen=True)
class Undocumented:
    """A section with help for one of two fields."""

    steps: Annotated[int, "Number of steps."] = 1
    name: str = "a"


def fields_of(config: Any) -> Iterator[Field]:
    for section in sections_of(config):
        yield from section.fields


def without_help(config: Any) -> list[str]:
    """Return the keys without help or with help that is no sentence."""
    return [
        field.key
        for field in fields_of(config)
        if not re.fullmatch(r"[A-Z`](?:(?!  )[^\n])*\.", field.help) or len(field.help.split()) < 2
    ]


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.__name__)
def test_every_field_has_a_help_text(root: type[Any]) -> None:
    assert without_help(root()) == []


def test_field_without_help_is_reported() -> None:
    assert without_help(Undocumented()) == ["name"]


def test_help_names_only_existing_keys() -> None:
    sections = [section for root in ROOTS for section in sections_of(root())]
    known = {field.key for section in sections for field in section.fields} | {section.name for section in sections}
    tops = {key.partition(".")[0] for key in known if "." in key}
    mentioned = {
        (field.key, name)
        for section in sections
        for field in section.fields
        for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", field.help)
        if name.partition(".")[0] in tops
    }
    assert {pair for pair in mentioned if pair[1] not in known} == set()
    assert len(mentioned) > 20


def test_synonyms_map_to_existing_keys() -> None:
    synonyms = [field.synonyms for root in ROOTS for field in fields_of(root()) if field.synonyms]
    assert len(synonyms) > 50
    for synonym in synonyms:
        assert synonym.trl or synonym.verl
        assert not synonym.trl or _KEY.fullmatch(synonym.trl)
        assert not synonym.verl or (_KEY.fullmatch(synonym.verl) and "." in synonym.verl)


@pytest.mark.parametrize(
    ("rule", "accepted", "refused", "error"),
    [
        (ZeroOr(Above(1), "to disable it"), [0, 1.5], 1, "=1 must be above 1, or 0 to disable it"),
        (ZeroOr(AtLeast(1), "for none"), [0, 1], 0.5, "=0.5 must be 1 or more, or 0 for none"),
        (Among(0, 1), [0, 1], 2, "=2 must be 0 or 1"),
        (SomeOf("a", "b"), [[], ["b"]], ["a", "c"], " holds 'c', which is not in a, b"),
        (Matches("x|y", "x or y"), ["x", "y"], "xy", "='xy' must be x or y"),
        (NotEmpty("it names the folder"), ["a"], "", " is empty; it names the folder"),
        (Texts("nothing would begin"), [[], ["a"]], ["a", ""], " holds an empty text: nothing would begin"),
        (Day(), ["", "2028-02-29"], "2026-02-29", "='2026-02-29' must be a day such as 2026-11-29, or empty"),
        (AtLeast(0, below=1), [0, 0.5], 1, "=1 must be 0 or more and below 1"),
        (Above(0, maximum=1), [0.1, 1], 0, "=0 must be above 0 and at most 1"),
    ],
    ids=lambda value: type(value).__name__ if dataclasses.is_dataclass(value) or isinstance(value, tuple) else "",
)
def test_rule_refuses_with_its_reason(rule: Constraint, accepted: list[Any], refused: Any, error: str) -> None:
    assert [rule.find_error(value) for value in accepted] == [""] * len(accepted)
    assert rule.find_error(refused) == error
    assert rule.description
