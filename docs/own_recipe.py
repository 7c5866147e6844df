"""A recipe of one's own: `python docs/own_recipe.py --config configs/arctic-tiny.yaml run.dir=runs/mine`.

Every command takes it by its place, `recipe=docs/own_recipe.py:MINE`: a run keeps that, and is asked again by it.

The model writes its query after `SQL:` on a line of its own, after any other text, and is rewarded for the share
of the gold's cells that it found (QATCH), with a fifth kept for those whose result is exactly the gold's.
"""

from __future__ import annotations

import sys

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.recipes import RECIPES, Observe, Recipe
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, said
from jaxrl_sql.types import Example, Response, Reward


def respond(example: Example, _observe: Observe | None) -> Response:
    """Write what supervised learning imitates: the thought, then the query in the form that `read` looks for."""
    return f"{example.reasoning}\nSQL: {example.taught_sql}"


def read(response: Response) -> ParsedResponse:
    """Find the query; the form is right when it is there once."""
    think, mark, sql = said(response).partition("\nSQL:")
    return ParsedResponse(sql.strip() or None, well_formed=bool(mark) and "\nSQL:" not in sql, think=think)


def reward(reading: ParsedResponse, row: ScoreRow) -> Reward:
    """Pay nothing for a wrong form; the parts are logged by name, each with its mean."""
    correct, partial = float(row.matches("bird")), row.value("qatch")
    total = 0.2 * correct + 0.8 * partial if reading.well_formed else 0.0
    return Reward(total, {"correct": correct, "partial": partial, "format": float(reading.well_formed)})


MINE = Recipe(
    name="mine",
    schema=RECIPES["arctic"].schema,  # a chat prompt shows what Arctic's does
    instruction="Think, then write `SQL:` and the query on a line of its own.",
    hint="Think, then SQL:",
    respond=respond,
    read=read,
    rules=("bird", "qatch"),
    reward=reward,
)

if __name__ == "__main__":
    from jaxrl_sql.commands.train import main

    # No model writes this form yet, and answers without it get no reward: some supervised steps come first.
    taught = ["sft.steps=60", "sft.databases=4", "sft.questions=12", "sft.optim.lr=2.0e-3", "sft.optim.warmup_steps=10"]
    sys.exit(main(sys.argv[1:] and [f"recipe={__file__}:MINE", *taught, *sys.argv[1:]]))
