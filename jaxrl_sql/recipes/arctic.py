"""Arctic-Text2SQL-R1: execution is the only judge; 1 / 0.1 / 0 by BIRD's comparison."""

from __future__ import annotations

from jaxrl_sql.data.prompts import PROMPT_STYLES
from jaxrl_sql.recipes.recipe import Recipe
from jaxrl_sql.rewards.arctic import RULE, arctic_reward
from jaxrl_sql.rewards.extract import extract_arctic

ARCTIC = Recipe("arctic", PROMPT_STYLES["chat"], extract_arctic, (RULE,), arctic_reward)
