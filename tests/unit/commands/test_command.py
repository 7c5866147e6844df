"""The `jaxrl-sql` command: its list of commands, their output and exit codes, and shell completion."""

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
from jaxrl_sql.config.settings import all_sections, section_help

SMALL = Path(__file__).parents[2] / "small.yaml"

ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]


def test_help_lists_every_command_with_an_example_and_imports_nothing_heavy() -> None:
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
def test_each_command_has_its_own_help(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "usage: " in output
    is_runs = "--config" in output and name not in ("data prepare", "launch")  # its own settings, or no settings
    assert is_runs == ("  data.dir=\n" in output)


@pytest.mark.parametrize(
    ("line", "code", "message"),
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
def test_process_exits_with_the_commands_exit_code(line: str, code: int, message: str, capsys: Capture) -> None:
    assert main(line.split()) == code
    assert message in capsys.readouterr().err


def test_print_config_prints_the_resolved_settings(capsys: Capture, tmp_path: Path) -> None:
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
    ("line", "expected"),
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
def test_shell_completion_offers_commands(
    line: str, expected: set[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_JAXRL_SQL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"jaxrl-sql {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == expected


def test_settings_page_lists_each_key_once() -> None:
    shown = [field.key for section in all_sections() for field in section.fields]
    assert sorted(shown) == sorted({key for root in ROOTS for key in fields_of(root)})
    assert all(section_help(section) for section in all_sections())


@pytest.mark.slow
def test_doctor_reports_failed_checks() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {extra for _, extra, _ in OPTIONAL} <= set(extras)
    there = os.environ | {"JAX_PLATFORMS": "abacus"}
    command = [sys.executable, "-m", "jaxrl_sql", "doctor"]
    done = subprocess.run(command, env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    output = " ".join(done.stdout.split())
    assert "a worker process ran SELECT 1" in output
    assert "does not work: Unable to initialize backend 'abacus'" in output
