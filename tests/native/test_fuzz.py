"""A short run of the fuzzer, and a check that it detects differences."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_executor.py")


@pytest.mark.slow
def test_a_short_run_finds_no_difference() -> None:
    command = [sys.executable, str(FUZZER), "--minutes=0.25", "--seed=7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7, no difference: " in done.stdout
    (results,) = re.findall(r"([\d,]+) equal results", done.stdout)
    assert int(results.replace(",", "")) > 500


def test_the_fuzzer_detects_differences(tmp_path: Path) -> None:
    code = """
import fuzz_executor as fuzz
from sqlexec_rs import Executor

ex = Executor(1)
ask = lambda sql: ex.execute("empty.sqlite", sql)
open("empty.sqlite", "w").close()
cases = [([(1.0,)], "SELECT 1"), ([(-0.0,)], "SELECT 0.0"), ([("a",)], "SELECT x'61'"), ([(1,)], "SELECT 1 WHERE 0")]
cases += [([(1,)], "SELECT nothing.x"), ("no such table: t", "SELECT 1"), ("no such table: t", "SELECT * FROM u")]
for theirs, sql in cases:
    try:
        fuzz.compare(theirs, ask(sql), is_broken=False)
    except fuzz.DifferenceError:
        continue
    raise SystemExit(f"{theirs} for {sql} is not seen")
assert fuzz.compare([(1,)], ask("SELECT 1"), is_broken=False) == "equal results"
assert fuzz.compare("no such table: u", ask("SELECT * FROM u"), is_broken=False) == "equal errors"
"""
    folder = FUZZER.parent
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}){code}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
