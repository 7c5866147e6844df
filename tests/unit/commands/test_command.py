"""`jaxrl-sql` as a user calls it: what it lists, what its commands print, how they end, and what a shell completes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.__main__ import commands, main
from jaxrl_sql.commands.doctor import OPTIONAL
from jaxrl_sql.config import EvaluateConfig, PlanConfig, TrainConfig, load_config, to_yaml
from jaxrl_sql.config.fields import fields_of
from jaxrl_sql.config.roots import ROOTS
from jaxrl_sql.config.settings import about, all_sections

SMALL = Path(__file__).parents[2] / "small.yaml"

ROOT = Path(__file__).parents[3]
Told = pytest.CaptureFixture[str]


def test_help_lists_every_command_with_an_example_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from jaxrl_sql.__main__ import main; assert main(['--help']) == 0\n"
        "assert not {'jax', 'numpy', 'yaml'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, entry in commands().items():
        assert f"jaxrl-sql {name} {entry.example}".strip() in " ".join(done.stdout.split()), name
    assert "\x1b" not in done.stdout, "colour is for terminals"


@pytest.mark.parametrize("name", sorted(commands()))
def test_each_command_has_a_help_of_its_own(name: str, capsys: Told) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "usage: " in said
    is_runs = "--config" in said and name not in ("data prepare", "launch")  # settings of its own, or none
    assert is_runs == ("  data.dir=\n" in said)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", 2, "Usage: jaxrl-sql"),
        ("tran", 2, "there is no command tran; the nearest is train"),
        ("train", 2, "no arguments: start with --config FILE"),
        ("train grpo.step=3", 2, "error: command line: unknown key grpo.step; the nearest is grpo.steps"),
        ("train --config configs/none.yaml", 2, "error: configs/none.yaml: "),
        ("report nowhere", 2, "error: nowhere"),
        ("data audit", 2, "name sets with --train and --eval"),
    ],
)
def test_an_exit_code_is_the_commands_own(line: str, code: int, words: str, capsys: Told) -> None:
    assert main(line.split()) == code
    assert words in capsys.readouterr().err


def test_print_config_prints_what_would_run(capsys: Told, tmp_path: Path) -> None:
    assert main(["quickstart", "grpo.steps=3", "--print-config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_config(TrainConfig, tmp_path / "printed.yaml") == load_config(
        TrainConfig, "configs/quickstart.yaml", ["grpo.steps=3"]
    )
    model = "configs/quickstart_start"
    assert main(["evaluate", "--model", model, "--data", "here", "--data", "there", "--print-config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    judged = load_config(EvaluateConfig, tmp_path / "printed.yaml")
    assert (judged.evaluate.data, judged.model.checkpoint) == (["here", "there"], model)
    with closing(sqlite3.connect(tmp_path / "one.sqlite")) as connection:
        connection.execute("CREATE TABLE t(x)")
    db = str(tmp_path / "one.sqlite")
    assert main(["ask", "--model", model, "--db", db, "--n", "4", "Why?", "--print-config"]) == 0
    assert "  samples: 4\n" in capsys.readouterr().out
    assert main(["plan", "--topology", "cpu", "--mesh", "1x1x1", "model.checkpoint=m", "--print-config"]) == 0
    assert capsys.readouterr().out == to_yaml(load_config(PlanConfig, None, ["model.checkpoint=m"]))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("tr", {"plain,train"}),
        ("data f", {"plain,filter"}),
        ("train grpo.optim.l", {"plain,grpo.optim.lr="}),
        (
            "train --config configs/quickstart_sft",
            {f"plain,configs/quickstart_sft{end}.yaml" for end in ("", "_answers")},
        ),
        ("train data.dir=/tmp", {"file,data.dir=/tmp"}),
    ],
)
def test_a_shell_completes(words: str, wanted: set[str], capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_JAXRL_SQL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"jaxrl-sql {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == wanted


def test_the_settings_page_lists_each_key_once() -> None:
    shown = [field.key for section in all_sections() for field in section.fields]
    assert sorted(shown) == sorted({key for root in ROOTS for key in fields_of(root)})
    assert all(about(section) for section in all_sections())


def test_the_page_of_settings_is_up_to_date() -> None:
    command = [sys.executable, "scripts/write_settings.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_doctor_says_what_does_not_work() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {extra for _, extra, _ in OPTIONAL} <= set(extras)
    there = os.environ | {"JAX_PLATFORMS": "abacus"}
    command = [sys.executable, "-m", "jaxrl_sql", "doctor"]
    done = subprocess.run(command, env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.split())
    assert "a worker process ran SELECT 1" in said
    assert "does not work: Unable to initialize backend 'abacus'" in said
