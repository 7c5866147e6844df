"""Time a GRPO step of this project, of TRL and, on a CPU, of Tunix on the same work, in turns within one run.

The work: prompts of random tokens, a group of completions of fixed length for each, a random reward, the reference's
log-probabilities and one update. All stacks load the same folder with random weights. On a CPU the default is a model
of 4.2 million parameters: 8 prompts of 256 tokens, 8 completions of 128 tokens each, float32. On a GPU it is the shape
of Qwen2.5-Coder 1.5B in bfloat16 with adapters of rank 32, and TRL samples with vLLM in its process.

Each stack is a process (`stack_ours.py`, `stack_trl.py`, `stack_tunix.py`) that does its warm-up and then a step
whenever it has a turn. Ratios are taken within a turn. On a GPU the processes share the memory equally. `--restart`
instead starts a process for each turn, so that it has the whole device; `--steps-per-turn` then saves starts.

`make bench-stacks` installs TRL in `.venv-stacks`, with vLLM if the machine has an NVIDIA GPU, else Tunix in
`.venv-tunix`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from harness import Goal, Report, make_parser, ratios, run_turns, turns_of
from stack_worker import StackError, Step, Work, Worker, write_work
from write_results import lines_of

HERE = Path(__file__).resolve().parent
OURS = "ours"
ENVIRONMENTS = {"trl": HERE.parent / ".venv-stacks/bin/python", "tunix": HERE.parent / ".venv-tunix/bin/python"}
QUICK = Work(shape="tiny", prompts=2, prompt_tokens=64, group=4, new_tokens=16)
CPU = Work()
GPU = Work(
    shape="qwen2.5-coder-1.5b", prompts=16, prompt_tokens=1024, new_tokens=512, micro_batches=16, dtype="bfloat16",
    lora=32, checkpointing=1,
)  # fmt: skip
# Our whole step compared with the fastest other stack, for the default work of a CPU.
GOAL = Goal(2.3)
MEMORY_SHARE = 0.9  # of a GPU, for all processes together
PHASES = ("rollout", "reference", "update", "step")


class Stacks:
    """The stacks' processes, with their devices and versions and the seconds until each was ready."""

    def __init__(self, commands: Mapping[str, Sequence[str]], folder: Path, work: Work, restarts: bool) -> None:
        self.about: dict[str, dict[str, str]] = {}
        self.start_seconds: dict[str, list[float]] = {}
        self._commands, self._folder, self._restarts = commands, folder, restarts
        self._workers: dict[str, Worker] = {}
        self._variables = {
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),  # for a second start
            "XLA_PYTHON_CLIENT_MEM_FRACTION": str(work.device_share),
        }

    def turn(self, name: str, steps: int) -> list[Step]:
        """Let a stack do the steps of a turn, in a new process with `restarts`; raises StackError if it ends."""
        if self._restarts:
            self.start(name)
        worker = self._workers[name]
        results = [worker.step() for _ in range(steps)]
        shown = ", ".join(f"{result.seconds['step']:.2f} s" for result in results)
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
        if self._restarts:
            self._workers.pop(name).close()
        return results

    def close(self) -> None:
        """End all processes."""
        while self._workers:
            self._workers.popitem()[1].close()

    def start(self, name: str) -> None:
        """Start a stack's process and wait for its warm-up; raises StackError for another device than the expected."""
        print(f"starting {name}", file=sys.stderr, flush=True)
        worker = self._workers[name] = Worker(name, self._commands[name], self._folder, self._variables)
        self.about[name] = worker.about
        expected = "gpu" if has_gpu() else "cpu"
        if worker.about["platform"] != expected:
            raise StackError(
                f"{name} uses the {worker.about['platform']}, not the {expected}: see docs/howto/gpu_check.md"
            )
        self.start_seconds.setdefault(name, []).append(worker.warm_up())


def has_gpu() -> bool:
    """Return whether the stacks compare a GPU."""
    return shutil.which("nvidia-smi") is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def add_figures(report: Report, work: Work, results: Mapping[str, Sequence[Step]], goal: Goal | None) -> None:
    """Add each stack's figures and their ratios to ours within each turn."""
    others = [name for name in results if name != OURS]
    for phase in PHASES:
        seconds = {name: [step.seconds[phase] for step in steps] for name, steps in results.items()}
        for name, values in seconds.items():
            report.add(phase, values, "s", column=name)
        for name in others if OURS in results else ():
            report.add(phase, ratios(seconds[name], seconds[OURS]), "x", column=f"{name} / {OURS}")
    for phase in ("rollout", "step"):
        for name, steps in results.items():
            rates = [work.tokens / step.seconds[phase] for step in steps]
            report.add(f"completion tokens in the {phase}", rates, "tokens/s", column=name)
    for name, steps in results.items():
        for kind in steps[0].memory:
            report.add(kind, max(step.memory[kind] for step in steps), "MiB", column=name)
    if goal is not None and others and OURS in results:
        whole = {name: [step.seconds["step"] for step in steps] for name, steps in results.items()}
        fastest = [min(values) for values in zip(*(whole[name] for name in others), strict=True)]
        report.add("step, the fastest other stack / ours", ratios(fastest, whole[OURS]), "x", goal)


