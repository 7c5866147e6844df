"""PaVeRL-SQL: ten times the matched share of the gold result, and 0.5 for a query that matches none of it.

The share is the graded rule `paverl`: the share of the gold's rows times the share of its columns that were found.
"""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, ignore_tags_in_sql, policy_text, sql_blocks
from jaxrl_sql.types import Response, Reward

RULE = "paverl"
_MIN_BLOCK = 16  # characters of a block that counts as a query
_EXECUTES = 0.5  # the reward of a query that runs and matches nothing
_FULL = 10.0  # the reward of a full match


@ignore_tags_in_sql
def read_paverl(response: Response) -> ParsedResponse:
    """Parse a response: the SQL is the last closed ```sql block if it has at least 16 characters (stripped), else None.

    The format is right if there is SQL; the thought precedes the first block.
    """
    text = policy_text(response)
    blocks = sql_blocks(text)
    sql = blocks[-1] if blocks and len(blocks[-1]) >= _MIN_BLOCK else None
    return ParsedResponse(sql, sql is not None, text.partition("```sql")[0].strip(), text.strip())


def paverl_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 0 for a query that fails, 0.5 for one that matches nothing of the gold, else 10 times the matched share.

    The part `partial` is the share, between 0 and 1; `correct` is 1 for a full match. As in the paper, the reward is
    not monotone: a match of one of 25 columns has the reward 10 / 25 = 0.4, less than no match.
    """
    partial = row.value(RULE)
    return _make_reward(_FULL * partial if partial > 0 else _EXECUTES, parsed, row)


def monotone_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return the reward of `paverl_reward`, but at least 0.5 for a query that runs."""
    return _make_reward(max(_EXECUTES, _FULL * row.value(RULE)), parsed, row)


def _make_reward(reward_if_executes: float, parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return the reward with its parts; 0 if the query failed."""
    executes, partial = row.executes, row.value(RULE)
    total = reward_if_executes if executes else 0.0
    parts = {"correct": partial == 1.0, "executes": executes, "format": parsed.well_formed, "partial": partial}
    return Reward(total, {name: float(value) for name, value in parts.items()})
