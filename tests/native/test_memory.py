"""The caller's memory stays where it is, however many queries run; `scripts/bench_memory.py` runs a million."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_memory.py"
# With 256 MiB for kept results instead of one, 60,000 queries take 30 MiB more.
MOST_MIB = 8


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its memory from /proc")
def test_memory_does_not_grow_with_the_queries() -> None:
    command = [sys.executable, str(SCRIPT), "--queries", "60000", "--most-mib", str(MOST_MIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 60,000 |" in done.stdout
