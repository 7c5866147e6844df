"""Ends of runs that cannot continue: NaN, entropy collapse, a full disk, changed checkpoints."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl_sql.commands.train import main
from jaxrl_sql.models.formats.checksums import write_sums
from jaxrl_sql.report.facts import describe_run
from jaxrl_sql.report.load import load_run
from jaxrl_sql.report.outcome import first_sentence, stop_lines
from jaxrl_sql.runtime.folder import list_saved_steps
from jaxrl_sql.training.checkpoint import UNSUMMED
from jaxrl_sql.training.sft import SftPhase

Start = Callable[..., list[str]]
Stopped = Callable[[Path, Path, int], Path]
Capture = pytest.CaptureFixture[str]

# Only GRPO on prompts of one width, with steps that change the parameters.
ALONE = (
    "sft.steps=0", "grpo.steps=6", "grpo.optim.warmup_steps=0", "grpo.kl.coef=0", "data.evals=[dev]",
    "data.select.limit_train=4", "run.pad_to_max=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def alone(arguments: Start) -> Start:
    """Return a function (run folder, overrides…) -> command line of a run with only GRPO."""
    return lambda run, *overrides: arguments(run, *ALONE, *overrides)


def reseal(run: Path, step: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata of a checkpoint, and update its checksums."""
    host = run / "checkpoints" / str(step) / "host" / "metadata"
    known = json.loads(host.read_text(encoding="utf-8"))
    change(known["run"])
    host.write_text(json.dumps(known), encoding="utf-8")
    write_sums(host.parents[1], exclude={UNSUMMED})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_dry_run_reports_requirements_and_writes_nothing(alone: Start, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    assert main(alone(run, "sft.epochs=2", "sft.databases=1", "sft.questions=2", "--dry-run")) == 0
    output = capsys.readouterr().out
    assert "prompts: 8, " in output
    assert "memory per device, about: weights " in output
    match = re.search(r"supervised phase: (\d+) steps, (\d+) per epoch", output)
    assert match is not None
    assert int(match[1]) == 2 * int(match[2])
    assert not run.exists()
    assert main(alone(run, "data.max_prompt_tokens=8", "--dry-run")) == 2
    capsys.readouterr()
    assert main(alone(run, "run.keep_best=1", "run.best_by=acuracy", "--dry-run")) == 2
    assert "run.best_by='acuracy' is not a metric" in (error := capsys.readouterr().err)
    assert "such as eval/dev/accuracy" in error
    assert main(alone(run, "run.keep_best=1", "run.best_by=eval/dev/status/ok", "--dry-run")) == 0
    run.mkdir()
    (run / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    assert main(alone(run, "--dry-run")) == 2
    assert f"{run} already holds a run" in capsys.readouterr().err


@pytest.mark.nightly
def test_exploding_parameters_stop_the_run_and_name_the_step(alone: Start, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    assert main(alone(run, "grpo.optim.lr=1e30")) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: step 1 (grpo): optim/param_norm is inf; ")
    assert "a lower grpo.optim.lr" in error
    assert error.count("\n") == 1
    assert list_saved_steps(run) == []
    assert [row["phase"] for row in lines(run / "metrics.jsonl")] == ["eval", "grpo"]
    assert (run / "report.html").exists()


@pytest.mark.slow
def test_a_run_that_reaches_nan_keeps_its_last_good_checkpoint(
    whole: Path, stopped: Stopped, tmp_path: Path, capsys: Capture
) -> None:
    run = stopped(whole, tmp_path / "run", 4)
    path = run / "config.yaml"  # as if the run had begun with this rate
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["grpo"]["optim"]["lr"] = 3e38
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"{path}: the newest checkpoint was saved with grpo.optim.lr (" in error
    assert " then, 3e+38 now): restore the file" in error
    reseal(run, 4, lambda known: known["config"]["grpo"]["optim"].update(lr=3e38))
    assert main(["--resume", str(run)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: step 5 (grpo): optim/param_norm is ")
    assert "a lower grpo.optim.lr" in error
    assert list_saved_steps(run) == [1, 2, 3, 4]
    last = lines(run / "metrics.jsonl")[-1]
    assert (last["step"], last["optim/param_norm"]) == (5, None), "JSON has no value for NaN"


@pytest.mark.slow
def test_groups_with_equal_rewards_stop_the_run_with_a_checkpoint(
    whole: Path, stopped: Stopped, tmp_path: Path, capsys: Capture
) -> None:
    """An untrained policy earns no reward: no group has unequal rewards, before or after a stop."""
    run = stopped(whole, tmp_path / "run", 5)
    longer = ["grpo.steps=6", "health.zero_advantage_patience=4", "run.checkpoint_every=99", "run.display=none"]
    assert main(["--resume", str(run), *longer]) == 3
    error = capsys.readouterr().err
    assert (
        "in 4 rollouts (health.zero_advantage_patience) the answers of every group had equal rewards (mean 0)" in error
    )
    assert "sft.steps" in error
    assert list_saved_steps(run) == [1, 2, 3, 4, 5, 6]
    assert yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["grpo"]["steps"] == 6
    assert [(row["step"], row["phase"]) for row in lines(run / "metrics.jsonl")][-2:] == [(5, "eval"), (6, "grpo")]


@pytest.mark.slow
def test_an_entropy_under_the_floor_stops_a_run_that_resumes_without_the_check(
    whole: Path, stopped: Stopped, tmp_path: Path, capsys: Capture
) -> None:
    run = stopped(whole, tmp_path / "run", 3)
    assert main(["--resume", str(run), "health.entropy_floor=1000", "health.entropy_steps=2"]) == 3
    assert "policy/entropy has been below health.entropy_floor=1000" in capsys.readouterr().err
    assert list_saved_steps(run) == [1, 2, 3, 4, 5]
    assert main(["--resume", str(run), "health.entropy_floor=0"]) == 0
    assert [row["step"] for row in lines(run / "metrics.jsonl")] == [1, 2, 2, 3, 4, 5, 5]


def test_resume_refuses_changed_settings_and_questions(
    arguments: Start, whole: Path, stopped: Stopped, tmp_path: Path, capsys: Capture
) -> None:
    run = stopped(whole, tmp_path / "run", 4)
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["--resume", str(run), "grpo.optim.lr=0.5", "seed=3"]) == 2
    error = capsys.readouterr().err
    assert "seed (0 then, 3 now), grpo.optim.lr (" in error
    assert " then, 0.5 now)" in error
    assert error.count("\n") == 1
    assert main(arguments(run)) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert main(["--resume", str(tmp_path / "nowhere")]) == 2
    assert "no config.yaml there" in capsys.readouterr().err
    reseal(run, 4, lambda known: known.update(questions="others"))
    assert main(["--resume", str(run)]) == 2
    assert "differs from the questions or prompts" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_resume_refuses_a_damaged_or_missing_checkpoint(
    whole: Path, stopped: Stopped, tmp_path: Path, capsys: Capture
) -> None:
    run = stopped(whole, tmp_path / "run", 4)
    before = (run / "metrics.jsonl").read_bytes()
    arrays = max((run / "checkpoints/4/state").rglob("d/*"), key=lambda path: path.stat().st_size)
    raw = bytearray(arrays.read_bytes())
    raw[len(raw) // 2] ^= 8
    arrays.write_bytes(raw)
    assert main(["--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"error: {run}/checkpoints/4: this checkpoint cannot be read: state/" in error
    assert error.endswith("put it back from a copy, or delete it to resume from step 3\n")
    shutil.rmtree(run / "checkpoints")
    for is_empty in (False, True):
        if is_empty:
            (run / "checkpoints").mkdir()
        assert main(["--resume", str(run)]) == 2
        assert "checkpoints of this run, the newest of step 5, are missing" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
# TensorStore's threads may call back into Orbax's event loop after its first failed write has closed it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_reported_and_keeps_the_last_checkpoint(
    alone: Start, small_disk: Path, remount: Callable[[str], None], capsys: Capture
) -> None:
    run = small_disk / "run"
    assert main(alone(run)) == 1
    error = capsys.readouterr().err
    assert f"error: {run} cannot be written: No space left on device; the checkpoint of step " in error
    assert error.count("\n") == 1, error
    steps = list_saved_steps(run)
    assert steps
    # With free space the run resumes from there.
    remount("size=64m")
    assert main(["--resume", str(run)]) == 0
    assert [row["step"] for row in lines(run / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5, 6, 6]


@pytest.mark.nightly
def test_a_failed_checkpoint_write_is_reported_in_one_line(alone: Start, tmp_path: Path) -> None:
    """A substitute for a full disk that needs no rights: the process may write no file over 100 kB.

    Orbax's and TensorStore's threads also print tracebacks, which are not checked here.
    """
    run = tmp_path / "run"
    limited = (
        "import resource, sys\n"
        "from jaxrl_sql.commands.train import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", limited, *alone(run, "model.d_ff=4096")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert ended.returncode == 1, ended.stderr
    assert len(errors) == 1
    assert errors[0] == f"error: {run} cannot be written: File too large; no checkpoint is saved"
    assert list_saved_steps(run) == []


@pytest.mark.parametrize("kind", ["a file is in the way", "no room", "read-only"])
def test_an_unwritable_folder_is_refused_at_start(
    kind: str, alone: Start, request: pytest.FixtureRequest, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    message = "cannot be written: Not a directory"
    if kind == "a file is in the way":
        run.write_text("mine", encoding="utf-8")
        run = run / "below"
    else:
        disk: Path = request.getfixturevalue("small_disk")
        run, message = disk / "run", "No space left on device"
        if kind == "no room":
            (disk / "ballast").write_bytes(bytes((2 << 20) - 100_000))
            message = "a checkpoint takes"
        else:
            request.getfixturevalue("remount")("ro")
            message = "cannot be written: Read-only file system"
    assert main(alone(run)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("INT", "TERM", 130),
        pytest.param("TERM", "INT", 0, marks=pytest.mark.nightly),
        pytest.param("TERM", "TERM", 0, marks=pytest.mark.nightly),
    ],
)
def test_signals_during_shutdown_do_not_damage_the_run(
    first: str, second: str, code: int, alone: Start, tmp_path: Path
) -> None:
    """Stopped in its first step, and signalled again while the report is written, as schedulers and users do."""
    run = tmp_path / "run"
    program = (
        "import os, signal, sys\nfrom jaxrl_sql.training import grpo\nfrom jaxrl_sql.commands.train import main\n"
        "whole = grpo.on_mesh\n"
        f"def stop(*arguments): os.kill(os.getpid(), signal.SIG{first}); return whole(*arguments)\n"
        "grpo.on_mesh = stop\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, *alone(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("stopped; resume with --resume"):
            assert list_saved_steps(run) == [1], "the message is printed after the checkpoint is saved"
            process.send_signal(getattr(signal, f"SIG{second}"))
            break
    _, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (code, "")
    assert (run / "report.html").exists()
    assert [row["phase"] for row in lines(run / "metrics.jsonl")] == ["eval", "grpo"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Ctrl-C", "error"])
def test_report_of_a_run_stopped_between_logged_steps_has_its_losses(
    kind: str, arguments: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run, step = tmp_path / "run", SftPhase.step

    def stopped_step(phase: SftPhase, at: int) -> None:
        if at == 2 and kind == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        if at == 2 and kind == "error":
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory: 7 bytes")
        step(phase, at)

    monkeypatch.setattr(SftPhase, "step", stopped_step)
    logged = "sft.log_every=1" if kind == "error" else "sft.log_every=20"
    code = main(arguments(run, "sft.steps=3", logged))
    assert code == (130 if kind == "Ctrl-C" else 1)
    output = capsys.readouterr()
    assert (output.err == "") == (kind == "Ctrl-C")
    loaded = load_run(run)
    assert (run / "report.html").exists()
    sentence, (begin, losses) = first_sentence(loaded, []), stop_lines(loaded)
    took = dict(describe_run(loaded))["duration"]
    if kind == "Ctrl-C":
        assert sentence == f"Stopped by Ctrl-C at step 2 of 6 after {took}, before its first evaluation."
        assert begin == ["The checkpoint of step 2 is complete. To continue: ", f"jaxrl-sql train --resume {run}"]
        assert re.fullmatch(r"SFT loss (\S+) → \1 \(steps 2 to 2\)", losses[0])
        monkeypatch.undo()
        assert main(["--resume", str(run), "run.display=none", "sft.log_every=1"]) == 0
        rows = [(row["step"], row["phase"]) for row in lines(run / "metrics.jsonl")]
        assert rows[:2] == [(3, "sft"), (3, "eval")], "the line of the stop is dropped"
        assert first_sentence(load_run(run), []).startswith("6 steps in ")
    else:
        assert sentence.startswith(f"Failed at step 1 of 6 after {took} (RESOURCE_EXHAUSTED: out of memory: 7 bytes)")
        assert begin[0] == "The checkpoint of step 1 is complete. To continue: "
        assert re.fullmatch(r"SFT loss (\S+) → \1 \(steps 1 to 1\)", losses[0])


@pytest.mark.slow
def test_a_second_ctrl_c_stops_immediately(alone: Start, tmp_path: Path) -> None:
    """A step that never ends is not waited for."""
    run = tmp_path / "run"
    program = (
        "import sys\nfrom jaxrl_sql.training import grpo\nfrom jaxrl_sql.commands.train import main\n"
        "whole = grpo.on_mesh\n"
        "def forever(*arguments):\n    print('in a step', flush=True)\n    while True:\n        whole(*arguments)\n"
        "grpo.on_mesh = forever\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, *alone(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output, bound = "", threading.Timer(600, process.kill)  # kills a process that does not stop, with its output
    bound.start()
    try:
        for awaited in ("in a step", "Ctrl-C again to stop at once"):
            while awaited not in output:
                line = process.stdout.readline()
                assert line, output
                output += line
            process.send_signal(signal.SIGINT)
        output += process.communicate()[0]
    finally:
        bound.cancel()
        process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert [row["phase"] for row in lines(run / "metrics.jsonl")] == ["eval"]
