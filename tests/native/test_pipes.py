"""Pipes in place of files: an open that would wait forever is refused, and the thread is free again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HANG_S = 60.0
# In another process: a hanging open cannot be stopped, and close() would wait for it.
BODY = """
import os, sys
from pathlib import Path
from sqlexec_rs import Executor, Limits
path, case, isolation = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
limits = Limits(timeout_ms=10_000)
with Executor(threads=1, isolation=isolation, limits=limits, worker_hang_ms=None) as ex:
    if case == "swapped":
        endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
        other = path.with_name("other.sqlite")
        first = ex.submit([(other, endless)], limits=Limits(timeout_ms=None))
        job = ex.submit([(path, "SELECT x FROM t")])
        path.unlink()
        os.mkfifo(path)
        first.cancel()
        outcome = job.result()[0]
    else:
        outcome = ex.execute(path, "SELECT x FROM t")
    print(outcome.status, outcome.error)
    print(ex.execute(path.with_name("other.sqlite"), "SELECT x FROM t").rows)
"""


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("case", ["-journal", "-wal", "-shm", "swapped"])
def test_a_pipe_is_refused_without_blocking(tmp_path: Path, isolation: str, mode: str, case: str) -> None:
    path = tmp_path / "t.sqlite"
    for name in ("t.sqlite", "other.sqlite"):
        connection = sqlite3.connect(tmp_path / name)
        connection.executescript(f"PRAGMA journal_mode = {mode}; CREATE TABLE t(x); INSERT INTO t VALUES (7)")
        connection.close()
    if case != "swapped":
        os.mkfifo(f"{path}{case}")
    command = [sys.executable, "-c", textwrap.dedent(BODY), str(path), case, isolation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    answer, after = done.stdout.splitlines()
    assert after == "[(7,)]"
    if case == "-shm" or (case == "-journal" and mode == "wal"):
        assert answer == "ok None" or answer.startswith("db_error"), "SQLite does not read it here"
    else:
        assert answer.startswith("db_error"), answer
        named = path if case == "swapped" else f"{path}{case}"
        assert f"{named}: not a regular file" in answer
