"""The caller's memory does not grow with the number of queries; `scripts/bench_memory.py` runs a million."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_memory.py"
# With 256 MiB instead of one for cached results, 60,000 queries take 30 MiB more.
MOST_MIB = 8

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its memory use from /proc")
def test_memory_does_not_grow_with_the_number_of_queries() -> None:
    command = [sys.executable, str(SCRIPT), "--queries", "60000", "--most-mib", str(MOST_MIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "after 60,000 queries" in done.stdout


BODY = """
import sqlite3, sys, time
from pathlib import Path
from sqlexec_rs import Executor
path, rule = sys.argv[1:]
connection = sqlite3.connect(path)
connection.execute("CREATE TABLE t(x, y)")
connection.executemany("INSERT INTO t VALUES (?, ?)", ((f"{i:060d}", i / 7) for i in range(400_000)))
connection.commit()
connection.close()
time.sleep(2.1)  # until results of so large a file are kept
status = Path("/proc/self/status")
def kib(name):
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))
with Executor(threads=1, isolation="thread") as ex:
    for sql in ("SELECT * FROM t", "SELECT 1"):
        ex.execute(path, sql)  # and keeps the result
    Path("/proc/self/clear_refs").write_text("5")
    before = kib("VmHWM")
    ex.score(path, "SELECT * FROM t", "SELECT 1", (rule,))
    assert ex.stats()["runs"] == 2
    print((kib("VmHWM") - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resets its peak memory through /proc")
@pytest.mark.parametrize("rule", ["paverl", "ex_b", "qatch"])
def test_comparing_does_not_copy_a_large_prediction(tmp_path: Path, rule: str) -> None:
    """For 35 MiB that no gold of one row can equal, `paverl` used 51 MiB more and `qatch` 28."""
    command = [sys.executable, "-c", BODY, str(tmp_path / "t.sqlite"), rule]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20.0
