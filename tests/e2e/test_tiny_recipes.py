"""Each system's small configuration is valid, trains from its checkpoint, and rewards some answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxrl_sql.commands.train import main
from jaxrl_sql.datagen.synth import SynthSpec, generate

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*-tiny.yaml"))
SYSTEMS = {"sql_r1", "arctic", "paverl", "think2sql", "skyrl_sql"}
UNTAUGHT = {"skyrl_sql_no_schema"}  # the shipped checkpoint has not learned its format


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(folder, SynthSpec(seed=5, train_dbs=12, dev_dbs=4, unseen_dbs=2, train_questions=20, dev_questions=10))
    return folder


def test_every_system_has_a_tiny_config() -> None:
    assert {system_of(path) for path in CONFIGS} >= SYSTEMS


def overrides(data: Path, run: Path) -> list[str]:
    return ["data.source=folder", f"data.dir={data}", f"run.dir={run}", "run.display=plain", "data.select.limit_eval=8"]


def system_of(path: Path) -> str:
    return path.stem.removesuffix("-tiny")


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_dry_run_loads_checkpoint_and_prompts(
    path: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)  # relative paths of a config start here
    run = tmp_path / "run"
    assert main(["--config", str(path), *overrides(data, run), "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "prompts: " in output
    assert "memory per device, about: weights " in output
    assert not run.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_tiny_config_trains(path: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # relative paths of a config start here
    run = tmp_path / "run"
    assert main(["--config", str(path), *overrides(data, run)]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if row["phase"].startswith("grpo")]
    drawn = [row for row in steps if "reward/mean" in row]
    assert len(steps) >= 3
    assert all(row["policy/loss"] is not None for row in steps)
    if system_of(path) not in UNTAUGHT:
        assert sum(row["reward/well_formed"] for row in drawn) > 0.5 * len(drawn)  # it knows the format
        assert any(row["status/ok"] > 0 for row in drawn)
    assert (run / "model" / "config.json").exists()
