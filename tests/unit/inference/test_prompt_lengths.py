"""Messages about prompts over the limit: their lengths, and settings with the lengths that they give."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import DataConfig
from jaxrl_sql.inference.prompt_lengths import (
    MAX_MEASURED,
    PromptShortener,
    length_lines,
    measure_settings,
    question_line,
    sample_evenly,
    streamed_lines,
)
from jaxrl_sql.inference.questions import check_prompts
from jaxrl_sql.text2sql.prompts.prompts import Pruning, make_prompts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import Example, InputError


class Characters:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


def style_of(data: DataConfig) -> PromptStyle:
    return find_recipe("arctic").style_for(data)


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    """Return a short question on a small table, and two on a large one."""
    results = []
    for name, columns in (("small", 1), ("large", 30)):
        path = tmp_path / f"{name}.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            named = ", ".join(f"column_{i} TEXT NOT NULL" for i in range(columns))
            connection.executescript(f"CREATE TABLE t(id INTEGER PRIMARY KEY, {named})")
        results.append(Example(name, name, str(path), "Which?", "SELECT column_0 FROM t"))
    return [*results, Example("longer", "large", results[1].db_path, "Which of all?", "SELECT column_9 FROM t")]


LONG = DataConfig(prompt="tagged", schema="ddl", max_prompt_tokens=700)


def test_lengths_and_settings_equal_those_of_prompts_made_with_them(examples: list[Example]) -> None:
    shortening = PromptShortener(LONG, style_of, Characters(), seed=3)
    prompts = make_prompts(examples, style_of(LONG), Characters(), 700)
    assert [uid for uid, _ in prompts.skipped] == ["large", "longer"]
    whole = make_prompts(examples, style_of(LONG), Characters(), 99_999).lengths()
    first, second = length_lines(prompts, 700, examples, shortening)
    assert first == (
        f"prompts have a median of {sorted(whole)[1]:,} and a maximum of {max(whole):,} tokens; the limit is "
        "data.max_prompt_tokens=700"
    )
    assert second.startswith("of 2 prompts over it: ")
    assert second.endswith(f"; data.max_prompt_tokens={max(whole)} → all fit")
    compact = DataConfig(prompt="tagged", schema="compact")
    lengths = make_prompts(examples[1:], style_of(compact), Characters(), 99_999).lengths()
    middle = round(sum(lengths) / 2)
    assert f"data.schema=compact → median {middle:,}, maximum {max(lengths):,} (2 fit)" in second
    pruned = make_prompts(examples[1:], style_of(LONG), Characters(), 700, Pruning(700, 3)).lengths()
    assert f"data.prune=true → median {round(sum(pruned) / 2):,}, maximum {max(pruned):,} (2 fit)" in second


def test_each_proposed_setting_gives_its_length(examples: list[Example]) -> None:
    settings = {
        item.setting: item
        for item in measure_settings(examples[1:], 700, PromptShortener(LONG, style_of, Characters(), 3))
    }
    assert len(settings) == 4
    (budget,) = [name for name in settings if name.startswith("data.schema_budget=")]
    data = DataConfig(prompt="tagged", schema="ddl", schema_budget=int(budget.partition("=")[2]))
    assert settings[budget].lengths == make_prompts(examples[1:], style_of(data), Characters(), 9_999).lengths()
    assert settings[budget].fitting(700) == 2


def test_settings_of_training_and_those_that_shorten_nothing_are_omitted(examples: list[Example]) -> None:
    settings = [
        item.setting for item in measure_settings(examples[1:], 700, PromptShortener(LONG, style_of, Characters()))
    ]
    assert "data.prune=true" not in settings
    compact = PromptShortener(DataConfig(prompt="compact", schema="compact"), style_of, Characters())
    assert [item.setting.partition("=")[0] for item in measure_settings(examples[1:], 200, compact)] == [
        "data.schema_budget"
    ]


def test_error_without_a_fitting_prompt_has_lengths_and_settings(examples: list[Example]) -> None:
    prompts = make_prompts(examples, style_of(LONG), Characters(), 20)
    lines = length_lines(prompts, 20, examples, PromptShortener(LONG, style_of, Characters()))
    with pytest.raises(InputError, match=r"dev: no prompt fits data\.max_prompt_tokens=20: prompts have a .* →"):
        check_prompts("dev", prompts, 20, print, lines)


def test_message_about_one_question_has_its_length_under_each_setting(examples: list[Example]) -> None:
    shortening = PromptShortener(LONG, style_of, Characters())
    line = question_line(examples[1], 700, shortening)
    (whole,) = make_prompts(examples[1:2], style_of(LONG), Characters(), 99_999).lengths()
    (short,) = make_prompts(examples[1:2], style_of(DataConfig(prompt="tagged")), Characters(), 99_999).lengths()
    assert line.startswith(f"the prompt has {whole:,} tokens, and the limit is data.max_prompt_tokens=700: ")
    assert f"data.schema=compact → {short:,}" in line
    assert re.search(r"data\.schema_budget=\d+ → [56]\d\d", line)
    assert "data.prune" not in line
    assert line.endswith(f"; data.max_prompt_tokens={whole} → fits")


def test_lines_about_a_streamed_set_cover_the_prompts_read_so_far(examples: list[Example]) -> None:
    whole = make_prompts(examples, style_of(LONG), Characters(), 99_999).lengths()
    lines = streamed_lines(Counter(whole), examples[1:], PromptShortener(LONG, style_of, Characters(), 3))
    assert lines[0] == (
        f"the first {len(whole)} prompts have a median of {sorted(whole)[1]:,} and a maximum of {max(whole):,} "
        "tokens; the limit is data.max_prompt_tokens=700"
    )
    assert lines[1].startswith("of 2 prompts over it: ")
    assert "data.prune=true → median" in lines[1]
    assert lines[1].endswith(f"; data.max_prompt_tokens={max(whole)} → all fit")


def test_line_about_a_sample_has_its_size_and_that_of_all_long_prompts(examples: list[Example]) -> None:
    many = [dataclasses.replace(examples[1], uid=f"large_{number}") for number in range(45)]
    prompts = make_prompts(many, style_of(LONG), Characters(), 700)
    shortening = PromptShortener(LONG, style_of, Characters())
    assert length_lines(prompts, 700, many, shortening)[1].startswith("of a sample of 23 of the 45 prompts over it: ")
    (length,) = set(make_prompts(many, style_of(LONG), Characters(), 99_999).lengths())
    streamed = streamed_lines(Counter({length: 45, 700: 3}), many[:8], shortening)
    assert streamed[1].startswith("of a sample of 8 of the 45 prompts over it: ")


def test_sample_is_bounded_and_spread(examples: list[Example]) -> None:
    assert 0 < len(sample_evenly(examples * 400)) <= MAX_MEASURED
    assert sample_evenly([]) == []
    assert len(sample_evenly(examples)) == 3
