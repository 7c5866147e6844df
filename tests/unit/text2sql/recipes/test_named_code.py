"""A recipe of one's own is named by its place, wherever a recipe is; a run's folder alone does not have it run."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import EvaluateConfig, TrainConfig, load_config, to_yaml
from jaxrl_sql.runtime.folder import resumed_config
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


def test_it_is_read_from_its_file_or_module() -> None:
    mine = find_recipe(OWN)
    assert (mine.name, mine.rules) == ("mine", ("bird", "qatch"))
    assert find_recipe(OWN) is mine
    assert find_recipe("jaxrl_sql.text2sql.recipes.arctic:ARCTIC") is find_recipe("arctic")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.py:MINE", r"recipe='nowhere.py:MINE' cannot be imported: .*nowhere.py"),
        ("no.such.module:MINE", "cannot be imported: No module named 'no'"),
        (OWN.replace("MINE", "THEIRS"), r"'THEIRS' is no Recipe of .*own_recipe.py \(MINE\)"),
        (":MINE", "cannot be imported"),
        ("mine", "nor FILE.py:NAME of one of your own"),
    ],
)
def test_what_is_none_is_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        find_recipe(name)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("MINE = (")
    with pytest.raises(InputError, match=r"mine.py:MINE' cannot be imported: .*was never closed"):
        find_recipe(f"{tmp_path / 'mine.py'}:MINE")


def test_a_model_is_not_asked_by_a_recipe_that_its_run_alone_names(run: Path) -> None:
    for given in (run, run / "model"):
        with pytest.raises(InputError, match=f"custom recipe.*recipe={OWN}"):
            load_config(EvaluateConfig, None, (), defaults_for(str(given)))
    beneath = defaults_for(str(run))
    assert load_config(EvaluateConfig, None, [f"recipe={OWN}"], beneath).recipe == OWN
    assert load_config(EvaluateConfig, None, (), beneath, {"recipe": OWN}).recipe == OWN
    assert load_config(EvaluateConfig, None, ["recipe=paverl"], beneath).recipe == "paverl"
    (run / "asked.yaml").write_text(f"recipe: {OWN}\n")
    assert load_config(EvaluateConfig, run / "asked.yaml", (), beneath).recipe == OWN


def test_a_run_goes_on_only_by_the_recipe_that_is_named_again(run: Path) -> None:
    with pytest.raises(InputError, match=f"recipe={OWN}"):
        resumed_config(TrainConfig, run, ["run.display=none"])
    config = resumed_config(TrainConfig, run, [f"recipe={OWN}"])
    assert (config.recipe, config.run.resume, config.run.dir) == (OWN, True, str(run))
