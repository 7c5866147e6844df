"""Selection of the tables and columns for a question if the schema exceeds its budget."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_sql.config import DataConfig
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompt, make_prompts, message_texts, prompt_texts
from jaxrl_sql.text2sql.question_sets.stream import open_stream, stream_prompts
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.schema import Schema, compact, ddl, find_used_columns, link, quote_name, read_schema
from jaxrl_sql.text2sql.schema.link import name_words
from jaxrl_sql.text2sql.schema.prune import find_largest
from jaxrl_sql.training.batching.sft_batches import make_sft_batch
from jaxrl_sql.types import Example

pytestmark = pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="the package bm25s is not installed")

# The tables of two databases, one with names of an outer schema, and unrelated tables.
TABLES = """
CREATE TABLE singer(singer_id INTEGER PRIMARY KEY, "Song Name" TEXT, country TEXT, age INT, is_male TEXT);
CREATE TABLE stadium(stadium_id INTEGER PRIMARY KEY, location TEXT, capacity INT, average INT);
CREATE TABLE gig(gig_id INTEGER PRIMARY KEY, theme TEXT, stadium_id INT REFERENCES stadium(stadium_id));
CREATE TABLE singer_in_gig(gig_id INT REFERENCES gig(gig_id), singer_id INT REFERENCES singer(singer_id));
CREATE TABLE "world.City"("ID" INTEGER PRIMARY KEY, "cityName" TEXT, "order" INT, population INT);
CREATE TABLE "world.Country"("Code" TEXT PRIMARY KEY, "headOfState" TEXT);
CREATE VIEW "busy places" AS SELECT location AS "where", capacity FROM stadium;
CREATE VIEW broken AS SELECT x FROM no_such_table;
INSERT INTO singer VALUES (1, 'Sun', 'Netherlands', 5, 'T');
INSERT INTO "world.City" VALUES (1, 'Rotterdam', 1, 5);
"""
OTHERS = 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a database of the tables above and thirty others of ten columns each."""
    file = tmp_path_factory.mktemp("databases") / "d.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(TABLES)
        for i in range(OTHERS):
            connection.execute(f"CREATE TABLE log{i}({', '.join(f'field{i}_{j} TEXT' for j in range(10))})")
        connection.commit()
    return str(file)


def make_example(path: str, question: str, evidence: str = "") -> Example:
    return Example("q", "d", path, question, "SELECT 1", evidence)


def link_within(path: str, question: str, most: int, evidence: str = "") -> Schema:
    return link(make_example(path, question, evidence), read_schema(path), lambda part: len(compact(part)) <= most)


def tables(schema: Schema) -> list[str]:
    return [table.name for table in schema.tables]


def columns(schema: Schema) -> set[tuple[str, str]]:
    return {(table.name, column.name) for table in schema.tables for column in table.columns}


@pytest.mark.parametrize(
    ("question", "evidence", "wanted"),
    [
        ("What are the capacities of all stadiums?", "", {("stadium", "capacity")}),
        ("Which song names are there?", "", {("singer", "Song Name")}),
        ("How many are there?", "males have is_male = 'T'", {("singer", "is_male")}),
        ("How many live in Rotterdam?", "", {("world.City", "cityName")}),  # only by a value
        ("Who is the head of state?", "", {("world.Country", "headOfState")}),
        ("How many from the Netherlands?", "", {("singer", "country")}),
        ("What is field 7 of log 12?", "", {("log12", "field12_7")}),
        ("Which busy places are there?", "", {("busy places", "where"), ("busy places", "capacity")}),
    ],
)
def test_needed_tables_and_columns_are_shown(
    path: str, question: str, evidence: str, wanted: set[tuple[str, str]]
) -> None:
    schema = link_within(path, question, 250, evidence)
    assert len(compact(schema)) <= 250
    assert wanted <= columns(schema)


