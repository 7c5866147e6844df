"""A database server that ends during a run: the checkpoint and the command that resumes the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import jaxrl_sql as jx
from jaxrl_sql.commands.copy import main as copy
from jaxrl_sql.commands.train import main
from jaxrl_sql.runtime.folder import list_saved_steps
from jaxrl_sql.types import InputError
from sqlexec_rs.servers import Server

Start = Callable[..., list[str]]

ALONE = (
    "sft.steps=0", "grpo.steps=3", "grpo.optim.warmup_steps=0", "grpo.kl.coef=0", "data.evals=[train]",
    "data.select.limit_train=4", "data.select.limit_eval=2", "run.pad_to_max=false", "run.checkpoint_every=9",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("lost_after", ["no step", "a step", "an evaluated step"])
def test_a_lost_server_ends_a_run_with_a_checkpoint_and_the_command_that_resumes_it(
    lost_after: str,
    start_server: Callable[[str, str], Server],
    arguments: Start,
    small_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start_server("postgresql", "SELECT 1;")
    monkeypatch.setenv("PGPASSWORD", urlsplit(server.reader).password or "")
    source, run = str(small_data / "train"), tmp_path / "run"
    out = ["--out", str(tmp_path / "data" / "train"), "--questions", source, "--reader", server.reader]
    assert copy(["--from", source, "--to", server.owner, *out]) == 0
    last_step, every = {"no step": (0, 0), "a step": (2, 0), "an evaluated step": (2, 2)}[lost_after]

    def stop_server(step: int, metrics: Mapping[str, Any]) -> None:
        if step == last_step and metrics["phase"] == ("grpo" if last_step else "eval"):
            server.stop()

    command = arguments(run, *ALONE, f"data.dir={tmp_path / 'data'}", f"validation.every={every}")
    with pytest.raises(InputError) as raised:
        jx.train(None, *command, callback=stop_server)
    start = f"from the checkpoint of step {last_step}" if last_step else "from the beginning: no checkpoint is saved"
    assert "the server cannot be reached: postgresql://" in str(raised.value)
    assert str(raised.value).partition(". Start it, then: ")[2] == f"`jaxrl-sql train --resume {run}` ({start})"
    assert list_saved_steps(run) == [last_step] * bool(last_step)
    server.restart()
    assert main(["--resume", str(run)]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in rows if row["phase"] == "grpo"] == [1, 2, 3]
    assert [row["step"] for row in rows if row["phase"] == "eval"] == [0, *([2] if every else []), 3]
