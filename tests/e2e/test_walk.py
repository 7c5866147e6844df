"""The call path from a configuration to its gradient is short and documented in docs/architecture.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_call_path_to_the_gradient_is_short_and_documented() -> None:
    """Runs in a new process, since compiled functions are not called again."""
    done = subprocess.run(
        [sys.executable, "scripts/trace_walk.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *visits, counts = done.stdout.splitlines()
    files, returns = map(int, re.findall(r"\d+", counts))
    assert files <= 20
    assert returns <= 8
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    described = page[page.index("*From configuration to gradient.*") : page.index("*One SQL, from text to reward:*")]
    assert re.findall(r"^\d+\. `([^`]+)`", described, re.MULTILINE) == [
        line.split()[0] for line in visits if not line.startswith("return")
    ]
    assert f"with {returns} returns" in described
