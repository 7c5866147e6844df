"""The rule that chooses the best checkpoint, by recipe, benchmark and setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.training.trainer import eval_rule
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"


def test_training_selects_the_best_checkpoint_by_the_rule_of_the_recipe() -> None:
    def rule(recipe: str, local: str = "bird", *overrides: str) -> str:
        return eval_rule(load_config(TrainConfig, SMALL, overrides).validation.rule, find_recipe(recipe), local)

    judged = {name: rule(name) for name in ("arctic", "sql_r1", "paverl", "think2sql", "skyrl_sql")}
    assert judged == {
        "arctic": "bird", "sql_r1": "test_suite", "paverl": "bird", "think2sql": "refined", "skyrl_sql": "bird"
    }  # fmt: skip
    assert [rule(name, "test_suite") for name in ("arctic", "paverl", "skyrl_sql")] == [
        "test_suite",
        "test_suite",
        "bird",
    ]
    assert [rule("think2sql", own_rule) for own_rule in ("spider2", "ehrsql")] == ["spider2", "ehrsql"]
    assert rule("think2sql", "spider2", "validation.rule=bird") == "bird"
    with pytest.raises(InputError, match="rules 'ex': there are"):
        rule("arctic", "bird", "validation.rule=ex")
