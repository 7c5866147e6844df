"""A short soak, and a check that it detects a wrong row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("soak_executor.py")


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_a_short_soak_finds_no_error(tmp_path: Path) -> None:
    output = run(str(SOAK), "--minutes=0.3", "--seed=7", folder=tmp_path)
    counts = {what: int(n.replace(",", "")) for n, what in re.findall(r"([\d,]+) ([a-z ]+)", output)}
    for what in ("queries in threads", "queries in processes", "written to", "replaced", "workers killed"):
        assert counts[what] > 0, output


def test_the_soak_detects_a_wrong_row_and_a_crash(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(SOAK.parent)!r})
import soak_executor as soak
from sqlexec_rs import Executor

checks = soak.Soak(1, Path("."))
one, sql = checks.databases[0], "SELECT x FROM t WHERE id = 1"
with Executor(1) as ex:
    outcome, error = ex.execute(one.path, sql), ex.execute(one.path, "SELECT y FROM t")
before = one.answers([sql])[0]
checks.compare("threads", one, sql, outcome, [before, before])
one.change()
after = one.answers([sql])[0]
assert before != after
for got, wanted in ((outcome, [after, after]), (error, [before, after])):
    try:
        checks.compare("threads", one, sql, got, wanted)
    except soak.WrongError:
        continue
    raise SystemExit(f"{{got}} was not reported as a wrong result")
"""
    run("-c", code, folder=tmp_path)
