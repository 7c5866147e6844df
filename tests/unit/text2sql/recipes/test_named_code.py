"""A user's recipe is named by its location like any recipe; a run's folder alone does not execute it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import EvaluateConfig, TrainConfig, load_config, to_yaml
from jaxrl_sql.runtime.folder import load_resumed_config
from jaxrl_sql.runtime.model_locator import defaults_for
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[3] / "small.yaml"

OWN = f"{Path(__file__).parents[4] / 'docs' / 'own_recipe.py'}:MINE"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "config.yaml").write_text(
        to_yaml(load_config(TrainConfig, SMALL, [f"recipe={OWN}", f"run.dir={tmp_path}"]))
    )
    return tmp_path


def test_recipe_is_loaded_from_its_file_or_module() -> None:
    mine = find_recipe(OWN)
    assert (mine.name, mine.rules) == ("mine", ("bird", "qatch"))
    assert find_recipe(OWN) is mine
    assert find_recipe("jaxrl_sql.text2sql.recipes.arctic:ARCTIC") is find_recipe("arctic")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:MINE", r"recipe='nowhere.py:MINE' cannot be imported: .*nowhere.py"),
        ("no.such.module:MINE", "cannot be imported: No module named 'no'"),
        (OWN.replace("MINE", "THEIRS"), r"'THEIRS' is not a Recipe of .*own_recipe.py \(MINE\)"),
        (":MINE", "cannot be imported"),
        ("mine", "nor FILE.py:NAME of your own recipe"),
    ],
)
def test_object_that_is_no_recipe_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        find_recipe(name)
    assert "\n" not in str(caught.value)


def test_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("MINE = (")
    with pytest.raises(InputError, match=r"mine.py:MINE' cannot be imported: .*was never closed"):
        find_recipe(f"{tmp_path / 'mine.py'}:MINE")


def test_model_does_not_load_a_recipe_named_only_by_its_run(run: Path) -> None:
    for arguments in (run, run / "model"):
        with pytest.raises(InputError, match=f"custom recipe.*recipe={OWN}"):
            load_config(EvaluateConfig, None, (), defaults_for(str(arguments)))
    defaults = defaults_for(str(run))
    assert load_config(EvaluateConfig, None, [f"recipe={OWN}"], defaults).recipe == OWN
    assert load_config(EvaluateConfig, None, (), defaults, {"recipe": OWN}).recipe == OWN
    assert load_config(EvaluateConfig, None, ["recipe=paverl"], defaults).recipe == "paverl"
    (run / "asked.yaml").write_text(f"recipe: {OWN}\n")
    assert load_config(EvaluateConfig, run / "asked.yaml", (), defaults).recipe == OWN


def test_run_resumes_only_if_its_recipe_is_named_again(run: Path) -> None:
    with pytest.raises(InputError, match=f"recipe={OWN}"):
        load_resumed_config(TrainConfig, run, ["run.display=none"])
    config = load_resumed_config(TrainConfig, run, [f"recipe={OWN}"])
    assert (config.recipe, config.run.resume, config.run.dir) == (OWN, True, str(run))
