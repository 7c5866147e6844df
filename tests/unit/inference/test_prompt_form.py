"""The prompt form: the chat template of the model if it has one, unless the configuration names another form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.inference.prompt_form import resolve_settings
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

START = Path(__file__).parents[3] / "configs" / "quickstart_start"
"""A model whose tokenizer has a chat template."""


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """Return a model whose tokenizer has no chat template."""
    folder = tmp_path / "base"
    shutil.copytree(START, folder)
    (folder / "chat_template.jinja").unlink()
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**fields, "chat_template": None}))
    return folder


def prompt_of(*overrides: str) -> str:
    return resolve_settings(load_config(TrainConfig, SMALL, overrides)).data.prompt


def test_model_with_a_chat_template_gets_chat_prompts() -> None:
    assert prompt_of(f"model.checkpoint={START}", "data.prompt=auto") == "chat"
    assert prompt_of(f"model.checkpoint={START}", "data.prompt=tagged") == "tagged"


def test_model_without_a_chat_template_gets_compact_prompts(base_model: Path) -> None:
    assert prompt_of(f"model.checkpoint={base_model}", "data.prompt=auto") == "compact"


def test_configured_tokenizer_decides_the_prompt_form(base_model: Path) -> None:
    assert prompt_of(f"model.checkpoint={base_model}", f"data.tokenizer.path={START}", "data.prompt=auto") == "chat"


def test_settings_incompatible_with_the_prompt_form_are_rejected(base_model: Path) -> None:
    turns = ("recipe=skyrl_sql", "sampling.turns=3", "sampling.max_total_tokens=900")
    assert prompt_of(f"model.checkpoint={START}", "data.prompt=auto", *turns) == "chat"
    with pytest.raises(InputError, match=r"several turns need data\.prompt=tagged or chat"):
        prompt_of(f"model.checkpoint={base_model}", "data.prompt=auto", *turns)


@pytest.mark.parametrize(("template", "prompt"), [("{{ messages }}", "chat"), ("", "compact")])
def test_gguf_file_decides_by_its_template(template: str, prompt: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3")
    if template:
        writer.add_string("tokenizer.chat_template", template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert prompt_of(f"model.checkpoint={tmp_path / 'model.gguf'}", "data.prompt=auto") == prompt


def test_folder_with_a_broken_tokenizer_gets_compact_prompts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert prompt_of(f"model.checkpoint={tmp_path}", "data.prompt=auto") == "compact"
