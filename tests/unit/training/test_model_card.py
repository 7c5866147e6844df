"""The card of a model trained in several runs names the first run's base."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxrl_sql.config import TrainConfig, load_config, to_yaml
from jaxrl_sql.training.model_card import write_card

SMALL = Path(__file__).parents[2] / "small.yaml"


def make_run(folder: Path, base: Path) -> Path:
    """Write the files of a run that a card reads; return the model's folder."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "config.yaml").write_text(f"model: {{checkpoint: '{base}'}}\ndata: {{dir: here}}\nsft: {{steps: 3}}\n")
    return folder / "model"


def card_of(run: Path) -> str:
    return write_card(run / "model", run).read_text()


@pytest.mark.parametrize(("licence", "named"), [("gemma", "gemma"), ("gemma\nevil: true", "other")])
def test_card_inherits_the_licence_of_a_gguf_base(tmp_path: Path, licence: str, named: str) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "gemma3")
    writer.add_string("general.license", licence)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    make_run(tmp_path / "taught", tmp_path / "small.gguf")
    make_run(tmp_path / "better", tmp_path / "taught" / "model")
    text = card_of(tmp_path / "better")
    assert text.startswith(f"---\nlicense: {named}\n")
    assert "| base | taught, which was trained from small.gguf |" in text
    assert f"| licence of the base | {named if named == 'gemma' else 'it names none: ask its authors'} |" in text
    assert str(tmp_path) not in text


def test_card_of_a_missing_base_has_no_licence(tmp_path: Path) -> None:
    make_run(tmp_path / "better", tmp_path / "gone" / "model")
    text = card_of(tmp_path / "better")
    assert text.startswith("---\nlicense: other\n")
    assert "| base | gone |" in text


def test_card_reports_epochs_and_a_second_stage(tmp_path: Path) -> None:
    make_run(tmp_path / "run", tmp_path / "gone")
    overrides = ["sft.epochs=2", "grpo.steps=5", "second_stage.steps=7", "validation.every=1", "run.keep_best=1"]
    assert "| supervised steps | 3 |" in card_of(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(load_config(TrainConfig, SMALL, overrides)))
    text = card_of(tmp_path / "run")
    assert "| supervised steps | those of 2 epochs |" in text
    assert "| GRPO steps | 5, then 7 of a second stage |" in text


def test_card_of_a_supervised_run_has_no_settings_of_grpo(tmp_path: Path) -> None:
    make_run(tmp_path / "run", tmp_path / "gone")
    with_both = card_of(tmp_path / "run")
    assert " (GRPO), " in with_both
    config = tmp_path / "run/config.yaml"
    config.write_text(config.read_text() + "grpo: {steps: 0}\n")
    text = card_of(tmp_path / "run")
    assert "| GRPO steps | 0 |" in text
    assert " (supervised) |" in text
    assert "(GRPO)" not in text
    assert "algorithm" in with_both
    assert not any(name in text for name in ("algorithm", "prompts × answers"))
