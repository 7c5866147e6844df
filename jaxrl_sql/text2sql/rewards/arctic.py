"""Arctic-Text2SQL-R1: where the SQL stands, and 1 for a right result, 0.1 for a query that runs, 0 for the rest.

A result over the row cap has the status `too_large`: it did not run within the limits and is never equal to anything.
"""

from __future__ import annotations

import json
import re

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, bare_blocks, hiding_tags, last_enclosed, said, sql_blocks
from jaxrl_sql.types import Response, Reward

RULE = "bird"
_EXECUTES = 0.1
_MIN_BLOCK = 6
_SELECT = re.compile(r"\bselect\b", re.IGNORECASE)
_UPPER_SELECT = re.compile(r"\bSELECT\b")
_RAW_END = re.compile(r"\n[ \t\r]*\n|</answer>")


@hiding_tags
def read_arctic(response: Response) -> ParsedResponse:
    """Find the SQL of a response in Arctic-Text2SQL-R1's way.

    Only what follows the first `</think>` counts, or everything when there is none (so it does not matter whether the
    opening tag stood in the prompt). The first of these that is there: the last closed ```sql block of more than 6
    characters; the last other closed fence that contains SELECT, without its language word; the `sql` of the last JSON
    object that has one; raw text from the first SELECT to a blank line or `</answer>`.

    Left open by the paper, decided here: SELECT is found in any case, in raw text first in upper case (prose selects,
    too); a fence that holds a JSON object is read as one;
    raw text begins at SELECT even inside WITH, so a common table expression needs a fence. The form, which earns
    nothing, is right when the thought is closed once and one closed answer holds a block.
    """
    text = said(response)
    head, tag, tail = text.partition("</think>")
    rest = tail if tag else head
    answer = last_enclosed(rest, "<answer>", "</answer>")
    tags = ("</think>", "<answer>", "</answer>")
    well_formed = all(text.count(one) == 1 for one in tags) and any(sql_blocks(answer))
    blocks = [block for block in sql_blocks(rest) if len(block) > _MIN_BLOCK]
    sql = blocks[-1] if blocks else _last_bare_select(rest) or _last_json_sql(rest) or _raw_select(rest)
    think = head.strip().removeprefix("<think>").strip() if tag else ""
    return ParsedResponse(sql, well_formed, think, answer)


def _last_bare_select(text: str) -> str | None:
    found = [block for block in bare_blocks(text) if _SELECT.search(block) and not block.startswith("{")]
    return found[-1] if found else None


def _last_json_sql(text: str) -> str | None:
    decoder = json.JSONDecoder()
    found = None
    start = text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, or too deep a nesting
            end = start + 1
        else:
            sql = value.get("sql")
            if isinstance(sql, str) and sql.strip():
                found = sql.strip()
        start = text.find("{", end)
    return found


def _raw_select(text: str) -> str | None:
    start = _UPPER_SELECT.search(text) or _SELECT.search(text)
    if start is None:
        return None
    return _RAW_END.split(text[start.start() :], maxsplit=1)[0].strip()


def arctic_reward(reading: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 1 / 0.1 / 0 with parts `correct`, `executes` and `format` (each 0 or 1; the form earns nothing)."""
    executes, correct = row.executes, row.matches(RULE)
    total = 1.0 if correct else _EXECUTES if executes else 0.0
    return Reward(total, {"correct": float(correct), "executes": float(executes), "format": float(reading.well_formed)})
