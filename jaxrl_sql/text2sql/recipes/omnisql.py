"""OmniSQL (Li et al. 2025, arXiv:2503.02240): free reasoning and a code block.

The recipe evaluates OmniSQL's models or starts GRPO from them. They were trained with supervised learning only, so
GRPO uses Arctic's reward: 1 for a right result, 0.1 for a query that runs, else 0.
"""

from __future__ import annotations

from jaxrl_sql.text2sql.recipes.paverl import PAVERL
from jaxrl_sql.text2sql.rewards.arctic import RULE, arctic_reward
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, ignore_tags_in_sql, policy_text, sql_blocks
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.types import Response


@ignore_tags_in_sql
def read_omnisql(response: Response) -> ParsedResponse:
    """Parse a response: the SQL is the last closed ```sql block (None without one), the thought precedes the first."""
    text = policy_text(response)
    blocks = [block for block in sql_blocks(text) if block]
    thought = text.partition("```sql")[0].strip()
    # The format is right if there is a block.
    return ParsedResponse(blocks[-1] if blocks else None, bool(blocks), thought, text.strip())


OMNISQL = PAVERL._replace(
    name="omnisql",
    template="omnisql",
    schema=RENDERERS["omnisql"],
    read=read_omnisql,
    rules=(RULE,),
    reward=arctic_reward,
)
