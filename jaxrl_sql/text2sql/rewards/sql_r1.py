"""SQL-R1: rewards for the format, then execution, then the result, and for the length of the thought."""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, find_last_enclosed, ignore_tags_in_sql, policy_text, sql_blocks
from jaxrl_sql.types import Response, Reward

RULE = "test_suite"
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FULL_LENGTH = 2048


@ignore_tags_in_sql
def read_sql_r1(response: Response) -> ParsedResponse:
    """Parse thought, answer and SQL, the last non-empty ```sql block (lower case) in the answer.

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
    """Return -1 for a wrong format or a failed query, 0 for a wrong result, and 6 plus the length part for a match.

    The paper's sum is `format` (1 or -1) + `execution` (2 or -2) + `result` (3 or -3) + `length`; a term is 0 if one of
    the earlier ones is negative. Results are equal by `rule`. `without` names a term to omit, as in the paper's
    ablation; the other terms do not change.
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
    """Return half the length of thought and answer relative to 2,048 characters, plus the share of SQL in the answer.

    Lengths are those of the stripped texts; the SQL's white space is collapsed for this count only. At most 1.5.
    """
    filled = min(1.0, (len(parsed.think) + len(parsed.answer)) / _FULL_LENGTH)
    sql = " ".join((parsed.sql or "").split())
    return 0.5 * filled + (len(sql) / len(parsed.answer) if parsed.answer else 0.0)
