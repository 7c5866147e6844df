"""Schemas are pruned to fit, in training only."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.text2sql.prompts.prompts import Encoder, Pruning, make_prompts
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.text2sql.question_sets.stream import open_stream, stream_prompts
from jaxrl_sql.text2sql.schema import (
    Column,
    ForeignKey,
    Schema,
    Table,
    compact,
    ddl,
    find_used_columns,
    prune,
    read_schema,
)
from jaxrl_sql.text2sql.schema.prune import find_columns_of_all, keys_of, part_of
from jaxrl_sql.training.batching.sft_batches import make_sft_batch
from jaxrl_sql.types import Example

LETTERS = "abcdefghij"
COLUMNS = [f"{letter}{number}" for letter in LETTERS for number in range(4)]


def wide() -> Schema:
    """Return three tables of ten columns each with keys between them, and one without keys."""
    tables = []
    for number in range(4):
        columns = [Column(f"{letter}{number}", "TEXT") for letter in LETTERS]
        keys: tuple[ForeignKey, ...] = ()
        if number < 3:
            columns[0] = replace(columns[0], primary_key=1)
        if 0 < number < 3:
            keys = (ForeignKey((f"b{number}",), f"t{number - 1}", (f"a{number - 1}",)),)
        tables.append(Table(f"t{number}", tuple(columns), keys))
    return Schema(tuple(tables))


def names(schema: Schema) -> set[str]:
    return {column.name for table in schema.tables for column in table.columns}


def count(schema: Schema) -> int:
    return len(names(schema))


KEYS = {"a0", "a1", "b1", "a2", "b2"}


def pruned(sql: str, most: int, seed: int = 0, uid: str = "q") -> Schema | None:
    schema = wide()
    used = find_used_columns(sql, schema)
    assert used is not None
    return prune(schema, used, seed, uid, lambda part: count(part) <= most)


def test_keys_and_gold_columns_stay_and_others_fill_the_budget() -> None:
    schema = pruned("SELECT c0, d3 FROM t0 JOIN t3", 12)
    assert schema is not None
    assert count(schema) == 12
    assert names(schema) >= {"c0", "d3"} | KEYS
    assert [table.foreign_keys for table in schema.tables if table.name in ("t1", "t2")] == [
        (ForeignKey(("b1",), "t0", ("a0",)),),
        (ForeignKey(("b2",), "t1", ("a1",)),),
    ]


def test_columns_keep_their_order_and_a_fitting_schema_is_complete() -> None:
    assert pruned("SELECT c0 FROM t0", 40) == wide()
    schema = pruned("SELECT c0 FROM t0", 25)
    assert schema is not None
    for table in schema.tables:
        assert [column.name for column in table.columns] == sorted(column.name for column in table.columns)


def test_whole_tables_are_dropped_if_keys_exceed_the_budget() -> None:
    schema = pruned("SELECT c3 FROM t3", 3)
    assert schema is not None
    # Of the keys of t0 (1), t1 (2) and t2 (2), the tables that fit are kept in a random order, without other columns.
    assert names(schema) <= {"c3"} | KEYS
    assert all(table.primary_key for table in schema.tables if table.name != "t3")
    assert all(
        not key.columns or key.table in {t.name for t in schema.tables} for t in schema.tables for key in t.foreign_keys
    )


def test_gold_columns_over_the_budget_return_none() -> None:
    assert pruned("SELECT * FROM t3", 9) is None
    assert pruned("SELECT * FROM t3", 10) is not None


def test_counted_table_keeps_one_column() -> None:
    schema = pruned("SELECT count(*) FROM t3", 1)
    assert schema is not None
    assert names(schema) == {"a3"}


def test_random_choice_depends_on_seed_and_question() -> None:
    sql = "SELECT c0 FROM t0"
    assert pruned(sql, 12) == pruned(sql, 12)
    drawn = {compact(result) for uid in "abcdefgh" if (result := pruned(sql, 12, uid=uid))}
    assert len(drawn) == 8
    assert pruned(sql, 12, seed=1) != pruned(sql, 12)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32), st.integers(0, 40), st.sets(st.sampled_from([f"{a}{n}" for a in LETTERS for n in "0123"]))
)
def test_pruned_schema_fits_grows_with_the_budget_and_is_valid(seed: int, most: int, wanted: set[str]) -> None:
    schema = wide()
    of = {column.name: table.name for table in schema.tables for column in table.columns}
    sql = f"SELECT {', '.join(sorted(wanted)) or '1'} FROM t0 JOIN t1 JOIN t2 JOIN t3"
    used = find_used_columns(sql, schema)
    assert used is not None
    assert {column for _, column in used.columns} == wanted
    result = prune(schema, used, seed, "q", lambda part: count(part) <= most)
    least = len(wanted | KEYS | ({"a3"} if not any(of[name] == "t3" for name in wanted) else set()))
    assert (result is None) == (most < least)
    if result is None:
        return
    assert count(result) == most
    assert names(result) >= wanted | KEYS
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(ddl(result))
        connection.execute(f"SELECT {', '.join(sorted(wanted)) or '1'} FROM t0 JOIN t1 JOIN t2 JOIN t3")
    more = prune(schema, used, seed, "q", lambda part: count(part) <= most + 5)
    assert more is not None
    assert names(more) >= names(result)  # a larger budget only adds columns


def test_keys_of_a_schema_and_parts_of_a_key() -> None:
    assert {column for _, column in keys_of(wide())} == KEYS
    composite = Schema((Table("t", (Column("a", "", primary_key=1), Column("b", "", primary_key=2), Column("c", ""))),))
    assert part_of(composite, [("t", "a"), ("t", "c")]).tables[0].primary_key == ()
    assert part_of(composite, [("t", "a"), ("t", "b")]).tables[0].primary_key == ("a", "b")
    matched = Schema(composite.tables, (("t", "a", "x"), ("t", "c", "y")))
    assert part_of(matched, [("t", "a")]).matched == (("t", "a", "x"),)


def test_columns_of_several_golds_are_combined() -> None:
    both = find_columns_of_all(["SELECT c0 FROM t0", "SELECT d1 FROM t1"], wide())
    assert both is not None
    assert both.columns == {("t0", "c0"), ("t1", "d1")}
    assert find_columns_of_all(["SELECT c0 FROM t0", "SELEC"], wide()) is None
    assert find_columns_of_all([], wide()) is None


class Characters:
    """A tokenizer with one token per character."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(ddl(wide()))
    assert read_schema(path) == wide()
    golds = ["SELECT c0 FROM t0", "SELECT j3 FROM t3", "SELEC", "SELECT * FROM t0 JOIN t1 JOIN t2 JOIN t3"]
    return [Example(f"q{i}", "d", str(path), "Which?", gold) for i, gold in enumerate(golds)]


