"""Arctic-Text2SQL-R1: SQL extraction, and the reward: 1 for a right result, 0.1 for a query that runs, else 0.

A result is right by the rule `bird`: its rows equal those of the gold query as sets, as in BIRD's script. A result over
the row limit has the status `too_large`: the query does not count as one that runs, and equals no other result.
"""

from __future__ import annotations

import json
import re

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import (
    ParsedResponse,
    fenced_blocks,
    find_last_enclosed,
    ignore_tags_in_sql,
    policy_text,
    sql_blocks,
)
from jaxrl_sql.types import Response, Reward

RULE = "bird"
"""The comparison of results: rows as sets, so duplicates and order do not count."""
_EXECUTES = 0.1  # the reward of a query that runs, with another result
_MIN_BLOCK = 6  # a fence must have more characters than this
_SELECT = re.compile(r"\bselect\b", re.IGNORECASE)
_UPPER_SELECT = re.compile(r"\bSELECT\b")
_RAW_END = re.compile(r"\n[ \t\r]*\n|</answer>")


@ignore_tags_in_sql
def read_arctic(response: Response) -> ParsedResponse:
    """Parse a response by Arctic-Text2SQL-R1's rules.

    Only the text after the first `</think>` counts, or all of it without that tag, so the opening tag may be in the
    prompt. The SQL is the first available of these:

    - The last closed ```sql block of more than 6 characters.
    - The last other closed fence that contains SELECT, without its language name.
    - The `sql` field of the last JSON object that has it.
    - Raw text from the first SELECT to a blank line or `</answer>`.

    The paper leaves some cases open. Here, SELECT matches in any case, in raw text first in upper case, because prose
    contains "select". A fence with a JSON object is read as JSON. Raw text starts at SELECT even inside WITH, so a
    common table expression needs a fence. The format, which has no reward, is right if the thought is closed once and
    the only closed answer contains a block.
    """
    text = policy_text(response)
    head, tag, tail = text.partition("</think>")
    after_thought = tail if tag else head
    answer = find_last_enclosed(after_thought, "<answer>", "</answer>")
    tags = ("</think>", "<answer>", "</answer>")
    well_formed = all(text.count(tag_name) == 1 for tag_name in tags) and any(sql_blocks(answer))
    blocks = [block for block in sql_blocks(after_thought) if len(block) > _MIN_BLOCK]
    sql = blocks[-1] if blocks else None
    sql = sql or _last_fenced_select(after_thought) or _last_json_sql(after_thought) or _raw_select(after_thought)
    think = head.strip().removeprefix("<think>").strip() if tag else ""
    return ParsedResponse(sql, well_formed, think, answer)


def _last_fenced_select(text: str) -> str | None:
    """Return the last fence of any language that contains SELECT and is not a JSON object."""
    blocks = [block for block in fenced_blocks(text) if _SELECT.search(block) and not block.startswith("{")]
    return blocks[-1] if blocks else None


def _last_json_sql(text: str) -> str | None:
    decoder = json.JSONDecoder()
    last_sql = None
    start = text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # not JSON, a number with thousands of digits, or too deep nesting
            end = start + 1
        else:
            sql = value.get("sql")
            if isinstance(sql, str) and sql.strip():
                last_sql = sql.strip()
        start = text.find("{", end)
    return last_sql


def _raw_select(text: str) -> str | None:
    start = _UPPER_SELECT.search(text) or _SELECT.search(text)
    if start is None:
        return None
    return _RAW_END.split(text[start.start() :], maxsplit=1)[0].strip()


def arctic_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 1 for a right result, 0.1 for another query that runs, else 0.

    The parts `correct`, `executes` and `format` are 0 or 1; the format does not change the reward.
    """
    executes, correct = row.executes, row.matches(RULE)
    total = 1.0 if correct else _EXECUTES if executes else 0.0
    return Reward(total, {"correct": float(correct), "executes": float(executes), "format": float(parsed.well_formed)})
