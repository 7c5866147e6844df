"""Think2SQL's three rewards of one parsed answer: GATE, EXFM and QAFM, from text to numbers."""

from collections.abc import Callable

import pytest

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.score import ScoredResponse
from jaxrl_sql.text2sql.rewards.think2sql import gate_reward, read_think2sql

Score = Callable[..., ScoredResponse]

NAMES = "SELECT name FROM emp"
IDS = "SELECT id FROM emp"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"


def block(sql: str) -> str:
    return f"```sql\n{sql}\n```"


def form(sql: str) -> str:
    return f"<reasoning>so</reasoning>\n<answer>\n{block(sql)}\n</answer>"


# gold, response, format, EX, QATCH, status
CASES = {
    "same query": (NAMES, form(NAMES), 1, 1, 1.0, "ok"),
    "white space at the ends": (NAMES, f"\n {form(NAMES)}\n\n", 1, 1, 1.0, "ok"),
    "no space between": (NAMES, form(NAMES).replace("\n<answer>", "<answer>"), 1, 1, 1.0, "ok"),
    "upper case": (NAMES, form(NAMES).replace("reasoning", "REASONING").replace("answer", "Answer"), 1, 1, 1.0, "ok"),
    "a thinking model's tag": (NAMES, form(NAMES).replace("reasoning", "think"), 1, 1, 1.0, "ok"),
    "empty thought": (NAMES, form(NAMES).replace(">so<", "><"), 1, 1, 1.0, "ok"),
    "mismatched tags": (NAMES, form(NAMES).replace("</reasoning", "</think"), 0, 1, 1.0, "ok"),
    "text before": (NAMES, "So: " + form(NAMES), 0, 1, 1.0, "ok"),
    "text between": (NAMES, form(NAMES).replace("\n<answer>", "\nso <answer>"), 0, 1, 1.0, "ok"),
    "text after": (NAMES, form(NAMES) + " Done.", 0, 1, 1.0, "ok"),
    "no reasoning": (NAMES, f"<answer>{block(NAMES)}</answer>", 0, 1, 1.0, "ok"),
    "the last answer": (NAMES, f"{form(IDS)}<answer>{block(NAMES)}</answer>", 0, 1, 1.0, "ok"),
    "no answer: the whole text": (NAMES, f"<reasoning>so</reasoning>{block(NAMES)}", 0, 1, 1.0, "ok"),
    "an unclosed answer": (NAMES, form(NAMES).removesuffix("</answer>"), 0, 1, 1.0, "ok"),
    "the last block": (NAMES, form(IDS).replace("</a", f"{block(NAMES)}</a"), 1, 1, 1.0, "ok"),
    "fence in upper case": (NAMES, form(NAMES).replace("```sql", "```SQL"), 1, 1, 1.0, "ok"),
    "a bare fence": (NAMES, form(NAMES).replace("```sql", "```"), 1, 1, 1.0, "ok"),
    "a sql fence before a bare one": (NAMES, form(NAMES).replace("</a", f"```\n{IDS}\n```</a"), 1, 1, 1.0, "ok"),
    "no fence": (NAMES, f"<reasoning>so</reasoning><answer> `{NAMES}` </answer>", 1, 1, 1.0, "ok"),
    "text without tags": (NAMES, NAMES, 0, 1, 1.0, "ok"),
    "columns in another order, row by row": (
        "SELECT id, name FROM emp", form("SELECT name, id FROM emp"), 1, 1, 1.0, "ok"
    ),
    "rows in another order": (NAMES, form("SELECT name FROM emp ORDER BY 1"), 1, 1, 1.0, "ok"),
    "missing duplicates": (NAMES, form("SELECT DISTINCT name FROM emp"), 1, 0, (1 + 1 + 3 / 4) / 3, "ok"),
    "both empty": ("SELECT 1 WHERE 0", form("SELECT 1, 2 WHERE 0"), 1, 1, 1.0, "ok"),
    "surplus column": (NAMES, form("SELECT name, id FROM emp"), 1, 0, (3 / 7 + 1 + 1) / 3, "ok"),
    "missing column": ("SELECT name, id FROM emp", form(NAMES), 1, 0, (1 + 3 / 7 + 1) / 3, "ok"),
    "only the count is right": (NAMES, form(IDS), 1, 0, 1 / 3, "ok"),
    "the same without the form": (NAMES, NAMES.replace("name", "id"), 0, 0, 1 / 3, "ok"),
    "few right cells": (NAMES, form("SELECT n FROM hits LIMIT 80"), 1, 0, 4 / 80 / 3, "ok"),
    "the same, without the form": (NAMES, "SELECT n FROM hits LIMIT 80", 0, 0, 4 / 80 / 3, "ok"),
    "empty": (NAMES, form("SELECT name FROM emp WHERE 0"), 1, 0, 0.0, "ok"),
    "empty without the form": (NAMES, "SELECT name FROM emp WHERE 0", 0, 0, 0.0, "ok"),
    "syntax error": (NAMES, form("SELEC name FROM emp"), 1, 0, 0.0, "syntax_error"),
    "syntax error without the form": (NAMES, "I do not know.", 0, 0, 0.0, "syntax_error"),
    "no such table": (NAMES, form("SELECT name FROM emps"), 1, 0, 0.0, "schema_error"),
    "endless": (NAMES, form(ENDLESS), 1, 0, 0.0, "timeout"),
    "over the row limit": (NAMES, form("SELECT a.n FROM hits a, hits b"), 1, 0, 0.0, "too_large"),
    "an empty answer": (NAMES, "<reasoning>so</reasoning><answer></answer>", 1, 0, 0.0, "no_sql"),
    "nothing": (NAMES, " \n", 0, 0, 0.0, "no_sql"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text_to_reward(name: str, score: Score) -> None:
    gold, text, well_formed, correct, partial, status = CASES[name]
    gate = 0.0 if status != "ok" else partial if partial > 0.1 else 0.1 * well_formed
    totals = {
        "think2sql": gate,
        "think2sql_exfm": 0.95 * correct + 0.05 * well_formed,
        "think2sql_qafm": 0.95 * partial + 0.05 * well_formed,
    }
    for recipe, total in totals.items():
        scored = score(recipe, gold, text)
        assert scored.status == status, recipe
        assert scored.reward.total == pytest.approx(total, abs=1e-12), recipe
        assert scored.reward.parts == {
            "correct": float(correct),
            "executes": float(status == "ok"),
            "format": float(well_formed),
            "partial": pytest.approx(partial),
        }


def test_failing_gold_earns_nothing_and_is_dropped(score: Score) -> None:
    lost = "SELECT lost FROM emp"
    for name, paid in (("think2sql", 0.0), ("think2sql_exfm", 0.05), ("think2sql_qafm", 0.05)):
        scored = score(name, lost, form(lost))
        assert (scored.reward.total, scored.gold_status, scored.trusted) == (pytest.approx(paid), "schema_error", False)


def test_best_of_several_golds_counts(score: Score) -> None:
    assert score("think2sql", (IDS, NAMES), form(NAMES)).reward.total == 1.0


def test_open_tag_of_the_prompt_belongs_to_the_answer(score: Score) -> None:
    text = form(NAMES).removeprefix("<reasoning>")
    assert [score("think2sql", NAMES, text, opening_tag=tag).well_formed for tag in ("", "<reasoning>")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(("qatch", "paid"), [(0.0, 0.1), (0.1, 0.1), (0.11, 0.11), (0.05, 0.1), (1.0, 1.0)])
def test_gate(qatch: float, paid: float) -> None:
    row = ScoreRow("ok", "ok", {"refined": 0.0, "qatch": qatch})
    assert gate_reward(read_think2sql(form(NAMES)), row).total == pytest.approx(paid)
    without = gate_reward(read_think2sql(NAMES), row).total
    assert without == pytest.approx(paid if qatch > 0.1 else 0.0)


# text, SQL, thought
READINGS = {
    "language word of another kind": ("<answer>```sqlite\nSELECT 1\n```</answer>", "SELECT 1", ""),
    "bare fence on one line": ("<answer>```SELECT 1```</answer>", "SELECT 1", ""),
    "the last bare fence": ("```\nSELECT 1\n``` or ```\nSELECT 2\n```", "SELECT 2", ""),
    "a sql fence of any case before a bare one": ("```SQL\nSELECT 1\n``` or ```\nSELECT 2\n```", "SELECT 1", ""),
    "an open fence is text": ("<answer>```sql\nSELECT 1</answer>", "sql\nSELECT 1", ""),
    "one backtick": ("<answer>`SELECT 1`</answer>", "SELECT 1", ""),
    "tags in another case": ("<ANSWER>SELECT 1</Answer>", "SELECT 1", ""),
    "an answer inside the thought": (
        "<think><answer>a</answer></think><answer>SELECT 1</answer>", "SELECT 1", "<answer>a</answer>"
    ),
    "an answer in an answer": ("<think>t</think><answer>a <answer>SELECT 1</answer></answer>", "SELECT 1", ""),
    "a thought ends at its first closing tag": ("<think>a</think>b</think><answer>SELECT 1</answer>", "SELECT 1", ""),
    "nothing": ("", None, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", READINGS)
def test_position_of_the_sql(name: str) -> None:
    text, sql, think = READINGS[name]
    parsed = read_think2sql(text)
    assert (parsed.sql, parsed.think) == (sql, think)
    assert parsed.well_formed == bool(think)
