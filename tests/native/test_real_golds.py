"""The golds of Spider's dev set run, and their rows equal apsw's and sqlite3's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.data
def test_golds_of_spider_dev_run(real_data: Path) -> None:
    command = [sys.executable, "scripts/check_golds.py", "--data", str(real_data), "--sets", "spider_dev"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "972 of 972 golds run" in done.stdout