def test_connecting_tables_are_shown_with_their_keys(path: str) -> None:
    schema = link_within(path, "What are the ages of singers, and the locations of their stadiums?", 350)
    assert {"singer", "singer_in_gig", "gig", "stadium"} <= set(tables(schema))
    keys = [(table.name, key.columns, key.table) for table in schema.tables for key in table.foreign_keys]
    assert ("singer_in_gig", ("singer_id",), "singer") in keys
    assert ("singer_in_gig", ("gig_id",), "gig") in keys
    assert ("gig", ("stadium_id",), "stadium") in keys


def test_schema_within_the_budget_is_complete_with_readable_views(path: str) -> None:
    schema = link_within(path, "How many?", 10**9)
    assert tables(schema) == [*tables(read_schema(path)), "busy places"]


def test_table_is_shown_even_if_it_exceeds_the_budget(path: str) -> None:
    assert tables(link_within(path, "How many stadiums are there?", 1)) == ["stadium"]


def test_larger_budget_shows_a_superset(path: str) -> None:
    question = "Which singers of the Netherlands sang in a stadium with the largest capacity?"
    parts = [link_within(path, question, most) for most in (60, 120, 250, 500, 1000, 2000, 4000)]
    for less, more in pairwise(parts):
        assert columns(less) <= columns(more)
        assert [table for table in tables(more) if table in tables(less)] == tables(less)
    assert [len(part.tables) for part in (parts[0], parts[-1])] == [1, 37]


def test_values_of_omitted_columns_are_omitted(path: str) -> None:
    matched = (("singer", "country", "Netherlands"), ("world.City", "cityName", "Rotterdam"))
    schema = replace(read_schema(path), matched=matched)
    part = link(make_example(path, "Which singers are Dutch?"), schema, lambda part: len(compact(part)) <= 110)
    assert part.matched == matched[:1]


def test_empty_database_has_an_empty_schema(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "e.sqlite")) as connection:
        connection.execute("VACUUM")
    assert link_within(str(tmp_path / "e.sqlite"), "How many?", 0) == Schema(())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("StuID_2", "stu id 2"), ("headOfState", "head of state"), ("world.City", "world city"),
        ("ABCName", "abc name"), ("a b", "a b"), ("Größe", "grösse"), ("t2x", "t 2 x"), ("__", ""),
    ],
)  # fmt: skip
def test_names_are_split_into_words(name: str, message: str) -> None:
    assert name_words(name) == message


@given(st.integers(0, 300), st.integers(0, 300))
def test_largest_fitting_count_is_searched_from_below(most: int, limit: int) -> None:
    tried: list[int] = []
    assert find_largest(most, lambda count: tried.append(count) or count <= limit) == min(most, limit)
    assert all(count <= 2 * limit + 1 for count in tried)
    assert len(tried) <= 2 * (limit + 1).bit_length() + 1


class Characters:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


def training_prompt(example: Example, data: DataConfig, folder: Path) -> str:
    return make_prompts([example], RECIPES["sql_r1"].style_for(data), Characters(), 10_000).prompts[0].text


def inference_prompt(example: Example, data: DataConfig, folder: Path) -> str:
    prompt = make_prompt(example, RECIPES["sql_r1"].style_for(data), Characters(), 10_000)
    assert prompt is not None
    return prompt.text


def joined_texts(example: Example, data: DataConfig, folder: Path) -> str:
    return "".join(prompt_texts(example, RECIPES["sql_r1"].style_for(data), Characters()))


def supervised_prompt(example: Example, data: DataConfig, folder: Path) -> str:
    taught = make_sft_batch([example], [RECIPES["sql_r1"].style_for(data)], Characters(), 0, 10_000, 10_000)
    asks = [token for token, is_learned in zip(*taught.answers[0][:2], strict=True) if not is_learned]
    return "".join(map(chr, (*taught.schemas[0], *asks)))


