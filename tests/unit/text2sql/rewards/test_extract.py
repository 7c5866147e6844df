"""Extraction of SQL from a response: Arctic's rules, one per line, and cases that the rules leave open."""

import time

import pytest

from jaxrl_sql.text2sql.recipes.omnisql import read_omnisql
from jaxrl_sql.text2sql.rewards.arctic import read_arctic
from jaxrl_sql.text2sql.rewards.extract import (
    Read,
    find_enclosed,
    find_last_enclosed,
    policy_text,
    read_plain,
    sql_blocks,
    with_opening_tag,
)
from jaxrl_sql.text2sql.rewards.paverl import read_paverl
from jaxrl_sql.text2sql.rewards.skyrl_sql import read_skyrl_sql, read_skyrl_sql_loose
from jaxrl_sql.text2sql.rewards.sql_r1 import read_sql_r1
from jaxrl_sql.text2sql.rewards.think2sql import read_think2sql

SQL = "```sql\n{}\n```"

CASES = {
    "block in answer": ("<think>t</think><answer>```sql\nSELECT a FROM t\n```</answer>", "SELECT a FROM t"),
    "opening tag in the prompt": ("t</think>\n```sql\nSELECT a\n```", "SELECT a"),
    "no think at all": ("```sql\nSELECT a\n```", "SELECT a"),
    "block in think does not count": ("<think>```sql\nSELECT a\n```</think>SELECT b", "SELECT b"),
    "only the first closing tag ends the thought": ("x</think>```sql\nSELECT a\n```</think>", "SELECT a"),
    "nothing after think": ("<think>```sql\nSELECT a\n```</think>", None),
    "the last block": ("```sql\nSELECT a\n``` or ```sql\nSELECT b\n```", "SELECT b"),
    "a short last block is skipped": ("```sql\nSELECT a\n``` ```sql\nabcdef\n```", "SELECT a"),
    "seven characters are enough": ("```sql\nSELECT a\n``` ```sql\nabcdefg\n```", "abcdefg"),
    "white space does not count": ("```sql\nSELECT a\n``` ```sql\n   abc   \n```", "SELECT a"),
    "an unclosed last block is skipped": ("```sql\nSELECT a\n``` ```sql\nSELECT b", "SELECT a"),
    "block before bare fence": ("```sql\nSELECT a\n``` ```\nSELECT b\n```", "SELECT a"),
    "WITH in a block": (SQL.format("WITH x AS (SELECT 1) SELECT * FROM x"), "WITH x AS (SELECT 1) SELECT * FROM x"),
    "block on one line": ("```sql SELECT a FROM t```", "SELECT a FROM t"),
    "blank lines and comments stay inside": (SQL.format("-- why\nSELECT a\n\nFROM t"), "-- why\nSELECT a\n\nFROM t"),
    "bare fence": ("so\n```\nSELECT a\nFROM t\n```", "SELECT a\nFROM t"),
    "language word on its own line": ("```sqlite\nselect a\n```", "select a"),
    "upper-case language": ("```SQL\nSELECT a\n```", "SELECT a"),
    "language word before the query": ("```postgresql WITH x AS (SELECT 1) SELECT * FROM x```",
                                       "WITH x AS (SELECT 1) SELECT * FROM x"),
    "no language word to drop": ("```SELECT a```", "SELECT a"),
    "the last bare fence with SELECT": ("```\nSELECT a\n``` ```\nSELECT b\n``` ```\nselected\n```", "SELECT b"),
    "bare fence before json": ('{"sql": "SELECT a"} ```\nSELECT b\n```', "SELECT b"),
    "json": ('{"thought": "x", "sql": " SELECT a "}', "SELECT a"),
    "json in a fence": ('```json\n{"sql": "SELECT \\"a\\""}\n```', 'SELECT "a"'),
    "the last json": ('{"sql": "SELECT a"} {"sql": "SELECT b"} {"other": 1}', "SELECT b"),
    "json after broken braces": ('{oops {"sql": "SELECT a"}', "SELECT a"),
    "json after a number of thousands of digits": (f'{{"n": {"1" * 5000}}} {{"sql": "SELECT a"}}', "SELECT a"),
    "json before raw": ('SELECT z {"sql": "SELECT a"}', "SELECT a"),
    "sql of another type": ('{"sql": 3} SELECT a', "SELECT a"),
    "raw": ("The query is SELECT a FROM t", "SELECT a FROM t"),
    "raw ends at a blank line": ("SELECT a\nFROM t\n \nThis lists a.", "SELECT a\nFROM t"),
    "raw ends at the answer's end": ("<answer>select a FROM t</answer> bye", "select a FROM t"),
    "raw from the first select": ("SELECT a FROM (SELECT b)", "SELECT a FROM (SELECT b)"),
    "raw WITH is truncated": ("WITH x AS (SELECT 1) SELECT * FROM x", "SELECT 1) SELECT * FROM x"),
    "an unclosed block is raw": ("```sql\nSELECT a FROM t", "SELECT a FROM t"),
    "selected is not select": ("I selected nothing", None),
    "no sql": ("I cannot answer this.", None),
    "empty": ("", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_arctic_extraction(name: str) -> None:
    text, sql = CASES[name]
    assert read_arctic(text).sql == sql


@pytest.mark.parametrize(
    ("text", "sql"), [(" SELECT a;\n", "SELECT a;"), ("nonsense", "nonsense"), (" \n", None), ("", None)]
)
def test_plain_text_is_all_sql(text: str, sql: str | None) -> None:
    assert read_plain(text).sql == sql


@pytest.mark.parametrize("text", ["{" * 20_000, '{"a":' * 4000, "```" * 20_000, "```sql" * 10_000, "x\n" * 20_000])
def test_malformed_text_ends_without_sql(text: str) -> None:
    assert read_arctic(text).sql is None


BLOCKS = {
    "two": ("```sql\na\n``` ```sql b```", ["a", "b"]),
    "none": ("```\na\n```", []),
    "another case": ("```SQL\na\n```", []),
    "another word": ("```sqlite\na\n```", []),
    "open": ("```sql\na", []),
    "the second is open": ("```sql\na\n```\n```sql\nb", ["a"]),
    "empty": ("```sql\n```", [""]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_sql_blocks(name: str) -> None:
    text, blocks = BLOCKS[name]
    assert sql_blocks(text) == blocks


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("<a>x</a> <a> y </a>", ["x", " y "]),
        ("<a><a>x</a></a>", ["<a>x"]),
        ("</a><a>x", []),
        ("<a></a>", [""]),
        ("", []),
    ],
)
def test_enclosed(text: str, result: list[str]) -> None:
    assert find_enclosed(text, "<a>", "</a>") == result
    assert find_last_enclosed(text, "<a>", "</a>") == (result[-1].strip() if result else "")


def test_observations_are_not_the_policys_text() -> None:
    dialogue = [("assistant", "a "), ("environment", "SELECT 1"), ("assistant", "b")]
    assert policy_text(dialogue) == "a b"
    assert read_plain(dialogue).sql == "a b"
    assert with_opening_tag(dialogue, "<think>") == [("assistant", "<think>a "), *dialogue[1:]]
    assert with_opening_tag("a", "") == "a"


READS = (read_arctic, read_sql_r1, read_paverl, read_think2sql, read_skyrl_sql)
HOSTILE = [
    "<think>" * 30_000, "<answer>" * 30_000, "<think></think>" * 10_000, "<solution>" * 20_000, "```sql" * 20_000,
    "<observation>" * 20_000, "<observation></observation>" * 10_000, "<sql>" * 30_000,
    "<sql>a</sql>" * 10_000 + " " * 9999,
    "<reasoning>" + "x" * 200_000, "<reasoning>a</reasoning>" + " " * 100_000 + "<answer>", "`" * 100_000,
    "\x00\ud800" * 9999,
    "'" + "<think>" * 30_000, "'" + "<sql>" * 30_000, "```sql a``` " * 10_000 + "'", "<sql>" + "/*" * 30_000 + "</sql>",
    "<sql>" + "'" * 99_999 + "</sql>", "<sql>'</sql>" * 9_999, "<sql>" + "'\n" * 40_000 + "</sql>",
]  # fmt: skip


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_malformed_text_is_parsed_in_linear_time(read: Read, text: str) -> None:
    """A quadratic parser takes minutes; the time limit is generous."""
    start_time = time.process_time()
    assert not read(text).well_formed
    assert time.process_time() - start_time < 5


QUOTED = "SELECT a FROM t WHERE b = '{0}' OR \"x{0}\" /* {0} it's */ = 'it''s'"


@pytest.mark.parametrize("tag", ["```", "</answer>", "<answer>", "</think>", "<think>", "```sql", "</solution>"])
@pytest.mark.parametrize(
    ("read", "form"),
    [
        (read_arctic, "<think>it's</think><answer>```sql\n{}\n```</answer>"),
        (read_sql_r1, "<think>it's</think><answer>```sql\n{}\n```</answer>"),
        (read_think2sql, "<think>it's</think><answer>```sql\n{}\n```</answer>"),
        (read_paverl, "it's ```sql\n{}\n```"),
        (read_omnisql, "it's ```sql\n{}\n```"),
        (read_skyrl_sql, "<think>it's</think><solution>{}</solution>"),
        (read_skyrl_sql_loose, "<think>it's</think><solution>{}</solution>"),
    ],
)
def test_tag_in_a_literal_name_or_comment_is_text(read: Read, form: str, tag: str) -> None:
    sql = QUOTED.format(tag)
    parsed = read(form.format(sql))
    assert parsed.sql == sql
    assert parsed.well_formed == read(form.format("SELECT a FROM t WHERE b = 1")).well_formed


@pytest.mark.parametrize(
    "sql", ["SELECT a -- it's", "SELECT 'a", 'SELECT "a', "SELECT /* a", "SELECT 'a\n'", "SELECT '\ue0f0' -- a", "it's"]
)
def test_first_tag_closes_text_with_an_open_literal(sql: str) -> None:
    text = f"<think>x</think><sql>{sql}</sql>"
    assert read_skyrl_sql([("assistant", text), ("environment", "it's"), ("assistant", "it's")]).queries == (sql,)
    assert sql_blocks(f"```sql\n{sql}\n``` that's ```sql\n{sql}\n```") == [sql, sql]
    blocks = f"```sql\n{sql}\n```\nthat's it\n```sql\n{sql} or more\n```"
    assert read_paverl(blocks).sql == (f"{sql} or more" if len(sql) > 8 else None)
