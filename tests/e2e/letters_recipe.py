"""A recipe that rewards the first letters of answers, in which an untrained policy already differs.

For tests that need groups with unequal rewards from the first step.
"""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.types import Reward


def reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Reward up to 1 for the answer's first letters, plus 1 for executable SQL."""
    letters = sum(ord(letter) for letter in (parsed.sql or "")[:3]) % 5 / 4
    return Reward(letters + (row.pred_status == "ok"), {"letters": letters})


LETTERS = RECIPES["arctic"]._replace(name="letters", reward=reward)
