"""SQL-R1: rewards for the format, then execution, then the result, and for the length of thought and answer.

Results are compared by the rule `test_suite`: equal rows in some permutation of the columns, as in Spider's script, on
every database of the question's test suite (variants of its database with other rows).
"""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import (
    ParsedResponse,
    find_last_enclosed,
    ignore_tags_in_sql,
    policy_text,
    sql_blocks,
)
from jaxrl_sql.types import Response, Reward

RULE = "test_suite"
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FULL_LENGTH = 2048  # characters of thought and answer that earn the whole length reward


@ignore_tags_in_sql
def read_sql_r1(response: Response) -> ParsedResponse:
    """Parse the thought, the answer and the SQL, which is the last non-empty ```sql block (lower case) in the answer.

    The format is right iff each of the four tags occurs exactly once, in order, and the answer contains such a block.
    With a wrong format, the last block of the last answer, or else of the whole text, is still extracted: it gets no
    reward, but evaluation may use it.
    """
    text = policy_text(response)
    think, answer = find_last_enclosed(text, "<think>", "</think>"), find_last_enclosed(text, "<answer>", "</answer>")
    positions = [text.find(tag) for tag in _TAGS]
    in_order = all(text.count(tag) == 1 for tag in _TAGS) and positions == sorted(positions)
    blocks = [block for block in sql_blocks(answer) if block]
    candidates = blocks or [block for block in sql_blocks(text) if block]
    return ParsedResponse(candidates[-1] if candidates else None, in_order and bool(blocks), think, answer)


def sql_r1_reward(parsed: ParsedResponse, row: ScoreRow, *, rule: str = RULE, without: str = "") -> Reward:
    """Return -1 for a wrong format or a failed query, 0 for a wrong result, and 6 plus `length_part` for a match.

    The paper's sum is `format` (1 or -1) + `execution` (2 or -2) + `result` (3 or -3) + `length`. A term is 0 if an
    earlier term is negative. `rule` is the rule that compares results. `without` is the name of a term to omit, as in
    the paper's ablation; the other terms do not change.
    """
    executes, correct = row.executes, row.matches(rule)
    runs = parsed.well_formed and executes
    length = length_part(parsed) if runs and correct else 0.0
    terms = {
        "format": 1.0 if parsed.well_formed else -1.0,
        "execution": (2.0 if executes else -2.0) if parsed.well_formed else 0.0,
        "result": (3.0 if correct else -3.0) if runs else 0.0,
        "length": length,
    }
    total = sum(value for name, value in terms.items() if name != without)
    parts = {"correct": correct, "executes": executes, "format": parsed.well_formed, "length": length}
    return Reward(total, {name: float(value) for name, value in parts.items()})


def length_part(parsed: ParsedResponse) -> float:
    """Return the reward for length: min(1, (thought + answer) / 2048) / 2 + SQL / answer, in characters; at most 1.5.

    Thought and answer are stripped. White space in the SQL is collapsed for this count only.
    """
    length_share = min(1.0, (len(parsed.think) + len(parsed.answer)) / _FULL_LENGTH)
    sql = " ".join((parsed.sql or "").split())
    return 0.5 * length_share + (len(sql) / len(parsed.answer) if parsed.answer else 0.0)
