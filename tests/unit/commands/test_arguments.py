"""Errors outside a command are reported in one line, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxrl_sql.commands.audit import main as audit
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.commands.sft import keep_supervised_phase
from jaxrl_sql.commands.sft import main as sft_main
from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.commands.train import main as train_main
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.planning import gpus
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"


def test_unwritable_folder_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        Path("/dev/null/out").mkdir()
        return 0

    assert report_errors(work) == 2
    wrong = "no folder can be created: a file has this name; choose another folder"
    assert capsys.readouterr().err == f"error: /dev/null/out: {wrong}\n"
    assert synth(["--out", "/dev/null/out"]) == 2
    assert capsys.readouterr().err == f"error: /dev/null: {wrong}\n"
    assert audit([]) == 2
    assert capsys.readouterr().err == "error: audit: name sets with --train and --eval\n"


@pytest.mark.parametrize("main", [train_main, sft_main])
def test_command_without_arguments_prints_usage(
    main: Callable[[list[str]], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: no arguments: start with --config FILE")
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-m", "jaxrl_sql.train"], ["-m", "jaxrl_sql", "sft"], ["docs/own_recipe.py"]])
def test_process_command_without_arguments_prints_usage(command: list[str], tmp_path: Path) -> None:
    here = Path(__file__).parents[3]
    if command[0] != "-m":
        command = [str(here / command[0])]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(here)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no arguments: start with --config FILE")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_supervised_phase_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sft\.steps=0 and sft\.epochs=0: set one of them"):
        keep_supervised_phase(load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}/run", f"data.dir={tmp_path}/data"]))
    assert list(tmp_path.iterdir()) == []


def test_system_error_without_a_file_name_is_not_hidden() -> None:
    def work() -> int:
        raise OSError("an odd error?")

    with pytest.raises(OSError, match="an odd error"):
        report_errors(work)


def test_full_disk_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        Path("/dev/full").write_text("traces", encoding="utf-8")
        return 0

    assert report_errors(work) == 1
    assert capsys.readouterr().err == "error: a file cannot be written: No space left on device\n"


def test_out_of_memory_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        jnp.zeros((1 << 47,)).block_until_ready()
        return 0

    assert report_errors(work) == 1
    output = capsys.readouterr().err
    assert output.startswith("error: memory: ")
    assert "562949953421312 bytes" in output
    assert output.count("\n") == 1

    def other() -> int:
        raise RuntimeError("an odd error?")

    with pytest.raises(RuntimeError, match="an odd error"):
        report_errors(other)


def test_closed_output_pipe_raises_no_traceback() -> None:
    program = (
        "import sys\nfrom jaxrl_sql.commands.running import report_errors\n"
        "def work():\n    for _ in range(99999):\n        print('a line')\n    return 0\n"
        "sys.exit(report_errors(work))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


def test_flags_of_xla_are_added_once_and_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_foo")
    monkeypatch.setattr(gpus, "has_compiler", lambda: False)
    prepare_process()
    assert os.environ["XLA_FLAGS"] == "--xla_foo --xla_cpu_prefer_vector_width=512"
    monkeypatch.setattr(gpus, "has_compiler", lambda: True)
    prepare_process()
    prepare_process()
    assert (
        os.environ["XLA_FLAGS"] == "--xla_foo --xla_cpu_prefer_vector_width=512 --xla_gpu_enable_command_buffer=+WHILE"
    )
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256 --xla_gpu_enable_command_buffer=")
    prepare_process()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_prefer_vector_width=256 --xla_gpu_enable_command_buffer="
