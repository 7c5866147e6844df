"""Comparison of a released model with its paper's figure; the evaluation runs with a small model on generated data."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.datagen.synth import SynthSpec, generate

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "configs/recipes_start"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluate_released", ROOT / "scripts" / "evaluate_released.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rule_of_the_figure_is_compared_or_one_without_variants(script: ModuleType) -> None:
    published = script.Published("M", 81.2, "suite", "a table")
    metrics = {"count": 972.0, "test_suite": 0.8, "test_suite/low": 0.75, "test_suite/high": 0.85}
    line = "test_suite 80.0 (75.0 to 85.0, 972 questions); published 81.2 (a table): -1.2"
    assert script.comparison(published, metrics) == line
    metrics |= {"suite": 0.815, "suite/low": 0.77, "suite/high": 0.86}
    assert script.comparison(published, metrics).endswith("(a table): +0.3")


def test_unknown_systems_are_refused_with_the_known_ones(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evaluate_released.py", "arctic", "M", "data", "out"])
    assert script.main() == 2
    assert "omnisql: seeklhy/OmniSQL-7B" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("system", ["omnisql", "sql_r1"])
def test_small_model_is_evaluated_as_the_system(
    system: str,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    generate(tmp_path / "data", SynthSpec(train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=4, dev_questions=4))
    folder, settings = tmp_path / "data/dev_unseen", ["evaluate.sampling.max_new_tokens=8", "evaluate.limit=4"]
    words = [system, str(MODEL), str(folder), str(tmp_path / "out"), *settings, "data.max_prompt_tokens=3000"]
    monkeypatch.setattr(sys, "argv", ["evaluate_released.py", *words])
    assert script.main() == 0
    assert f"{system}, dev_unseen: test_suite " in capsys.readouterr().out
