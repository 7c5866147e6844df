"""Ends of commands in their first seconds, and of commands whose disk is full: one line, and the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_sql.runtime.folder import find_full_folders

INTERRUPTING = """
import signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from jaxrl_sql.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("module", ["click", "jaxrl_sql.commands.train", "jaxrl_sql.config.load", "sqlexec_rs", "jax"])
def test_ctrl_c_during_imports_prints_one_line(module: str, tmp_path: Path) -> None:
    arguments = ["train", "model.init=plain", f"data.dir={tmp_path}", f"run.dir={tmp_path}/run"]
    command = [sys.executable, "-c", INTERRUPTING, module, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    assert not (tmp_path / "run").exists()


def test_full_disk_is_named(full_disk: Path, tmp_path: Path) -> None:
    assert find_full_folders([str(tmp_path), f"run.dir={full_disk}/a/b", str(full_disk)]) == [str(full_disk)]
    command = [sys.executable, "-m", "jaxrl_sql", "data", "synth", "--out", str(full_disk / "new"), "--seed", "7"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"error: no space left on {full_disk}")
    assert "Traceback" not in ended.stderr
