"""A run of two processes equals one process, and resumes after a process dies, hangs, or finds storage full."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.models import load_checkpoint

ROOT = Path(__file__).parents[2]
LOST = "error: another process of this run has ended ("
# Gloo's own lines, in pieces: its threads write concurrently, so pieces of two lines are mixed.
GLOO = re.compile(
    r"\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : |\s"
)


class Pair:
    """Two processes of a run and their output; `act` is called once, at a line of the first that starts with `when`."""

    def __init__(self, arguments: Sequence[str], when: str = "", act: Callable[[Pair], None] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        env = os.environ | {
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_CPU_DEVICES": "1", "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)]),
        }  # fmt: skip
        self.when, self.act = when, act
        self.output: list[list[str]] = [[], []]

        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "jaxrl_sql.train", *arguments],
                env=env | {"JAX_PROCESS_ID": str(number)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for number in (0, 1)
        ]  # fmt: skip
        readers = [threading.Thread(target=self._read, args=(number,)) for number in (0, 1)]
        for item in readers:
            item.start()
        try:
            self.codes = [process.wait(900) for process in self.processes]  # seconds; a busy machine is slow
        finally:
            for item in self.processes:
                item.kill()
            for reader in readers:
                reader.join()

    def _read(self, number: int) -> None:
        stream = self.processes[number].stdout
        assert stream is not None
        with stream:
            for line in stream:
                self.output[number].append(line.rstrip("\n"))
                if number == 0 and self.act is not None and line.startswith(self.when):
                    act, self.act = self.act, None
                    act(self)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    data = tmp_path_factory.mktemp("data")
    generate(data, SynthSpec(train_dbs=3, dev_dbs=1, unseen_dbs=1, train_questions=12, dev_questions=4))
    return [
        "model.init=plain", "model.compute_dtype=same", "data.prompt=compact", "data.evals=[dev]",
        "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3", f"data.dir={data}", f"data.tokenizer.path={data}/tokenizer",
        "data.max_prompt_tokens=320", "model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.n_kv_heads=1",
        "model.head_dim=16", "model.d_ff=48", "sft.steps=3", "sft.databases=2", "sft.questions=2", "sft.log_every=1",
        "grpo.steps=4", "grpo.prompts=2", "grpo.num_generations=2", "sampling.max_new_tokens=8",
        "rollout.max_num_seqs=4", "validation.max_num_seqs=4", "validation.sampling.max_new_tokens=8",
        "run.pad_to_max=true", "run.checkpoint_every=1", "run.display=plain", "run.trackers=[]", "mesh.data=2",
        "mesh.processes=2", "grpo.loss.entropy_bonus=0.01", f"run.compilation_cache={tmp_path_factory.mktemp('cache')}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert Pair([*arguments, f"run.dir={run}"]).codes == [0, 0]
    return run


def untimed(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


def is_whole(run: Path, whole: Path) -> bool:
    weights = [folder / "model" / "model.safetensors" for folder in (run, whole)]
    rows = [untimed(folder / "metrics.jsonl") for folder in (run, whole)]
    return weights[0].read_bytes() == weights[1].read_bytes() and rows[0] == rows[1]


@pytest.mark.slow
def test_a_run_resumed_after_a_lost_process_equals_one_process(
    arguments: list[str], run_processes: Any, tmp_path: Path
) -> None:
    """Two processes resume from a supervised step; samples, metrics and the model equal one process's."""
    both, item = tmp_path / "both", tmp_path / "one"
    command = [*arguments, f"run.dir={both}", "run.resume=true"]
    pair = Pair(command, "step 3/", lambda pair: pair.processes[1].kill())
    assert pair.codes == [1, -signal.SIGKILL]
    assert sum(line.startswith(LOST) for line in pair.output[0]) == 1, "\n".join(pair.output[0])
    assert (both / "checkpoints" / "1").is_dir()
    assert not (both / "checkpoints" / "4").is_dir()
    pair = Pair(command)
    assert pair.codes == [0, 0], "\n".join(pair.output[0])
    assert GLOO.sub("", "".join(pair.output[1])) == "", "only the first process prints"
    run_processes(["-m", "jaxrl_sql.train", *arguments, f"run.dir={item}", "mesh.processes=1"], 1, 2)

    assert sorted(path.name for path in both.iterdir()) == sorted(path.name for path in item.iterdir())
    rows = [untimed(folder / "metrics.jsonl") for folder in (both, item)]
    for got, want in zip(*rows, strict=True):
        assert (got.keys(), got.pop("phase")) == (want.keys(), want.pop("phase"))
        assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert untimed(both / "samples.jsonl") == untimed(item / "samples.jsonl")
    (config, weights), (same, wanted) = (load_checkpoint(folder / "model") for folder in (both, item))
    assert config == same
    for name, leaf in wanted["layers"].items():
        np.testing.assert_allclose(weights["layers"][name], leaf, atol=1e-4, err_msg=name)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "phase",
    [
        "sft: 3 steps", "running the golds", "making new weights", "evaluating dev", "grpo: 4 steps", "step 5/7",
        "writing the model",
    ],
)  # fmt: skip
def test_the_other_process_reports_a_dead_process_and_exits(
    phase: str, arguments: list[str], whole: Path, tmp_path: Path
) -> None:
    """Both processes, restarted together, give the results of an uninterrupted run."""
    both = [*arguments, f"run.dir={tmp_path}/run", "run.resume=true"]
    pair = Pair(both, phase, lambda pair: pair.processes[1].kill())
    assert pair.codes == [1, -signal.SIGKILL]
    assert sum(line.startswith(LOST) for line in pair.output[0]) == 1, "\n".join(pair.output[0])
    assert Pair(both).codes == [0, 0]
    assert is_whole(tmp_path / "run", whole)


@pytest.mark.nightly
def test_a_stopped_process_is_waited_for(arguments: list[str], whole: Path, tmp_path: Path) -> None:
    """The other process reports its progress meanwhile."""

    def stop(pair: Pair) -> None:
        pair.processes[1].send_signal(signal.SIGSTOP)
        threading.Timer(20, pair.processes[1].send_signal, [signal.SIGCONT]).start()

    pair = Pair([*arguments, f"run.dir={tmp_path}/run"], "step 5/7", stop)
    assert pair.codes == [0, 0]
    after = pair.output[0][next(i for i, line in enumerate(pair.output[0]) if line.startswith("step 5/7")) :]
    assert any(line.startswith("grpo: 2 of 4 steps, ") for line in after), "\n".join(after)
    assert is_whole(tmp_path / "run", whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 16 MiB, if this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


@pytest.mark.nightly
def test_full_storage_ends_both_processes_and_the_run_resumes(
    arguments: list[str], whole: Path, small_disk: Path
) -> None:
    """The first process reports it in one line; libraries also print errors of their threads."""
    run, ballast = small_disk / "run", small_disk / "ballast"

    def fill(_: Pair) -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))

    both = [*arguments, f"run.dir={run}", "run.resume=true"]
    pair = Pair(both, "step 5/7", fill)
    assert pair.codes[0] == 1, "\n".join(pair.output[0])
    assert pair.codes[1] in (1, -signal.SIGABRT), "\n".join(pair.output[1])  # JAX may report the lost process first
    full = f"error: {run} cannot be written: No space left on device; the checkpoint of step "
    assert [line.startswith(full) for line in pair.output[0] if line.startswith("error: ")] == [True]
    ballast.unlink()
    assert Pair(both).codes == [0, 0]
    assert is_whole(run, whole)
