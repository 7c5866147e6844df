"""SQL-R1 from text to number: a format, a query that runs, its result, and the length of a full thought."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.text2sql.rewards.score import ScoredResponse
from jaxrl_sql.text2sql.rewards.sql_r1 import length_part, read_sql_r1, sql_r1_reward
from jaxrl_sql.types import Example

Score = Callable[..., ScoredResponse]

NAMES = "SELECT name FROM emp"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"


def block(sql: str) -> str:
    return f"```sql\n{sql}\n```"


def form(sql: str, think: str = "abc") -> str:
    return f"<think>{think}</think><answer>{block(sql)}</answer>"


def match(think: int, answer: int, sql: int) -> float:
    """Return the reward of a match whose texts have this number of characters."""
    return 6 + 0.5 * min(1.0, (think + answer) / 2048) + sql / answer


RIGHT = match(3, 31, 20)  # the thought `abc`, a block of NAMES
# gold, response, reward, status
CASES = {
    "same query": (NAMES, form(NAMES), RIGHT, "ok"),
    "white space around the tags": (
        NAMES, f"\n<think>\nabc\n</think>\n\n<answer>\n{block(NAMES)}\n</answer>\n", RIGHT, "ok"
    ),
    "text outside the tags": (NAMES, f"So: {form(NAMES)} Done.", RIGHT, "ok"),
    "text inside the answer": (NAMES, form(NAMES).replace("<answer>", "<answer>Here: "), match(3, 37, 20), "ok"),
    "no thought between the tags": (NAMES, form(NAMES, ""), match(0, 31, 20), "ok"),
    "whitespace in the query is normalised": (NAMES, form("SELECT  name\n FROM emp"), match(3, 33, 20), "ok"),
    "a comment is run unchanged": (NAMES, form("-- all\nSELECT name FROM emp"), match(3, 38, 27), "ok"),
    "a long thought has the full length part": (NAMES, form(NAMES, "x" * 3000), 6.5 + 20 / 31, "ok"),
    "the minimal full length": (NAMES, form(NAMES, "x" * 2017), 6.5 + 20 / 31, "ok"),
    "the last block counts": (NAMES, form("SELECT 1").replace("</a", f"{block(NAMES)}</a"), match(3, 50, 20), "ok"),
    "columns in another order": ("SELECT id, name FROM emp", form("SELECT name, id FROM emp"), match(3, 35, 24), "ok"),
    "row order of an ordered gold": (
        "SELECT id FROM emp ORDER BY id", form("SELECT id FROM emp ORDER BY id DESC"), 0.0, "ok"
    ),
    "row order of an unordered gold": (NAMES, form("SELECT name FROM emp ORDER BY 1"), match(3, 42, 31), "ok"),
    "duplicates count": (NAMES, form("SELECT DISTINCT name FROM emp"), 0.0, "ok"),
    "distinct is not stripped": (
        "SELECT count(DISTINCT name) FROM emp", form("SELECT count(name) FROM emp"), 0.0, "ok"
    ),
    "both empty": ("SELECT name FROM emp WHERE id > 9", form("SELECT 1, 2 WHERE 0"), match(3, 30, 19), "ok"),
    "runs but differs": (NAMES, form("SELECT id FROM emp"), 0.0, "ok"),
    "surplus column": (NAMES, form("SELECT name, id FROM emp"), 0.0, "ok"),
    "syntax error": (NAMES, form("SELEC name FROM emp"), -1.0, "syntax_error"),
    "no such column": (NAMES, form("SELECT nme FROM emp"), -1.0, "schema_error"),
    "endless": (NAMES, form(ENDLESS), -1.0, "timeout"),
    "over the row limit": (NAMES, form("SELECT a.n FROM hits a, hits b"), -1.0, "too_large"),
    "writing is forbidden": (NAMES, form("DELETE FROM emp"), -1.0, "forbidden"),
    "no thought": (NAMES, f"<answer>{block(NAMES)}</answer>", -1.0, "ok"),
    "no answer": (NAMES, f"<think>abc</think>{block(NAMES)}", -1.0, "ok"),
    "unclosed thought": (NAMES, f"<think>abc<answer>{block(NAMES)}</answer>", -1.0, "ok"),
    "unclosed answer": (NAMES, f"<think>abc</think><answer>{block(NAMES)}", -1.0, "ok"),
    "two answers": (NAMES, form(NAMES) + f"<answer>{block(NAMES)}</answer>", -1.0, "ok"),
    "two thoughts": (NAMES, "<think>a</think>" + form(NAMES), -1.0, "ok"),
    "answer before thought": (NAMES, f"<answer>{block(NAMES)}</answer><think>abc</think>", -1.0, "ok"),
    "block only in the thought": (NAMES, f"<think>{block(NAMES)}</think><answer>see above</answer>", -1.0, "ok"),
    "empty block": (NAMES, "<think>abc</think><answer>```sql\n\n```</answer>", -1.0, "no_sql"),
    "fence without a language": (NAMES, form(NAMES).replace("```sql", "```"), -1.0, "no_sql"),
    "fence in upper case": (NAMES, form(NAMES).replace("```sql", "```SQL"), -1.0, "no_sql"),
    "no fence": (NAMES, f"<think>abc</think><answer>{NAMES}</answer>", -1.0, "no_sql"),
    "nothing": (NAMES, "", -1.0, "no_sql"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text_to_reward(name: str, score: Score) -> None:
    gold, text, total, status = CASES[name]
    scored = score("sql_r1", gold, text)
    assert scored.reward.total == pytest.approx(total, abs=1e-12)
    assert scored.status == status
    parts = scored.reward.parts
    assert scored.well_formed == bool(parts["format"])
    assert parts["executes"] == (status == "ok")
    if parts["format"]:
        assert parts["correct"] == (total > 6)
        assert parts["length"] == pytest.approx(max(0.0, total - 6), abs=1e-12)
    else:
        assert (total, parts["length"]) == (-1.0, 0.0)


def test_example_of_the_papers_formula(score: Score) -> None:
    scored = score("sql_r1", "select name from emp", form("select id from emp"))
    assert scored.reward.total == 0.0
    answer = "```sql\nselect a from t\n```"
    assert len(answer) == 26
    parsed = read_sql_r1(f"<think>abc</think><answer>{answer}</answer>")
    assert parsed == ParsedResponse("select a from t", True, "abc", answer)
    row = ScoreRow("ok", "ok", {"test_suite": 1.0})
    assert sql_r1_reward(parsed, row).total == pytest.approx(6.584003, abs=5e-7)


def test_open_tag_of_the_prompt_belongs_to_the_response(score: Score) -> None:
    text = form(NAMES).removeprefix("<think>")
    assert score("sql_r1", NAMES, text).reward.total == -1.0
    assert score("sql_r1", NAMES, text, opening_tag="<think>").reward.total == pytest.approx(RIGHT)
    assert score("sql_r1", NAMES, form(NAMES), opening_tag="<think>").reward.total == -1.0  # the tag occurs twice


def test_failing_gold_gives_no_match_and_is_not_learned_from(score: Score) -> None:
    scored = score("sql_r1", "SELECT lost FROM emp", form("SELECT lost FROM emp"))
    assert (scored.reward.total, scored.gold_status, scored.trusted) == (-1.0, "schema_error", False)
    assert score("sql_r1", "SELECT lost FROM emp", form(NAMES)).reward.total == 0.0


@pytest.mark.parametrize(
    ("row", "total"),
    [
        (ScoreRow("ok", "timeout", {"test_suite": 1.0}), 0.0),
        (ScoreRow("timeout", "ok", {"test_suite": 0.0}), -1.0),
        (ScoreRow("cancelled", "ok", {}), -1.0),
    ],
)
def test_failed_query_is_no_match(row: ScoreRow, total: float) -> None:
    assert sql_r1_reward(read_sql_r1(form(NAMES)), row).total == total


def test_length_part_is_at_most_one_and_a_half() -> None:
    assert length_part(ParsedResponse("x" * 26, True, "t" * 5000, "x" * 26)) == 1.5
    assert length_part(ParsedResponse(None, True, "", "")) == 0.0


def rows(path: Path, values: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(x)")
        connection.execute(f"INSERT INTO t VALUES {values}")
        connection.commit()
    return str(path)


def correct(executor: Executor, name: str, example: Example, sqls: list[str]) -> list[float]:
    rewards = RECIPES[name].score(executor, [example] * len(sqls), [form(sql) for sql in sqls])
    return [reward.parts["correct"] for reward in rewards]


def test_all_databases_of_the_suite_must_agree(executor: Executor, tmp_path: Path) -> None:
    local, variant = rows(tmp_path / "a.sqlite", "(1), (2)"), rows(tmp_path / "suite" / "a_0.sqlite", "(1), (2), (3)")
    gold = "SELECT x FROM t"
    sqls = [gold, "SELECT x FROM t WHERE x < 3", "SELECT 1 UNION ALL SELECT 2"]
    example = Example("q", "a", local, "?", gold, suite=(local, variant))
    assert correct(executor, "sql_r1", example, sqls) == [1.0, 0.0, 0.0]
    assert correct(executor, "arctic", example, sqls) == [1.0, 1.0, 1.0]  # by the question's own database alone


def test_neighbouring_database_is_no_variant(executor: Executor, tmp_path: Path) -> None:
    """All databases may be in one folder: those of other questions have other tables, and no answer runs there."""
    local = rows(tmp_path / "dev" / "database" / "a.sqlite", "(1), (2)")
    with closing(sqlite3.connect(tmp_path / "dev" / "database" / "b.sqlite")) as connection:
        connection.execute("CREATE TABLE other(y)")
    questions = [{"db_id": "a", "question": "Which?", "query": "SELECT x FROM t"}]
    (tmp_path / "dev" / "dev.json").write_text(json.dumps(questions), encoding="utf-8")
    (example,) = load_split(tmp_path / "dev", "dev").examples
    assert (example.db_path, example.suite) == (local, ())
    recipe = RECIPES["sql_r1"]
    answers = [form("SELECT x FROM t"), form("SELECT 3")]
    scored = recipe.collect(recipe.submit(executor, [example] * 2, answers, recipe.style("chat")))
    assert [(item.trusted, item.reward.parts["correct"]) for item in scored] == [(True, 1.0), (True, 0.0)]


def test_plain_folder_finds_the_test_suite_databases(tmp_path: Path) -> None:
    local = rows(tmp_path / "dev" / "databases" / "a" / "a.sqlite", "(1)")
    beside = rows(tmp_path / "dev" / "databases" / "a" / "a_0.sqlite", "(1), (2)")
    suite = rows(tmp_path / "dev_testsuite" / "databases" / "a" / "one.sqlite", "(3)")
    question = {"id": "q", "db_id": "a", "question": "Which?", "sql": "SELECT x FROM t"}
    (tmp_path / "dev" / "questions.jsonl").write_text(json.dumps(question) + "\n", encoding="utf-8")
    (example,) = load_split(tmp_path, "dev").examples
    assert example.suite == (local, beside, suite)


# The cases of the reward, and its total without each of the four terms; L is the length part of a match.
L = 0.75
ABLATIONS = {
    "wrong format": (False, "ok", 1.0, {"format": 0.0, "execution": -1.0, "result": -1.0, "length": -1.0}),
    "failed query": (True, "syntax_error", 0.0, {"format": -2.0, "execution": 1.0, "result": -1.0, "length": -1.0}),
    "another result": (True, "ok", 0.0, {"format": -1.0, "execution": -2.0, "result": 3.0, "length": 0.0}),
    "match": (True, "ok", 1.0, {"format": 5.0 + L, "execution": 4.0 + L, "result": 3.0 + L, "length": 6.0}),
}


@pytest.mark.parametrize("case", ABLATIONS)
@pytest.mark.parametrize("term", ["format", "execution", "result", "length"])
def test_reward_without_a_term_is_the_sum_of_the_others(term: str, case: str) -> None:
    is_well_formed, status, matches, totals = ABLATIONS[case]
    # Thought and answer have half of 2,048 characters, half of the answer is SQL: 0.25 + 0.5.
    parsed = ParsedResponse("x" * 256, is_well_formed, "t" * 512, "x" * 512)
    recipe = RECIPES[f"sql_r1_no_{term}"]
    row = ScoreRow(status, "ok", {"test_suite": matches})
    assert recipe.reward(parsed, row).total == pytest.approx(totals[term])
    assert recipe.reward(parsed, row).parts == RECIPES["sql_r1"].reward(parsed, row).parts
