"""PaVeRL-SQL: free reasoning, a code block, and a reward for the matched share of the gold query's result."""

from __future__ import annotations

from jaxrl_sql.text2sql.prompts.dialects import target_sql
from jaxrl_sql.text2sql.recipes.forms import add_fence
from jaxrl_sql.text2sql.recipes.recipe import Observe, Recipe
from jaxrl_sql.text2sql.rewards.paverl import RULE, monotone_reward, paverl_reward, read_paverl
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.types import Example

_INSTRUCTION = (
    "Explain your reasoning, then end with the query in a code block that begins with ```sql and ends with ```."
)


def _respond(example: Example, _observe: Observe | None) -> str:
    thought = f"{example.reasoning}\n" if example.reasoning else ""
    return thought + add_fence(target_sql(example))


PAVERL = Recipe(
    name="paverl",
    template="paverl",
    schema=RENDERERS["profile"],
    instruction=_INSTRUCTION,
    hint="Reason, then write SQL:",
    respond=_respond,
    read=read_paverl,
    rules=(RULE,),
    reward=paverl_reward,
)
PAVERL_MONOTONE = PAVERL._replace(name="paverl_monotone", reward=monotone_reward)