def parse_arguments() -> tuple[argparse.Namespace, Work]:
    """Return the options and the work."""
    parser = make_parser(__doc__)
    stacks = [OURS, "trl"] if has_gpu() else [OURS, *ENVIRONMENTS]
    parser.add_argument("--stacks", nargs="+", default=stacks, choices=[OURS, *ENVIRONMENTS])
    parser.add_argument(
        "--python", action="append", default=[], metavar="STACK=COMMAND", help="the Python of a stack; may be repeated"
    )
    parser.add_argument("--restart", action="store_true", help="start a stack's process anew for each turn")
    parser.add_argument("--steps-per-turn", type=int, default=1, help="timed steps of a turn (default: 1)")
    group = parser.add_argument_group("the work", Work.__doc__)
    names = [option.name for option in fields(Work) if option.name not in ("steps", "device_share")]
    for name in names:
        group.add_argument(f"--{name.replace('_', '-')}", type=type(getattr(CPU, name)))
    options = parser.parse_args()
    chosen = {name: value for name in names if (value := getattr(options, name)) is not None}
    timed = options.steps_per_turn * (1 if options.restart else turns_of(options))
    default = QUICK if options.quick else GPU if has_gpu() else CPU
    try:
        work = replace(
            default,
            **chosen,
            # A process with a step left waits for its turn.
            steps=chosen.get("warm_up", default.warm_up) + timed + 1,
            device_share=round(MEMORY_SHARE / (1 if options.restart else len(options.stacks)), 3),
        )
    except ValueError as error:
        parser.error(str(error))
    return options, work


def commands_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each stack's process."""
    pythons = {OURS: sys.executable, **{name: str(path) for name, path in ENVIRONMENTS.items()}}
    pythons |= dict(text.split("=", 1) for text in options.python)
    commands = {name: [*shlex.split(pythons[name]), str(HERE / f"stack_{name}.py")] for name in options.stacks}
    for name, command in commands.items():
        if shutil.which(command[0]) is None:
            raise StackError(
                f"{name}: {command[0]} does not exist: run make bench-stacks, or name --stacks or --python"
            )
    return commands


def run_stacks(options: argparse.Namespace, work: Work, turns: int) -> tuple[Stacks, dict[str, list[Step]]]:
    """Write the model, let the stacks take turns, and return them with their steps."""
    commands = commands_of(options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_work(folder, work)
        maker = [sys.executable, str(HERE / "stack_ours.py"), str(folder), "--make"]
        subprocess.run(maker, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        stacks = Stacks(commands, folder, work, options.restart)
        try:
            for name in () if options.restart else commands:
                stacks.start(name)
            calls = {name: partial(stacks.turn, name, options.steps_per_turn) for name in commands}
            results = run_turns(calls, turns, warm_up=0)
        finally:
            stacks.close()
    return stacks, {name: [step for steps in results[name] for step in steps] for name in commands}


def main() -> int:
    """Measure the stacks and print the table; return the exit code."""
    options, work = parse_arguments()
    print(f"the work: {work}", file=sys.stderr, flush=True)
    report = Report(options)
    try:
        stacks, results = run_stacks(options, work, report.turns)
    except StackError as error:
        print(f"bench_stacks: {error}", file=sys.stderr)
        return 1
    is_default = replace(work, steps=CPU.steps, device_share=CPU.device_share) == CPU
    add_figures(report, work, results, GOAL if is_default else None)
    for name, seconds in stacks.start_seconds.items():
        report.add("start, loading and warm-up", seconds, "s", column=name, note=stacks.about[name]["versions"])
    device = next(iter(stacks.about.values()))["device"]
    code = report.finish({"device": device}, work=asdict(work), stacks=stacks.about)
    print("\n" + "\n".join(lines_of([figure.as_row() for figure in report.figures])))
    return code


if __name__ == "__main__":
    sys.exit(main())
