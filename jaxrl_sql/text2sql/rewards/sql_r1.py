"""SQL-R1: a format that must be right, then a query that runs, then its result, and something for a full thought."""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, hiding_tags, last_enclosed, said, sql_blocks
from jaxrl_sql.types import Response, Reward

RULE = "test_suite"
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FULL_LENGTH = 2048


@hiding_tags
def read_sql_r1(response: Response) -> ParsedResponse:
    """Find thought, answer and SQL: the last non-empty ```sql block (lower case) inside the answer.

    The form is right iff each of the four tags occurs exactly once, in order, and the answer holds such a block. Of a
    response whose form is wrong the last block of the last answer, or else of the whole text, is still read: it earns
    nothing, and evaluation may look at it.
    """
    text = said(response)
    think, answer = last_enclosed(text, "<think>", "</think>"), last_enclosed(text, "<answer>", "</answer>")
    places = [text.find(tag) for tag in _TAGS]
    in_order = all(text.count(tag) == 1 for tag in _TAGS) and places == sorted(places)
    blocks = [block for block in sql_blocks(answer) if block]
    found = blocks or [block for block in sql_blocks(text) if block]
    return ParsedResponse(found[-1] if found else None, in_order and bool(blocks), think, answer)


def sql_r1_reward(reading: ParsedResponse, row: ScoreRow) -> Reward:
    """Return -1 for a wrong form or a query that does not run, 0 for another result, 6 and the length part for a match.

    The paper's sum is format (1 or -1) + execution (2 or -2) + result (3 or -3) + length, of which the later ones are
    given only where the earlier are won.
    """
    executes, correct = row.executes, row.matches(RULE)
    length = length_part(reading) if reading.well_formed and correct else 0.0
    if not reading.well_formed:
        total = -1.0
    elif not executes:
        total = 1.0 - 2.0
    elif not correct:
        total = 1.0 + 2.0 - 3.0
    else:
        total = 1.0 + 2.0 + 3.0 + length
    parts = {"correct": correct, "executes": executes, "format": reading.well_formed, "length": length}
    return Reward(total, {name: float(value) for name, value in parts.items()})


def length_part(reading: ParsedResponse) -> float:
    """Return half the share of 2,048 characters that thought and answer fill, plus the share of SQL in the answer.

    Lengths are of the stripped texts; the SQL's white space is collapsed for this count alone. At most 1.5.
    """
    filled = min(1.0, (len(reading.think) + len(reading.answer)) / _FULL_LENGTH)
    sql = " ".join((reading.sql or "").split())
    return 0.5 * filled + (len(sql) / len(reading.answer) if reading.answer else 0.0)
