"""PaVeRL-SQL from text to number: 0 / 0.5 / ten times the share of the gold's cells in the answer."""

from collections.abc import Callable

import pytest

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.text2sql.rewards.paverl import paverl_reward, read_paverl
from jaxrl_sql.text2sql.rewards.score import ScoredResponse

Score = Callable[..., ScoredResponse]

NAMES = "SELECT name FROM emp"
BOTH = "SELECT name, id FROM emp"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"


def block(sql: str, thought: str = "So I look.\n") -> str:
    return f"{thought}```sql\n{sql}\n```"


# gold, response, reward, status
CASES = {
    "same query": (NAMES, block(NAMES), 10.0, "ok"),
    "no thought": (NAMES, block(NAMES, ""), 10.0, "ok"),
    "text after the block": (NAMES, block(NAMES) + "\nThat is it.", 10.0, "ok"),
    "row order": (NAMES, block("SELECT name FROM emp ORDER BY name DESC"), 10.0, "ok"),
    "column order and names": (BOTH, block("SELECT id AS a, name AS b FROM emp"), 10.0, "ok"),
    "surplus columns": (NAMES, block("SELECT name, id, pay FROM emp"), 10.0, "ok"),
    "one of two columns": (BOTH, block(NAMES), 5.0, "ok"),
    "one of three columns": ("SELECT name, id, pay FROM emp", block(NAMES), 10 / 3, "ok"),
    "one right and one wrong column": (BOTH, block("SELECT name, dept FROM emp"), 5.0, "ok"),
    "columns match after sorting": (BOTH, block("SELECT name, 5 - id FROM emp"), 10.0, "ok"),
    "fewer than half of the rows": (NAMES, block("SELECT name FROM emp WHERE name = 'Bo'"), 5.0, "ok"),
    "three of four rows": (BOTH, block("SELECT name, id FROM emp WHERE id < 4 AND id <> 2"), 5.0, "ok"),
    "missing duplicates": (NAMES, block("SELECT DISTINCT name FROM emp"), 7.5, "ok"),
    "surplus rows are filtered": ("SELECT name, id FROM emp WHERE name <> 'Bo'", block(BOTH), 10.0, "ok"),
    "more than five surplus rows": (NAMES, block("SELECT n, 'x' FROM hits LIMIT 10"), 0.5, "ok"),
    "numbers in text are numbers": ("SELECT id FROM emp", block("SELECT '' || id FROM emp"), 10.0, "ok"),
    "rounded to three digits": ("SELECT pay FROM emp", block("SELECT pay + 0.0004 FROM emp"), 10.0, "ok"),
    "NULL is a value": ("SELECT pay FROM emp WHERE id = 3", block("SELECT NULL AS nothing_here"), 10.0, "ok"),
    "both empty": ("SELECT name FROM emp WHERE 0", block("SELECT name FROM emp WHERE id > 9"), 10.0, "ok"),
    "only the gold is empty": ("SELECT name FROM emp WHERE 0", block(NAMES), 0.5, "ok"),
    "only the prediction is empty": (NAMES, block("SELECT name FROM emp WHERE 0"), 0.5, "ok"),
    "no cell is right": (NAMES, block("SELECT pay, dept FROM emp"), 0.5, "ok"),
    "never more than ten": (NAMES, block("SELECT name, id, dept FROM emp WHERE id < 4"), 7.5, "ok"),
    "syntax error": (NAMES, block("SELEC name FROM emp"), 0.0, "syntax_error"),
    "no such column": (NAMES, block("SELECT nme FROM emp"), 0.0, "schema_error"),
    "endless": (NAMES, block(ENDLESS), 0.0, "timeout"),
    "over the row limit": (NAMES, block("SELECT a.n FROM hits a, hits b"), 0.0, "too_large"),
    "writing is forbidden": (NAMES, block("DELETE FROM emp WHERE 1"), 0.0, "forbidden"),
    "the last block": (NAMES, block("SELECT id FROM emp") + block(NAMES), 10.0, "ok"),
    "sixteen characters": (NAMES, block("SELECT id FROM t"), 0.0, "schema_error"),
    "fifteen characters are too few": ("SELECT 1", block("SELECT 1 AS one"), 0.0, "no_sql"),
    "the last block is too short": (NAMES, block(NAMES) + block("SELECT 1"), 0.0, "no_sql"),
    "blanks do not count": (NAMES, block("   SELECT 1      "), 0.0, "no_sql"),
    "an unclosed block does not count": (NAMES, block(NAMES) + "```sql\nSELECT id FROM emp", 10.0, "ok"),
    "another language's fence does not count": (NAMES, f"```\n{NAMES}\n```", 0.0, "no_sql"),
    "no fence": (NAMES, NAMES, 0.0, "no_sql"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text_to_reward(name: str, score: Score) -> None:
    gold, text, total, status = CASES[name]
    scored = score("paverl", gold, text)
    assert scored.reward.total == pytest.approx(total, abs=1e-9)
    assert scored.status == status
    assert scored.reward.parts == {
        "correct": float(total == 10.0),
        "executes": float(status == "ok"),
        "format": float(status != "no_sql"),
        "partial": pytest.approx(total / 10 if total > 0.5 else 0.0),
    }


def test_failing_gold_is_not_learned_from(score: Score) -> None:
    scored = score("paverl", "SELECT lost FROM emp", block(NAMES))
    assert (scored.reward.total, scored.gold_status, scored.trusted) == (0.5, "schema_error", False)


def test_best_of_several_golds_counts(score: Score) -> None:
    assert score("paverl", ("SELECT id FROM emp WHERE 0", BOTH, NAMES), block(NAMES)).reward.total == 10.0
    assert score("paverl", ("SELECT id FROM emp WHERE 0", BOTH), block(NAMES)).reward.total == 5.0


def test_small_share_earns_less_than_running_alone() -> None:
    """On the paper's scale, a twentieth of the gold earns as much as none of it."""
    parsed = ParsedResponse("SELECT", True)
    paid = [paverl_reward(parsed, ScoreRow("ok", "ok", {"paverl": acc})).total for acc in (0.0, 0.04, 0.05, 0.5)]
    assert paid == pytest.approx([0.5, 0.4, 0.5, 5.0])


def test_one_of_25_columns_earns_less_than_none_except_in_the_monotone_variant(score: Score) -> None:
    gold = "SELECT " + ", ".join(["name", *(f"id + {i}" for i in range(24))]) + " FROM emp"
    answers = ("SELEC name FROM emp", "SELECT pay / 7 FROM emp", NAMES, BOTH, gold)
    paid = {
        recipe: [score(recipe, gold, block(sql)).reward.total for sql in answers]
        for recipe in ("paverl", "paverl_monotone")
    }
    assert paid["paverl"] == pytest.approx([0, 0.5, 0.4, 0.8, 10])
    assert paid["paverl_monotone"] == pytest.approx([0, 0.5, 0.5, 0.8, 10])


def test_thought_is_the_text_before_the_block() -> None:
    parsed = read_paverl(block(NAMES, "One.\n\nTwo.\n"))
    assert parsed == ParsedResponse(NAMES, True, "One.\n\nTwo.", block(NAMES, "One.\n\nTwo.\n"))
