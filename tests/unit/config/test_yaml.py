"""A configuration written as YAML reads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import TrainConfig, changed, load_config, to_yaml

SMALL = Path(__file__).parents[2] / "small.yaml"


def write(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_keeps_texts_that_yaml_could_read_otherwise(tmp_path: Path) -> None:
    texts = ["a\x85b", "1e3", "1_0", "\U0001f600", "a\u2028b", "yes", "~"]
    config = load_config(TrainConfig, SMALL, [{"data.hide": texts}])
    assert load_config(TrainConfig, write(tmp_path, to_yaml(config))).data.hide == texts


def test_yaml_of_a_config_reads_back_equal(tmp_path: Path) -> None:
    config = load_config(
        TrainConfig, SMALL, ["grpo.optim.lr=3e-7", "mesh.tensor=2", "data.evals=[x, y]", "run.resume=true"]
    )
    assert load_config(TrainConfig, write(tmp_path, to_yaml(config))) == config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12e3",
        "1_000",
        "0x1f",
        "null",
        "~",
        "yes",
        "010",
        "a: b",
        "# c",
        "'",
        '"',
        " x ",
        "2026-01-02",
        "é\u2028",
        "[a]",
    ],
)
def test_an_odd_text_reads_back_equal_from_the_file_of_a_run(text: str, tmp_path: Path) -> None:
    """A run whose command has such a value is not refused as another when it resumes."""
    config = changed(
        load_config(TrainConfig, SMALL),
        {"run.project": text, "data.select.include_ids": text, "data.evals": [text, "x"]},
    )
    assert load_config(TrainConfig, write(tmp_path, to_yaml(config))) == config
