"""Train with your own recipe: `python docs/own_recipe.py --config configs/arctic-tiny.yaml run.dir=runs/mine`.

Every command takes the recipe by its path, `recipe=docs/own_recipe.py:MINE`. A run stores the path for later commands.

The model writes its query on a separate line after `SQL:`, after any other text. Four fifths of the reward are the
share of the gold's cells in the result (QATCH); the last fifth requires a result equal to the gold's.
"""

from __future__ import annotations

import sys

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.recipes import RECIPES, Observe, Recipe
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, policy_text
from jaxrl_sql.types import Example, Response, Reward


def respond(example: Example, _observe: Observe | None) -> Response:
    """Write the demonstration of supervised steps: the thought, then the query in the form that `read` accepts."""
    return f"{example.reasoning}\nSQL: {example.target_sql}"


def read(response: Response) -> ParsedResponse:
    """Extract the query; the form is valid if there is exactly one."""
    think, mark, sql = policy_text(response).partition("\nSQL:")
    return ParsedResponse(sql.strip() or None, well_formed=bool(mark) and "\nSQL:" not in sql, think=think)


def reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 0 for an invalid form; the mean of each part is logged by name."""
    correct, partial = float(row.matches("bird")), row.value("qatch")
    total = 0.2 * correct + 0.8 * partial if parsed.well_formed else 0.0
    return Reward(total, {"correct": correct, "partial": partial, "format": float(parsed.well_formed)})


MINE = Recipe(
    name="mine",
    schema=RECIPES["arctic"].schema,  # a chat prompt has the content of Arctic's
    instruction="Think, then write `SQL:` and the query on a line of its own.",
    hint="Think, then SQL:",
    respond=respond,
    read=read,
    rules=("bird", "qatch"),
    reward=reward,
)

if __name__ == "__main__":
    from jaxrl_sql.commands.train import main

    # No model writes this form yet, and other answers get no reward, so supervised steps come first.
    taught = ["sft.steps=60", "sft.databases=4", "sft.questions=12", "sft.optim.lr=2.0e-3", "sft.optim.warmup_steps=10"]
    sys.exit(main(sys.argv[1:] and [f"recipe={__file__}:MINE", *taught, *sys.argv[1:]]))
