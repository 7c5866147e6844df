"""Fixtures shared by test files: a finished run and its data, created once per test session."""

from __future__ import annotations

import fcntl
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import jaxrl_sql as jx
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.runtime.metric_row import undocumented_names
from jaxrl_sql.runtime.metrics import MetricsWriter
from jaxrl_sql.runtime.training_metrics import TRAINING
from jaxrl_sql.types import Fields

Start = Callable[..., list[str]]
Stopped = Callable[[Path, Path, int], Path]


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder created by one worker; the other workers wait for it and read it."""
    base = factory.getbasetemp()
    root = base.parent if base.name.startswith("popen-") else base  # of xdist's processes
    folder = root / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="module", autouse=True)
def _metrics_have_rows() -> Iterator[None]:
    """Fail if a run writes a metric that is missing from the reference."""
    write = MetricsWriter.write

    def checked(writer: MetricsWriter, step: int, values: Fields) -> None:
        assert undocumented_names(values, TRAINING) == [], "add a row to jaxrl_sql/runtime/training_metrics.py"
        write(writer, step, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsWriter, "write", checked)
        yield


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate questions: 64 for training, 4 on known and 8 on unseen databases."""
    spec = SynthSpec(train_dbs=4, dev_dbs=1, unseen_dbs=2, train_questions=16, dev_questions=4)
    return make_once(tmp_path_factory, "small_data", lambda folder: generate(folder, spec))


@pytest.fixture(scope="session")
def arguments(small_data: Path) -> Start:
    """Return a function (run folder, overrides…) -> command line of a run of 2 supervised and 3 GRPO steps."""

    def build(run: Path, *overrides: str) -> list[str]:
        return [
            "model.init=plain", "model.compute_dtype=same", "data.prompt=compact", "data.evals=[dev_unseen]",
            "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3",
            f"data.dir={small_data}", f"data.tokenizer.path={small_data}/tokenizer", f"run.dir={run}",
            "data.max_prompt_tokens=320", "model.d_model=32", "model.n_layers=1", "model.n_heads=2",
            "model.n_kv_heads=1", "model.head_dim=16", "model.d_ff=48", "sft.steps=2", "sft.databases=2",
            "sft.questions=4", "sft.log_every=1", "sft.max_completion_tokens=128", "grpo.steps=3", "grpo.prompts=2",
            "grpo.num_generations=2", "grpo.kl.coef=0.01", "grpo.loss.entropy_bonus=0.05", "sampling.max_new_tokens=12",
            "rollout.max_num_seqs=4", "validation.max_num_seqs=4", "validation.sampling.max_new_tokens=12",
            "run.checkpoint_every=1", "run.keep_checkpoints=9", "run.display=plain", "run.pad_to_max=true", *overrides,
        ]  # fmt: skip

    return build


@pytest.fixture(scope="session")
def whole(arguments: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, which tests must not change; `shown.txt` next to it has its output."""

    def make(folder: Path) -> None:
        with redirect_stdout(io.StringIO()) as shown:
            run = jx.train(None, *arguments(folder / "whole"))
        assert (run.exit_code, run.folder) == (0, folder / "whole")
        (folder / "shown.txt").write_text(shown.getvalue())

    return make_once(tmp_path_factory, "runs", make) / "whole"


@pytest.fixture(scope="session")
def stopped(rewind: Callable[[Path, int], None]) -> Stopped:
    """Return a function (finished run, copy, step) that copies a run as if it had been stopped after a step."""

    def copy(run: Path, folder: Path, step: int) -> Path:
        shutil.copytree(run, folder)
        rewind(folder, step)
        return folder

    return copy


@pytest.fixture(scope="session")
def untimed() -> Callable[[Path], list[dict[str, Any]]]:
    """Return a function that reads JSON lines and removes timings."""

    def read(path: Path) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]

    return read
