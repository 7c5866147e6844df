"""A recipe that rewards how answers begin: a policy that knows nothing yet differs in that.

For tests that need groups whose answers are rewarded unequally from the first step on.
"""

from __future__ import annotations

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.types import Reward


def reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Reward up to 1 by the answer's first letters, and 1 more for SQL that runs."""
    letters = sum(ord(letter) for letter in (parsed.sql or "")[:3]) % 5 / 4
    return Reward(letters + (row.pred_status == "ok"), {"letters": letters})


LETTERS = RECIPES["arctic"]._replace(name="letters", reward=reward)
