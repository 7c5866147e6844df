"""Think2SQL: a dense reward (QATCH) gated by execution and format; variants mix QATCH or accuracy with the format.

QATCH is a partial score of a result: the mean of its cell precision, its cell recall and the ratio of the row counts.
Two variants have the rewards of Arctic and SQL-R1 in this system's answer format (Table 2 of its paper).
"""

from __future__ import annotations

from functools import partial

from jaxrl_sql.text2sql.prompts.dialects import target_sql
from jaxrl_sql.text2sql.recipes.forms import thought_and_answer
from jaxrl_sql.text2sql.recipes.recipe import Observe, Recipe
from jaxrl_sql.text2sql.rewards.sql_r1 import sql_r1_reward
from jaxrl_sql.text2sql.rewards.think2sql import (
    RULES,
    exfm_reward,
    gate_reward,
    qafm_reward,
    read_think2sql,
    sparse_reward,
)
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.types import Example

_INSTRUCTION = (
    "Reason step by step between <reasoning> and </reasoning>. Then write the query between <answer> and </answer>, "
    "in a code block that begins with ```sql and ends with ```. Write nothing else."
)
_THINKING_INSTRUCTION = (
    "After your thought, write the query between <answer> and </answer>, in a code block that begins with ```sql and "
    "ends with ```. Write nothing else."
)


def _respond(example: Example, _observe: Observe | None) -> str:
    return thought_and_answer(example.reasoning, target_sql(example), "reasoning")


THINK2SQL = Recipe(
    name="think2sql",
    template="think2sql",
    schema=RENDERERS["omnisql"],
    instruction=_INSTRUCTION,
    hint="Reason, then answer in SQL:",
    respond=_respond,
    read=read_think2sql,
    rules=RULES,
    reward=gate_reward,
    thinking_instruction=_THINKING_INSTRUCTION,
    eval_rule="refined",
)
THINK2SQL_EXFM = THINK2SQL._replace(name="think2sql_exfm", reward=exfm_reward)
THINK2SQL_QAFM = THINK2SQL._replace(name="think2sql_qafm", reward=qafm_reward)
THINK2SQL_ARCTIC = THINK2SQL._replace(name="think2sql_arctic", reward=sparse_reward)
THINK2SQL_SQL_R1 = THINK2SQL._replace(name="think2sql_sql_r1", reward=partial(sql_r1_reward, rule="refined"))
