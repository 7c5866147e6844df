"""A run that is killed at any moment and resumed is bit-equal to an uninterrupted run: state, metrics, samples.

Real processes are killed by SIGKILL at random points of each phase, once or twice per run. The points come from
fixed seeds but depend on the clock, so compared values must not depend on them. Uninterrupted runs use this
process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxrl_sql.commands.train import main
from jaxrl_sql.datagen.synth import SynthSpec, generate

STEPS = 13  # 5 supervised, 8 of GRPO
COMMAND = [sys.executable, "-m", "jaxrl_sql.train"]
RECIPE = f"{Path(__file__).with_name('letters_recipe.py')}:LETTERS"


pytestmark = pytest.mark.slow


class Start(NamedTuple):
    """Command line of a run, by folder and overrides, and the environment of its process."""

    command: Callable[..., list[str]]
    env: dict[str, str]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """A run with every phase: a rollout serves two steps of two updates each, with a KL penalty and evaluations."""
    data = tmp_path_factory.mktemp("data")
    generate(data, SynthSpec(train_dbs=4, dev_dbs=1, unseen_dbs=2, train_questions=60, dev_questions=12))

    def command(run: Path, *overrides: str) -> list[str]:
        return [
            *COMMAND,
            f"recipe={RECIPE}", f"run.dir={run}",
            "model.init=plain", "model.compute_dtype=same", "data.prompt=compact", "data.evals=[dev_unseen]",
            "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3", f"data.dir={data}", f"data.tokenizer.path={data}/tokenizer",
            "data.max_prompt_tokens=192", "data.evals=[dev]", "model.d_model=48", "model.n_layers=2",
            "model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=12", "model.d_ff=64", "sft.steps=5",
            "sft.databases=2", "sft.questions=4", "sft.log_every=2", "sft.eval_every=3", "sft.shuffle_identifiers=0.5",
            "sft.max_completion_tokens=128", "grpo.steps=8", "grpo.steps_per_generation=2", "grpo.prompts=4",
            "grpo.num_generations=4",
            "grpo.minibatches=2", "grpo.kl.coef=0.01", "grpo.loss.entropy_bonus=0.05", "sampling.max_new_tokens=24",
            "rollout.max_num_seqs=8", "validation.every=3", "validation.max_num_seqs=8",
            "validation.sampling.max_new_tokens=24", "run.checkpoint_every=3",
            "run.keep_best=1", "run.display=none", "run.pad_to_max=true", "data.select.limit_train=16",
            "data.select.limit_eval=4",
            *overrides,
        ]  # fmt: skip

    return Start(command, {**os.environ})


@pytest.fixture(scope="module")
def whole(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert main(start.command(run)[len(COMMAND) :]) == 0
    return run


TIGHT = ("sampling.max_new_tokens=72",)
"""Answers of three KV blocks each, with KV blocks for a third of the slots."""


@pytest.fixture(scope="module", params=[(1, 1, 1), (1, 2, 2)], ids=["1", "2x2"])
def tight(request: pytest.FixtureRequest, start: Start) -> Start:
    """The same run with too few KV blocks, on one device or on a mesh of four."""
    sizes = dict(zip(("data", "fsdp", "tensor"), request.param, strict=True))
    mesh = [f"mesh.{name}={size}" for name, size in sizes.items()]
    blocks = ["rollout.prompt_blocks=16", f"rollout.completion_blocks={8 * sizes['fsdp']}", "rollout.prefix_blocks=0"]
    blocks += [f"rollout.max_num_seqs={8 * sizes['fsdp']}"]
    count = f"--xla_force_host_platform_device_count={sizes['fsdp'] * sizes['tensor']}"
    env = start.env | {"XLA_FLAGS": count, "NPROC": "32"}  # more threads than devices: see multidevice/conftest.py
    return Start(lambda run, *more: start.command(run, *TIGHT, *blocks, *mesh, *more), env)


def finish(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


def saved_arrays(run: Path, step: int) -> dict[str, np.ndarray]:
    """Return all arrays of a checkpoint: parameters, reference, optimizer, step.

    Whole, on the host: the run's mesh may have more devices than this process.
    """
    path = run / "checkpoints" / str(step) / "state"
    with ocp.PyTreeCheckpointer() as checkpointer:
        result = checkpointer.metadata(path).item_metadata.tree
        whole = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), result)
        return dict(checkpointer.restore(path, restore_args=whole))


def rollouts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "rollouts").iterdir()}


def assert_same(run: Path, whole: Path, but_checkpoints: bool = False) -> None:
    """Compare two runs bit for bit except for timings; a stop may write an additional checkpoint."""
    assert without_times(lines(run / "metrics.jsonl")) == without_times(lines(whole / "metrics.jsonl"))
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    assert rollouts(run) == rollouts(whole)
    assert any(name.startswith("train-") for name in rollouts(whole))
    remaining = [{path.name for path in (folder / "checkpoints").iterdir()} for folder in (run, whole)]
    assert but_checkpoints or remaining[0] == remaining[1]
    got, want = saved_arrays(run, STEPS), saved_arrays(whole, STEPS)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert np.asarray(got[name]).tobytes() == np.asarray(array).tobytes(), name
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (run / "model" / file).read_bytes() == (whole / "model" / file).read_bytes(), file


def kill_when(
    command: list[str], env: dict[str, str], reached: Callable[[], bool], delay: float, how: int = signal.SIGKILL
) -> int | None:
    """Start a run and kill it `delay` seconds after a condition holds; return its exit code, None if it had ended."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 300
    while not reached():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(delay)
    is_running = process.poll() is None
    os.kill(process.pid, how)
    process.communicate()
    return process.returncode if is_running else None


