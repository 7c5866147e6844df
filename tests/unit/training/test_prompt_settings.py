"""A model's folder records its prompt settings, also after it is copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jaxrl_sql.config import EvaluateConfig, TrainConfig, load_config, to_yaml
from jaxrl_sql.runtime.model_locator import defaults_for, find_model, find_trained, read_trained
from jaxrl_sql.training.model_card import save_prompt_settings
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

TEMPLATE = "{% block user %}{{ schema }}\nAsked: {{ question }}{% endblock %}"


def trained(run: Path, *overrides: str) -> Path:
    """Write a run's configuration and its model's record; return the model's folder."""
    (run / "model").mkdir(parents=True)
    text = to_yaml(load_config(TrainConfig, SMALL, [f"run.dir={run}", *overrides]))
    (run / "config.yaml").write_text(text, encoding="utf-8")
    save_prompt_settings(run / "model", read_trained(run / "config.yaml"))
    return run / "model"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [
            "recipe=skyrl_sql", "data.prompt=tagged", "data.schema=ddl", "data.tokenizer.path=gone",
            "data.retrieval.top_k=7", "data.max_prompt_tokens=900", "sampling.turns=4",
            "sampling.max_total_tokens=700", "sampling.stop=[END]",
            "validation.sampling.max_new_tokens=200", "model.dtype=bfloat16",
            "data.dir=/of/this/machine", "data.chat.date=2024-02-09",
        ],
    ],
)  # fmt: skip
def test_copied_model_uses_its_runs_settings(overrides: list[str], tmp_path: Path) -> None:
    model = trained(tmp_path / "run", *overrides)
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    assert find_model(str(copy)) == (copy, None), "the run's folder is absent"
    of_run, of_copy = defaults_for(str(tmp_path / "run")), defaults_for(str(copy))
    assert of_copy.pop("model") == of_run.pop("model") | {"checkpoint": str(copy)}
    assert of_copy == of_run
    assert str(tmp_path) not in (copy / "jaxrl_sql.yaml").read_text()
    assert "/of/this" not in (copy / "jaxrl_sql.yaml").read_text()


def test_paths_are_recorded_without_their_parents(tmp_path: Path) -> None:
    shown = ("data.shots=2", "data.dir=/of/this/machine/spider", "data.select.include_ids=/of/this/machine/chosen.txt")
    meant = ("data.retrieval.top_k=5", "data.retrieval.synonyms=/of/this/machine/vectors")
    model = trained(tmp_path / "run", *shown, *meant)
    assert "/of/this" not in (model / "jaxrl_sql.yaml").read_text()
    trained_model = find_trained(str(shutil.copytree(model, tmp_path / "elsewhere")))[1]
    assert trained_model is not None
    assert (trained_model.data.dir, trained_model.data.select.include_ids, trained_model.data.retrieval.synonyms) == (
        "spider",
        "chosen.txt",
        "vectors",
    )


def test_users_template_is_copied_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    model = trained(tmp_path / "run", "data.prompt=chat", f"data.chat.template={tmp_path}/mine.jinja")
    (tmp_path / "mine.jinja").unlink()
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    trained_model = find_trained(str(copy))[1]
    assert trained_model is not None
    assert Path(trained_model.data.chat.template).read_text() == TEMPLATE
    by_option = load_config(EvaluateConfig, copy / "jaxrl_sql.yaml", ["model.checkpoint=x"], is_checked=False)
    assert by_option.data.chat.template == trained_model.data.chat.template, "relative to the file, not to this folder"
    save_prompt_settings(Path(shutil.copytree(copy, tmp_path / "again")), trained_model)
    assert (tmp_path / "again/prompt.jinja").read_text() == TEMPLATE
    ours = trained(tmp_path / "other", "data.prompt=chat", "data.chat.template=generic")
    assert not (ours / "prompt.jinja").exists()


def test_recipe_with_code_is_named_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit")
    model = trained(tmp_path / "run", f"recipe={tmp_path}/mine.py:MINE")
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    with pytest.raises(InputError, match=r"custom recipe.*recipe=mine\.py:MINE$"):
        load_config(EvaluateConfig, None, (), defaults_for(str(copy)))
    assert load_config(EvaluateConfig, None, ["recipe=arctic"], defaults_for(str(copy))).recipe == "arctic"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "jaxrl_sql.yaml").write_text("data: {promt: chat}\n")
    with pytest.raises(InputError, match=r"jaxrl_sql\.yaml: unknown key data\.promt; the nearest is data\.prompt"):
        defaults_for(str(tmp_path))
