"""PaVeRL-SQL: ten times the share of the gold result that was found, a half for a query that finds none of it."""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, hiding_tags, said, sql_blocks
from jaxrl_sql.types import Response, Reward

RULE = "paverl"
_MIN_BLOCK = 16
_EXECUTES = 0.5
_FULL = 10.0


@hiding_tags
def read_paverl(response: Response) -> ParsedResponse:
    """Find the SQL: the last closed ```sql block, if it has at least 16 characters (stripped); else there is none.

    The form is right when there is such a block; the thought stands before the first.
    """
    text = said(response)
    blocks = sql_blocks(text)
    sql = blocks[-1] if blocks and len(blocks[-1]) >= _MIN_BLOCK else None
    return ParsedResponse(sql, sql is not None, text.partition("```sql")[0].strip(), text.strip())


def paverl_reward(reading: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 0 for a query that fails, 0.5 for one that finds nothing of the gold, else 10 times what it finds.

    What it finds is `partial`, between 0 and 1; `correct` is all of it. As the paper has it, the reward is not
    monotone: one of 25 columns earns 0.4, less than none of them.
    """
    partial = row.value(RULE)
    return _paid(_FULL * partial if partial > 0 else _EXECUTES, reading, row)


def monotone_reward(reading: ParsedResponse, row: ScoreRow) -> Reward:
    """Return the same, but for a query that runs never less than finding nothing earns: 0.5."""
    return _paid(max(_EXECUTES, _FULL * row.value(RULE)), reading, row)


def _paid(ran: float, reading: ParsedResponse, row: ScoreRow) -> Reward:
    executes, partial = row.executes, row.value(RULE)
    total = ran if executes else 0.0
    parts = {"correct": partial == 1.0, "executes": executes, "format": reading.well_formed, "partial": partial}
    return Reward(total, {name: float(value) for name, value in parts.items()})
