"""Model paths: a run or a model folder, and the prompt settings of its training."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import EvaluateConfig, TrainConfig, load_config
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.runtime.model_locator import (
    BENCHMARK_LIMITS,
    defaults_for,
    find_model,
    find_trained,
    prompt_differences,
    today,
    with_chat_date,
)
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/model").mkdir(parents=True)
    (tmp_path / "run/config.yaml").write_text(
        "recipe: skyrl_sql\ndata: {prompt: tagged, schema: ddl, tokenizer: {path: gone}}\n"
        "sampling: {turns: 4, max_total_tokens: 700, stop: [END]}\nvalidation: {sampling: {max_new_tokens: 200}}\n"
        "model: {dtype: bfloat16}\n"
    )
    return tmp_path / "run"


@pytest.mark.parametrize("inner", ["", "model"])
def test_run_config_provides_the_prompt_settings(run: Path, inner: str) -> None:
    config = load_config(EvaluateConfig, None, (), defaults_for(str(run / inner)))
    assert config.model.checkpoint == str(run / "model")
    assert (config.recipe, config.data.prompt, config.data.schema, config.data.tokenizer.path) == (
        "skyrl_sql", "tagged", "ddl", "",
    )  # fmt: skip
    sampling = config.evaluate.sampling
    assert (sampling.turns, sampling.max_total_tokens, sampling.max_new_tokens) == (4, 700, 200)
    assert (sampling.temperature, sampling.stop) == (0.0, ["END"])
    assert (config.evaluate.sampling.stop, config.model.dtype) == (["END"], "bfloat16")
    assert config.executor.vm_steps == BENCHMARK_LIMITS["vm_steps"]
    assert (
        load_config(EvaluateConfig, None, ["evaluate.sampling.turns=1", "recipe=arctic"], defaults_for(str(run))).recipe
        == "arctic"
    )


def test_model_without_a_run_gets_chat_prompts(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == (tmp_path, None)
    assert load_config(EvaluateConfig, None, (), defaults_for(str(tmp_path))).data.prompt == "chat"
    assert "model" not in defaults_for("")


def test_missing_model_is_rejected(run: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder or file$"):
        find_model(str(run / "nowhere"))
    with pytest.raises(InputError, match=f"no such folder or file; the nearest is {run}/model$"):
        find_model(str(run / "modle"))
    with pytest.raises(InputError, match=f"no such folder or file; the nearest is {run}/model$"):
        find_model(str(run.with_name(f"{run.name}x") / "model"))


def test_model_of_an_unfinished_run_is_its_newest_checkpoint(run: Path) -> None:
    (run / "model").rmdir()
    with pytest.raises(InputError, match="the run has no model/ yet; it is written at the run's end"):
        find_model(str(run))
    for step in ("4", "12"):
        (run / "checkpoints" / step).mkdir(parents=True)
    with pytest.raises(InputError, match=f"yet; `jaxrl-sql export {run} --step 12` writes that of the newest"):
        find_model(str(run))


def test_prompt_settings_that_differ_from_training_are_listed(run: Path) -> None:
    trained = find_trained(str(run))[1]
    assert trained is not None
    same = load_config(EvaluateConfig, None, ["executor.vm_steps=9"], defaults_for(str(run)))
    assert prompt_differences(same.recipe, same.data, trained) == []
    other = load_config(EvaluateConfig, None, ["data.schema=profile", "recipe=paverl"], defaults_for(str(run)))
    assert prompt_differences(other.recipe, other.data, trained) == [
        "recipe=paverl (trained with skyrl_sql)", "data.schema=profile (trained with ddl)",
    ]  # fmt: skip


def test_chat_date_comes_from_setting_journal_run_or_today(run: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"

    def date(*overrides: str) -> str:
        config = load_config(TrainConfig, SMALL, [f"model.checkpoint={run}", *overrides])
        return with_chat_date(config.data, config.model.checkpoint, journal).chat.date

    assert date("data.prompt=chat") == today()
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(settings.replace("data: {", "data: {chat: {date: 2024-02-09}, "))
    assert date("data.prompt=chat") == "2024-02-09"
    assert load_config(EvaluateConfig, None, (), defaults_for(str(run))).data.chat.date == "2024-02-09"
    with Journal(journal, {"data.chat.date": "2023-01-31"}):
        pass
    assert date("data.prompt=chat") == "2023-01-31"
    assert date("data.prompt=chat", "data.chat.date=2022-05-05") == "2022-05-05"
    assert date() == "", "a prompt without a chat has a date"


def test_config_file_overrides_defaults_and_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("recipe: paverl\nseed: 3\n")
    defaults = {"recipe": "sql_r1", "executor": {"vm_steps": 7}}
    config = load_config(EvaluateConfig, path, ["seed=4"], defaults, {"seed": 5})
    assert (config.recipe, config.seed, config.executor.vm_steps) == ("paverl", 5, 7)
    with pytest.raises(InputError, match=r"unknown key evaluate\.rulez"):
        load_config(TrainConfig, SMALL, (), None, {"evaluate": {"rulez": 1}})
