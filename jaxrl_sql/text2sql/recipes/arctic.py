"""Arctic-Text2SQL-R1: the reward depends on execution only.

It is 1 for a result that BIRD's comparison accepts, 0.1 for a query that runs, and 0 otherwise.
"""

from __future__ import annotations

from jaxrl_sql.text2sql.prompts.dialects import target_sql
from jaxrl_sql.text2sql.recipes.forms import THINK_ANSWER, add_fence, thought_and_answer
from jaxrl_sql.text2sql.recipes.recipe import Observe, Recipe
from jaxrl_sql.text2sql.rewards.arctic import RULE, arctic_reward, read_arctic
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.types import Example


def _respond(example: Example, _observe: Observe | None) -> str:
    """Return the supervised target; a question without reasoning gets an answer without a thought."""
    if example.reasoning:
        return thought_and_answer(example.reasoning, target_sql(example))
    return f"<answer>\n{add_fence(target_sql(example))}\n</answer>"


ARCTIC = Recipe(
    name="arctic",
    template="arctic",
    schema=RENDERERS["omnisql"],
    instruction=THINK_ANSWER,
    hint="Think, then answer in SQL:",
    respond=_respond,
    read=read_arctic,
    rules=(RULE,),
    reward=arctic_reward,
)