def streamed_prompt(example: Example, data: DataConfig, folder: Path) -> str:
    lines = folder / "train.jsonl"
    database = folder / "databases" / "d" / "d.sqlite"
    database.parent.mkdir(parents=True)
    database.write_bytes(Path(example.db_path).read_bytes())
    lines.write_text(json.dumps({"id": "q", "db_id": "d", "question": example.question, "sql": "SELECT 1"}))
    streamed = open_stream(folder, "train")
    assert streamed is not None
    return stream_prompts(streamed, RECIPES["sql_r1"].style_for(data), Characters(), 10_000).prompts[0].text


@pytest.mark.parametrize(
    "make_prompt", [training_prompt, inference_prompt, joined_texts, supervised_prompt, streamed_prompt]
)
def test_every_command_shows_the_same_schema(
    path: str, tmp_path: Path, make_prompt: Callable[[Example, DataConfig, Path], str]
) -> None:
    example = make_example(path, "What are the capacities of all stadiums?")
    shown = make_prompt(example, DataConfig(prompt="compact", schema_budget=150), tmp_path)
    schema, _, question = shown.partition("\n\n")
    assert len(schema) <= 150
    assert "stadium(stadium_id, location, capacity, average)" in schema
    assert question == "Q: What are the capacities of all stadiums?\nSQL:"
    whole = make_prompt(example, DataConfig(prompt="compact"), tmp_path / "whole")
    assert len(whole) > 3000
    assert "busy places" not in whole


def test_endpoint_tokens_are_estimated_as_three_characters(path: str) -> None:
    data = DataConfig(prompt="compact", schema="compact", schema_budget=50)
    style = RECIPES["sql_r1"].style_for(data)
    schema, *_ = message_texts(make_example(path, "What are the capacities of all stadiums?"), style)
    assert 100 < len(schema.strip()) <= 150


def merge_databases(examples: Sequence[Example], target: Path) -> list[tuple[Example, frozenset[str]]]:
    """Write the databases of examples into one -> examples on it and the tables of their golds.

    A table whose name several databases have is called `database.table`. Unparsed golds are skipped.
    """
    schemas = {example.db_path: read_schema(example.db_path) for example in examples}
    count = Counter(table.name.lower() for schema in schemas.values() for table in schema.tables)

    def rename(path: str, table: str) -> str:
        return f"{Path(path).stem}.{table}" if count[table.lower()] > 1 else table

    tables = []
    for path, schema in schemas.items():
        for table in schema.tables:
            keys = tuple(replace(key, table=rename(path, key.table)) for key in table.foreign_keys)
            tables.append(replace(table, name=rename(path, table.name), foreign_keys=keys))
    with closing(sqlite3.connect(target)) as connection:
        connection.executescript(ddl(Schema(tuple(tables))))
        for path, schema in schemas.items():
            connection.execute("ATTACH ? AS source", (path,))
            for table in schema.tables:
                names = ", ".join(quote_name(column.name, always=True) for column in table.columns)
                new, old = (quote_name(text, always=True) for text in (rename(path, table.name), table.name))
                connection.execute(f"INSERT OR IGNORE INTO main.{new} ({names}) SELECT {names} FROM source.{old}")
            connection.commit()
            connection.execute("DETACH source")
    pairs = [(example, find_used_columns(example.gold_sql, schemas[example.db_path])) for example in examples]
    return [
        (replace(example, db_path=str(target)), frozenset(rename(example.db_path, table) for table in used.tables))
        for example, used in pairs
        if used is not None
    ]


@pytest.mark.slow
@pytest.mark.data
def test_recall_of_the_golds_tables_over_merged_databases(real_data: Path, tmp_path: Path) -> None:
    examples = merge_databases(load_split(real_data, "spider_dev").examples, tmp_path / "merged.sqlite")
    schema = read_schema(tmp_path / "merged.sqlite")
    assert len(schema.tables) == 77
    total = shown = 0
    for example, used in examples[::10]:
        part = link(example, schema, lambda part: len(ddl(part)) <= 3 * 1000)
        total += len(used)
        shown += len(used & {table.name for table in part.tables})
    assert total > 100
    assert shown / total >= 0.97