def has_step(run: Path, step: int, phase: str) -> Callable[[], bool]:
    """Return a check whether the run's metrics contain a step of a phase."""
    path, fields = run / "metrics.jsonl", f'"step": {step}, "phase": "{phase}"'
    return lambda: path.exists() and fields in path.read_text(encoding="utf-8")


def is_saving(run: Path, step: int) -> Callable[[], bool]:
    """Return a check whether a checkpoint of a step exists, partial or complete."""
    folder = run / "checkpoints"
    return lambda: folder.is_dir() and any(path.name.startswith(f"{step}") for path in folder.iterdir())


POINTS = {
    "sft": [("line", 2, "sft"), ("line", 4, "sft")],
    "rollout": [("line", 7, "grpo"), ("line", 11, "grpo")],
    "update": [("line", 6, "grpo")],
    "update twice": [("line", 6, "grpo"), ("line", 10, "grpo")],
    "save": [("save", 6, ""), ("save", 12, "")],
    "evaluation": [("line", 5, "sft"), ("line", 8, "grpo")],
}
"""The condition before the random delay in each phase: a line of the metrics, or the start of a save."""


@pytest.mark.parametrize(
    "phase", [pytest.param(name, marks=() if name == "update" else pytest.mark.nightly) for name in POINTS]
)
def test_a_killed_and_resumed_run_is_bit_equal(phase: str, start: Start, whole: Path, tmp_path: Path) -> None:
    """Killed during the phase after a random delay, and resumed to the end."""
    run, draw = tmp_path / "killed", random.Random(phase)
    codes = []
    for kind, step, word in POINTS[phase]:
        reached = has_step(run, step, word) if kind == "line" else is_saving(run, step)
        codes.append(kill_when(start.command(run, "run.resume=true"), start.env, reached, draw.uniform(0, 0.25)))
    assert codes == [-signal.SIGKILL] * len(POINTS[phase]), "a run ended before it was killed"
    assert main(["--resume", str(run), f"recipe={RECIPE}"]) == 0
    assert_same(run, whole)


@pytest.mark.nightly
def test_a_killed_run_with_full_pools_is_bit_equal(tight: Start, tmp_path: Path) -> None:
    """Completions wait and are preempted; recomputed values are the same after resuming."""
    whole, run = tmp_path / "whole", tmp_path / "killed"
    finish(tight.command(whole), tight.env)
    preempted = [row["rollout/preemptions"] for row in lines(whole / "metrics.jsonl") if "rollout/preemptions" in row]
    assert all(preempted)
    code = kill_when(tight.command(run, "run.resume=true"), tight.env, has_step(run, 9, "grpo"), 0.1)
    assert code == -signal.SIGKILL, "the run ended before it was killed"
    finish([*COMMAND, "--resume", str(run), f"recipe={RECIPE}"], tight.env)
    assert_same(run, whole)


@pytest.mark.nightly
@pytest.mark.parametrize("step", [7, 8])
def test_sigterm_saves_and_resume_is_bit_equal(step: int, start: Start, whole: Path, tmp_path: Path) -> None:
    """SIGTERM before a rollout or an evaluation, as sent on preemption: no work is lost or repeated."""
    run = tmp_path / "ended"
    code = kill_when(start.command(run), start.env, has_step(run, step, "grpo"), 0.02, signal.SIGTERM)
    assert code == 0
    newest = max(int(path.name) for path in (run / "checkpoints").iterdir())
    assert newest == lines(run / "metrics.jsonl")[-1]["step"]
    assert main(["--resume", str(run), f"recipe={RECIPE}"]) == 0
    assert_same(run, whole, but_checkpoints=True)


def test_the_compared_run_learns_and_has_unequal_rewards(whole: Path) -> None:
    """Parameters change, answers and rewards differ, and the best checkpoint is kept next to the newest."""
    rows = lines(whole / "metrics.jsonl")
    assert [row["step"] for row in rows if row["phase"] == "eval"] == [3, 5, 8, 11, 13]
    grpo = [row for row in rows if row["phase"] == "grpo"]
    assert all(row["optim/grad_norm"] > 0 for row in grpo)
    assert all(row["reward/zero_variance"] < 1 for row in grpo if "reward/zero_variance" in row)
    assert len({row["policy/entropy"] for row in grpo}) == len(grpo)
    assert len({sample["text"] for sample in lines(whole / "samples.jsonl")}) > 10
    remaining = sorted(int(path.name) for path in (whole / "checkpoints").iterdir())
    assert remaining[-2:] == [12, 13]
    assert (whole / "checkpoints" / "12" / "arrays").is_dir(), "no groups in flight are saved"
    before, after = (saved_arrays(whole, step) for step in remaining[-2:])
    assert any(not np.array_equal(before[name], array) for name, array in after.items())