def test_only_training_prompts_are_pruned_to_fit(examples: list[Example]) -> None:
    style, tokenizer = compact_style(), Characters()
    (whole, *_) = make_prompts(examples, style, tokenizer, 10_000).prompts
    length = len(whole.token_ids)
    assert make_prompts(examples, style, tokenizer, length, Pruning(length, 0)).pruned == ()
    # Without pruning, as in evaluation, oversized prompts are skipped.
    assert make_prompts(examples, style, tokenizer, length - 1).prompts == ()
    prompts = make_prompts(examples, style, tokenizer, 100, Pruning(100, 0))
    assert prompts.pruned == ("q0", "q1")
    assert prompts.skipped == (("q2", "prompt over 100 tokens"), ("q3", "prompt over 100 tokens"))
    for prompt, column in zip(prompts.prompts, ("c0", "j3"), strict=True):
        assert 90 < len(prompt.token_ids) <= 100
        assert column in prompt.text
        assert all(key in prompt.text for key in KEYS)
        assert prompt.text.endswith("\n\nQ: Which?\nSQL:")
    assert prompts == make_prompts(examples, style, tokenizer, 100, Pruning(100, 0))
    assert prompts.prompts != make_prompts(examples, style, tokenizer, 100, Pruning(100, 1)).prompts
    # With a higher limit for skipping than for pruning, an unprunable schema is complete.
    everything = make_prompts(examples, style, tokenizer, 10_000, Pruning(100, 0))
    assert [len(prompt.token_ids) for prompt in everything.prompts[2:]] == [length, length]


def test_columns_of_other_golds_stay_too(examples: list[Example]) -> None:
    example = replace(examples[0], other_golds=("SELECT f3 FROM t3",), demonstration="SELECT g2 FROM t2")
    (prompt,) = make_prompts([example], compact_style(), Characters(), 120, Pruning(120, 0)).prompts
    assert all(column in prompt.text for column in ("c0", "f3", "g2"))


def test_supervised_learning_prunes_equally(examples: list[Example]) -> None:
    style, tokenizer = compact_style(), Characters()
    prompts = make_prompts(examples[:2], style, tokenizer, 100, Pruning(100, 3))
    taught = make_sft_batch(examples[:2], [style], tokenizer, 0, 100, 100, Pruning(100, 3))
    assert taught.skipped == ()
    for prompt, schema in zip(prompts.prompts, taught.schemas, strict=True):
        assert prompt.token_ids[: len(schema)] == schema
    whole = make_sft_batch(examples[:2], [style], tokenizer, 0, 10_000, 100)
    assert whole.schemas[0] == whole.schemas[1] == Encoder(style, tokenizer).encode(examples[0]).schema_ids


def test_streamed_set_is_pruned_equally(examples: list[Example], tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    (folder / "databases" / "d").mkdir(parents=True)
    copyfile(examples[0].db_path, folder / "databases" / "d" / "d.sqlite")
    records = [{"id": e.uid, "db_id": "d", "question": e.question, "sql": e.gold_sql} for e in examples]
    (folder / "questions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    streamed = open_stream(folder)
    assert streamed is not None
    prompts = stream_prompts(streamed, compact_style(), Characters(), 100, Pruning(100, 0)).prompts
    result = make_prompts(list(streamed), compact_style(), Characters(), 100, Pruning(100, 0))
    assert (prompts[0], prompts[1]) == result.prompts
    assert prompts[2] == result.prompts[0]  # an unprunable question is replaced by the next one that fits
    assert streamed.skipped == {"prompt over 100 tokens": 2}
