"""SQL-R1: a sum of rewards for the format, the execution, the result and the length of the answer.

Results are compared by Spider's test-suite comparison. The released code also strips DISTINCT from both queries, which
rewards COUNT(a) for COUNT(DISTINCT a); here `strip_distinct` is off.
"""

from __future__ import annotations

from functools import partial

from jaxrl_sql.text2sql.prompts.dialects import target_sql
from jaxrl_sql.text2sql.recipes.forms import THINK_ANSWER, thought_and_answer
from jaxrl_sql.text2sql.recipes.recipe import Observe, Recipe
from jaxrl_sql.text2sql.rewards.sql_r1 import RULE, read_sql_r1, sql_r1_reward
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.types import Example


def _respond(example: Example, _observe: Observe | None) -> str:
    return thought_and_answer(example.reasoning, target_sql(example))


SQL_R1 = Recipe(
    name="sql_r1",
    template="sql_r1",
    schema=RENDERERS["omnisql"],
    instruction=THINK_ANSWER,
    hint="Think, then answer in SQL:",
    respond=_respond,
    read=read_sql_r1,
    rules=(RULE,),
    reward=sql_r1_reward,
    options={"strip_distinct": False},
    eval_rule=RULE,
)
SQL_R1_ABLATIONS = tuple(
    SQL_R1._replace(name=f"sql_r1_no_{term}", reward=partial(sql_r1_reward, without=term))
    for term in ("format", "execution", "result", "length")
)
"""The paper's ablations: each omits one of the reward's four terms."""
