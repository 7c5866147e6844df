"""A configuration written as YAML reads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import TrainConfig, load_config, replace_values, to_yaml

SMALL = Path(__file__).parents[2] / "small.yaml"


def write(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_quotes_ambiguous_strings(tmp_path: Path) -> None:
    texts = ["a\x85b", "1e3", "1_0", "\U0001f600", "a\u2028b", "yes", "~"]
    config = load_config(TrainConfig, SMALL, [{"data.hide": texts}])
    assert load_config(TrainConfig, write(tmp_path, to_yaml(config))).data.hide == texts


def test_config_round_trips_through_yaml(tmp_path: Path) -> None:
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
def test_unusual_string_round_trips_through_a_runs_file(text: str, tmp_path: Path) -> None:
    """A run with such a value resumes without a settings mismatch."""
    config = replace_values(
        load_config(TrainConfig, SMALL),
        {"run.project": text, "data.select.include_ids": text, "data.evals": [text, "x"]},
    )
    assert load_config(TrainConfig, write(tmp_path, to_yaml(config))) == config
