"""OmniSQL (Li et al. 2025, arXiv:2503.02240): free thought and a code block, to ask its models and to start from them.

It was trained by supervised learning alone. A run of this recipe is rewarded as Arctic's: 1, 0.1 or 0.
"""

from __future__ import annotations

from jaxrl_sql.text2sql.recipes.paverl import PAVERL
from jaxrl_sql.text2sql.rewards.arctic import RULE, arctic_reward
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, hiding_tags, said, sql_blocks
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.types import Response


@hiding_tags
def read_omnisql(response: Response) -> ParsedResponse:
    """Find the SQL: the last closed ```sql block; without one there is none. The thought stands before the first."""
    text = said(response)
    blocks = [block for block in sql_blocks(text) if block]
    thought = text.partition("```sql")[0].strip()
    return ParsedResponse(blocks[-1] if blocks else None, bool(blocks), thought, text.strip())


OMNISQL = PAVERL._replace(
    name="omnisql",
    template="omnisql",
    schema=RENDERERS["omnisql"],
    read=read_omnisql,
    rules=(RULE,),
    reward=arctic_reward,
)
