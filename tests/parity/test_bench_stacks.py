"""The comparison with TRL does the same work in both, with all weights and with adapters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
pytest.importorskip("trl", reason="needs trl: install the extra `parity`")

pytestmark = pytest.mark.parity

SCRIPT = Path(__file__).parents[2] / "scripts/bench_stacks.py"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--dtype", "bfloat16", "--lora", "4", "--checkpointing", "1", "--micro-batches", "2"],
    ],
)
def test_both_stacks_do_the_work(arguments: list[str], tmp_path: Path) -> None:
    """Each process checks its prompts and the lengths of its completions."""
    out = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--stacks", "ours", "trl"]
    command += ["--python", f"trl={sys.executable}", "--json", str(out)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {(row["name"], row["column"]): row["median"] for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    for phase in ("rollout", "reference", "update", "step"):
        assert min(rows[phase, column] for column in ("ours", "trl", "trl / ours")) > 0
    assert min(rows["peak memory", column] for column in ("ours", "trl")) > 0
