"""Arctic's reward from text to number, on real SQLite files with the native executor."""

from pathlib import Path

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.arctic import arctic_reward, read_arctic
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, read_plain
from jaxrl_sql.text2sql.rewards.score import collect, submit_texts
from jaxrl_sql.types import Example


def _example(db: str, gold: str) -> Example:
    return Example("q", "emp", db, "?", gold)


NAMES = "SELECT name FROM emp"
ADA = "SELECT id FROM emp WHERE name = 'Ada'"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
LARGE = "SELECT a.n FROM hits a, hits b"
FENCE = "<think>so</think>\n<answer>\n```sql\n{}\n```\n</answer>"
# gold, response, reward, status
CASES = {
    "same query": (NAMES, FENCE.format(NAMES), 1.0, "ok"),
    "other spelling": (NAMES, FENCE.format("select emp.name from emp;"), 1.0, "ok"),
    "row order is ignored": (NAMES, FENCE.format("SELECT name FROM emp ORDER BY name DESC"), 1.0, "ok"),
    "duplicates are ignored": (NAMES, FENCE.format("SELECT DISTINCT name FROM emp"), 1.0, "ok"),
    "column order matters": ("SELECT id, name FROM emp", FENCE.format("SELECT name, id FROM emp"), 0.1, "ok"),
    "surplus column": (NAMES, FENCE.format("SELECT name, id FROM emp"), 0.1, "ok"),
    "integer equals real": ("SELECT 7", FENCE.format("SELECT pay FROM emp WHERE id = 4"), 1.0, "ok"),
    "text is not a number": ("SELECT 7", FENCE.format("SELECT '7'"), 0.1, "ok"),
    "NULL equals NULL": ("SELECT pay FROM emp WHERE id = 3", FENCE.format("SELECT NULL AS x"), 1.0, "ok"),
    "both empty": ("SELECT 1 WHERE 0", FENCE.format("SELECT name, id FROM emp WHERE id > 9"), 1.0, "ok"),
    "runs but differs": (NAMES, FENCE.format("SELECT id FROM emp"), 0.1, "ok"),
    "empty result differs from the gold": (NAMES, FENCE.format("SELECT name FROM emp WHERE 0"), 0.1, "ok"),
    "double-quoted string": (ADA, FENCE.format(ADA.replace("'", '"')), 1.0, "ok"),
    "syntax error": (NAMES, FENCE.format("SELEC name FROM emp"), 0.0, "syntax_error"),
    "no such column": (NAMES, FENCE.format("SELECT nme FROM emp"), 0.0, "schema_error"),
    "no such table": (NAMES, FENCE.format("SELECT name FROM emps"), 0.0, "schema_error"),
    "writing is forbidden": (NAMES, FENCE.format("DELETE FROM emp"), 0.0, "forbidden"),
    "endless": (NAMES, FENCE.format(ENDLESS), 0.0, "timeout"),
    "over the row limit": (NAMES, FENCE.format(LARGE), 0.0, "too_large"),
    "over the row limit, like the gold": (LARGE, FENCE.format(LARGE), 0.0, "too_large"),
    "no sql": (NAMES, "<think>so</think> I do not know.", 0.0, "no_sql"),
    "sql only in the think": (NAMES, "<think>```sql\nSELECT name FROM emp\n```</think>", 0.0, "no_sql"),
    "the last block is rewarded": (NAMES, FENCE.format("SELECT id FROM emp") + FENCE.format(NAMES), 1.0, "ok"),
    "raw select": (NAMES, "</think>SELECT name FROM emp\n\nThat is all.", 1.0, "ok"),
    "raw select after prose": (NAMES, "</think>I select the names: SELECT name FROM emp", 1.0, "ok"),
    "raw select in lower case": (NAMES, "</think>Here: select name from emp\n\nI Select it.", 1.0, "ok"),
    "json": (NAMES, '</think>{"sql": "SELECT name FROM emp"}', 1.0, "ok"),
    "bare fence": (NAMES, "</think>```\nSELECT name FROM emp\n```", 1.0, "ok"),
    "select in prose does not run": (NAMES, "</think>First select the names.", 0.0, "syntax_error"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text_to_reward(name: str, executor: Executor, db: str) -> None:
    gold, text, total, status = CASES[name]
    (scored,) = collect(submit_texts(executor, [_example(db, gold)], [text], read_arctic), arctic_reward)
    assert (scored.reward.total, scored.status) == (total, status)
    parts = {
        "correct": float(total == 1.0),
        "executes": float(total > 0),
        "format": float(text.count("<think>so</think>\n<answer>") == 1),
    }
    assert scored.reward.parts == parts


def test_batch_gives_the_same_rewards_in_order(executor: Executor, db: str) -> None:
    cases = list(CASES.values())
    examples = [_example(db, gold) for gold, *_ in cases]
    texts = [text for _, text, *_ in cases]
    rewards = RECIPES["arctic"].score(executor, examples, texts)
    assert [reward.total for reward in rewards] == [total for *_, total, _ in cases]


def test_failing_gold_is_marked_and_never_counts_as_right(executor: Executor, db: str) -> None:
    bad = "SELECT lost FROM emp"
    scored = collect(
        submit_texts(executor, [_example(db, bad)] * 2 + [_example(db, NAMES)], [bad, NAMES, NAMES], read_plain),
        arctic_reward,
    )
    assert [s.gold_ok for s in scored] == [False, False, True]
    assert [s.reward.total for s in scored] == [0.0, 0.1, 1.0]
    assert scored[0].gold_status == "schema_error"


def test_clock_timeout_is_not_trusted_and_step_limit_is(db: str) -> None:
    for config, stop, trusted in (
        (ExecutorConfig(threads=1, vm_steps=10_000), "vm_steps", True),
        (ExecutorConfig(threads=1, vm_steps=0, timeout_ms=300), "wall", False),
    ):
        with make_executor(config) as executor:
            (scored,) = collect(submit_texts(executor, [_example(db, NAMES)], [ENDLESS], read_plain), arctic_reward)
            assert (scored.status, scored.stop, scored.trusted, scored.gold_ok) == ("timeout", stop, trusted, True)
            runs = 2 if stop == "wall" else 1  # the query was retried once after the clock's timeout
            assert executor.stats()["runs"] == runs + 1, executor.stats()


def test_missing_database_has_its_own_status(executor: Executor, tmp_path: Path) -> None:
    example = _example(str(tmp_path / "none.sqlite"), NAMES)
    (scored,) = collect(submit_texts(executor, [example], [NAMES], read_plain), arctic_reward)
    assert (scored.status, scored.gold_ok, scored.reward.total) == ("db_error", False, 0.0)


def test_job_without_sql_runs_nothing(executor: Executor, db: str) -> None:
    job = submit_texts(executor, [_example(db, NAMES)] * 2, ["", " "], read_plain)
    assert job.job is None
    assert job.done()
    assert [s.status for s in collect(job, arctic_reward)] == ["no_sql", "no_sql"]


def test_prompt_style_selects_the_parser_of_answers(executor: Executor, db: str) -> None:
    recipe = RECIPES["arctic"]
    gold = "WITH x AS (SELECT name FROM emp) SELECT * FROM x"
    totals = {}
    for style in map(recipe.style, ("compact", "tagged", "chat")):
        (scored,) = recipe.collect(recipe.submit(executor, [_example(db, gold)], [" " + gold], style))
        totals[style.name] = scored.reward.total
    assert totals == {"compact": 1.0, "tagged": 0.0, "chat": 0.0}  # a fence is necessary if the parser reads WITH


@pytest.mark.parametrize(
    ("row", "total"),
    [
        (ScoreRow("ok", "ok", {"bird": 1.0}), 1.0),
        (ScoreRow("ok", "ok", {"bird": 0.0}), 0.1),
        (ScoreRow("ok", "timeout", {"bird": 1.0}), 0.1),
        (ScoreRow("timeout", "ok", {"bird": 0.0}), 0.0),
        (ScoreRow("cancelled", "ok", {}), 0.0),
    ],
)
def test_table_of_the_paper(row: ScoreRow, total: float) -> None:
    assert arctic_reward(ParsedResponse(None), row).total == total
