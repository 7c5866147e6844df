"""SkyRL-SQL: the model can query the database before it answers, within a budget of turns.

A turn of the policy ends with a query in `<sql>` tags, whose result the environment returns as an observation, or with
the final query in `<solution>` tags. Variants have one turn, no schema in the prompt, or a looser format.
"""

from __future__ import annotations

import re
from typing import Any

from jaxrl_sql.text2sql.env.executor import exploratory
from jaxrl_sql.text2sql.env.turns import SQL_STOPS, Environment, SqlTurns
from jaxrl_sql.text2sql.prompts.dialects import target_sql
from jaxrl_sql.text2sql.recipes.recipe import Observe, Recipe
from jaxrl_sql.text2sql.rewards.skyrl_sql import RULE, read_skyrl_sql, read_skyrl_sql_loose, skyrl_sql_reward
from jaxrl_sql.text2sql.schema import RENDERERS, quote_text, read_schema
from jaxrl_sql.types import Example, Response

# Sentences of the instruction; a single-turn recipe omits the first two, and a thinking model gets no `_THINK`.
_LOOP = (
    "You can ask the database before you answer, within a few turns. Write a query between <sql> and </sql>: it is run "
    "and its result given to you between <observation> and </observation>, with the number of turns that are left. "
    "PRAGMA look-ups of the schema work too. "
)
_LAST = "End when you know the answer, in the last turn at the latest. "
_SOLUTION = "Write the final query between <solution> and </solution>, as plain SQL without a code block."
_THINK = "Begin each turn with a thought between <think> and </think>. "
# Thoughts in the target dialogues.
_LOOK = "Look at the tables."
_CHECKED = "It runs and answers the question."


def _respond(example: Example, observe: Observe | None) -> Response:
    """Return a target dialogue that runs the query, gets its result, and answers with the same query.

    Without `observe`, that is in a single turn, the target answers directly.
    """
    thought, sql = f"<think>{example.reasoning}</think>\n", target_sql(example)
    solution = f"<solution>{sql}</solution>"
    if observe is None:
        return thought + solution
    return [
        ("assistant", f"{thought}<sql>{sql}</sql>"),
        ("environment", observe(sql)),
        ("assistant", f"<think>{_CHECKED}</think>\n{solution}"),
    ]


def _respond_by_looking_up(example: Example, observe: Observe | None) -> Response:
    """Return a target dialogue that looks up the definitions of the tables in the query, and then answers.

    In a single turn, the target answers directly. Other engines lack sqlite_master, so the target runs the query there.
    """
    if observe is None or example.dialect != "sqlite":
        return _respond(example, observe)
    sql = target_sql(example)
    # Tables whose name is a word of the query; a column's name may select a further table.
    identifiers = set(re.findall(r"\w+", sql.lower()))
    tables = [table.name for table in read_schema(example.db_path).tables if table.name.lower() in identifiers]
    names = ", ".join(map(quote_text, tables))
    look_up = f"SELECT sql FROM sqlite_master WHERE name IN ({names})"
    return [
        ("assistant", f"<think>{_LOOK}</think>\n<sql>{look_up}</sql>"),
        ("environment", observe(look_up)),
        ("assistant", f"<think>{example.reasoning}</think>\n<solution>{sql}</solution>"),
    ]


def _turns(executor: Any, example: Example, turns: int) -> Environment:
    """Return the environment of a dialogue; its queries have lower limits than a solution (`exploratory`)."""
    # An engine runs its own dialect; "sqlite" means that SQL is not translated.
    dialect = "sqlite" if example.engine_url else example.dialect
    return SqlTurns(executor, example.database, turns, exploratory(executor.limits), dialect)


SKYRL_SQL = Recipe(
    name="skyrl_sql",
    template="skyrl_sql",
    schema=RENDERERS["omnisql"],
    instruction=_LOOP + _THINK + _LAST + _SOLUTION,
    hint="Think, ask in SQL, then solve:",
    respond=_respond,
    read=read_skyrl_sql,
    rules=(RULE,),
    reward=skyrl_sql_reward,
    stops=SQL_STOPS,
    turns=_turns,
    thinking_instruction=_LOOP + _LAST + _SOLUTION,
    eval_rule=RULE,
)
SKYRL_SQL_LOOSE = SKYRL_SQL._replace(name="skyrl_sql_loose", read=read_skyrl_sql_loose)
SKYRL_SQL_NO_SCHEMA = SKYRL_SQL._replace(
    name="skyrl_sql_no_schema",
    template="skyrl_sql_no_schema",
    schema=RENDERERS["names_only"],
    respond=_respond_by_looking_up,
    hint="Think, look tables up in SQL, then solve:",
)
SKYRL_SQL_SINGLE = SKYRL_SQL._replace(
    name="skyrl_sql_single",
    template="skyrl_sql_single",
    instruction=_THINK + _SOLUTION,
    thinking_instruction=_SOLUTION,
    hint="Think, then solve:",
    stops=("</solution>",),
    turns=None,
)
