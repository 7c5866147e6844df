"""The work that bench_stacks.py compares, and the messages between the benchmark and a stack's process.

A worker is `stack_NAME.py FOLDER`. It reports its device, reads `work.json` and the Hugging Face folder `model` in
FOLDER, does the warm-up steps and reports that it is ready. Then it does one step for each line "step" on its standard
input. All answers are lines of JSON. This module needs only the standard library, as workers run in other environments.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

DTYPES = ("float32", "mixed", "bfloat16")
MIB = 1 << 20
MODEL, WORK = "model", "work.json"
"""The model's folder and the file of the work, in the folder of all workers."""


@dataclass(frozen=True)
class Work:
    """A step of GRPO: `prompts` prompts of random tokens, `group` completions of each, one update.

    All completions have `new_tokens` tokens. The update runs in `micro_batches` parts of equal size. `dtype` is the
    type of weights and products; `mixed` is products in bfloat16 over weights in float32. `lora` is the rank of
    adapters for all matrices of the layers; 0 trains all weights. With `checkpointing` 1 the backward pass computes
    activations again. `kl` is the coefficient of the KL divergence from the initial policy; with 0 no reference is
    scored. A process does `warm_up` steps before it is ready and at most `steps` in all. `device_share` is its share of
    a GPU's memory, `vllm_share` the share of that for vLLM.
    """

    shape: str = "small"
    prompts: int = 8
    prompt_tokens: int = 256
    group: int = 8
    new_tokens: int = 128
    micro_batches: int = 1
    dtype: str = "float32"
    lora: int = 0
    checkpointing: int = 0
    kl: float = 0.04
    warm_up: int = 2
    steps: int = 50
    device_share: float = 0.9
    vllm_share: float = 0.3

    def __post_init__(self) -> None:
        """Refuse work that the stacks cannot divide in the same way."""
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.prompts % self.micro_batches:
            raise ValueError(f"micro_batches ({self.micro_batches}) must divide the {self.prompts} prompts")
        if self.group < 2:
            raise ValueError(f"group is {self.group}, must be at least 2")

    @property
    def completions(self) -> int:
        """Return the completions of a step."""
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        """Return the completion tokens of a step."""
        return self.completions * self.new_tokens

    @property
    def weight_dtype(self) -> str:
        """Return the type of the trained weights."""
        return "bfloat16" if self.dtype == "bfloat16" else "float32"

    @property
    def product_dtype(self) -> str:
        """Return the type of matrix products, in which the model's folder is stored."""
        return "float32" if self.dtype == "float32" else "bfloat16"


def write_work(folder: Path, work: Work) -> None:
    """Write the work for the workers of a folder."""
    (folder / WORK).write_text(json.dumps(asdict(work)), encoding="utf-8")


def read_work(folder: Path) -> Work:
    """Return the work that `write_work` wrote."""
    return Work(**json.loads((folder / WORK).read_text(encoding="utf-8")))


def prompts_of(work: Work, step: int, vocab_size: int) -> list[list[int]]:
    """Return the prompts of a step; id 0 pads and the last one is TRL's end token."""
    r = random.Random(f"prompts of step {step}")
    return [[r.randrange(1, vocab_size - 1) for _ in range(work.prompt_tokens)] for _ in range(work.prompts)]


def peak_resident() -> dict[str, float]:
    """Return the peak resident memory of this process in MiB; Linux counts it in KiB."""
    return {"peak memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


class Step(NamedTuple):
    """The seconds of a step's phases and of the whole step, and the peak of the memory so far in MiB."""

    seconds: dict[str, float]
    memory: dict[str, float]


class Turns:
    """The worker's side. What libraries print goes to the log, as this object takes the standard output."""

    def __init__(self) -> None:
        self.folder = Path(sys.argv[1])
        self.work = read_work(self.folder)
        self.model = self.folder / MODEL
        self.vocab_size: int = json.loads((self.model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def prompts(self, step: int) -> list[list[int]]:
        """Return the prompts of a step, counted from 0."""
        return prompts_of(self.work, step, self.vocab_size)

    def begin(self, platform: str, device: str, versions: str) -> None:
        """Report the platform (`cpu` or `gpu`), the device and the libraries' versions, before the model is loaded."""
        self._send({"platform": platform, "device": device, "versions": versions})

    def ready(self) -> None:
        """Report the end of the warm-up."""
        self._send({})

    def wait(self) -> bool:
        """Wait for the next turn; return False if there is none."""
        return sys.stdin.readline().strip() == "step"

    def answer(self, step: Step) -> None:
        """Report a step."""
        self._send(step._asdict())

    def serve(self, step: Callable[[int], Step]) -> None:
        """Do the warm-up, then a step per turn. `step` receives its number."""
        for number in range(self.work.warm_up):
            step(number)
        self.ready()
        number = self.work.warm_up
        while self.wait():
            self.answer(step(number))
            number += 1

    def _send(self, message: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


class StackError(Exception):
    """A stack's process ended early; the message has the end of its log."""


class Worker:
    """The benchmark's side: a stack's process, which does a step per turn; `about` is its device and versions."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.name, self._log, self._began = name, folder / f"{name}.log", time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **variables},
            )
        self.about: dict[str, str] = self._receive()

    def warm_up(self) -> float:
        """Wait for the end of the warm-up and return the seconds since the start."""
        self._receive()
        return time.perf_counter() - self._began

    def step(self) -> Step:
        """Let the process do a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return Step(**self._receive())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            end = self._log.read_text(encoding="utf-8", errors="replace")[-4000:].strip()
            raise StackError(f"{self.name} ended with code {code}:\n{end}")
        message: dict[str, Any] = json.loads(line)
        return message
