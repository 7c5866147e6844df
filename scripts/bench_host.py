"""Time the engine's host work per decode slot and chunk, with ready-made logs instead of a model.

`python scripts/bench_host.py`: slots take completions of exponential length (mean 60 and 200 tokens, at most 512),
eight for each prompt of 128 tokens, in chunks of 16 steps. A first run simulates the slots and records the log of each
chunk. Timed runs replay the logs, so planning, arguments, reading and samples are measured, and no program. Starting a
program and copying its arguments and logs are not included. Samples and their text are measured per completion. Times
are processor time of the thread, so other processes change them little.

`--compare FOLDER` also measures the package of another checkout in the same turns, and checks that both return the same
samples. Each checkout has a process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from harness import Goal, Report, make_parser, ratios, run_turns

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.planning.lengths import shuffle_lengths, truncated_exponential
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams, decode
from jaxrl_sql.rollout.engine import make_request
from jaxrl_sql.rollout.stop_strings import Vocabulary

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
STEPS, GROUP, PROMPT, LONGEST = 16, 8, 128, 512
# Completions per slot.
ROUNDS = 4
GOAL = Goal(5)


class Load(NamedTuple):
    """A number of decode slots, and the mean length of the completions."""

    slots: int
    mean: int

    def __str__(self) -> str:
        return f"{self.slots} slots, mean {self.mean} tokens"


LOADS = tuple(Load(slots, mean) for slots in (64, 256, 1024) for mean in (60, 200))
QUICK = (Load(16, 60),)


class Stopwatch:
    """The seconds in calls of a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return the function with its seconds added to this stopwatch's."""

        def watched(*arguments: Any, **options: Any) -> T:
            start = time.thread_time()
            result = function(*arguments, **options)
            self.seconds += time.thread_time() - start
            return result

        return watched


class SimulatedSlots:
    """Decode slots whose completion i has `lengths[i]` random tokens and then an end token."""

    def __init__(self, slots: int, lengths: np.ndarray, vocab_size: int) -> None:
        self.lengths, self.vocab_size, self.random = lengths, vocab_size, np.random.default_rng(0)
        self.number, self.length, self.taken = np.full(slots, -1), np.zeros(slots, np.int32), 0

    def decode(self, tail: int) -> decode.StepLog:
        """Return the log of a chunk that takes completions before number `tail`."""
        shape = (STEPS, len(self.number))
        completion, end = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        for step in range(STEPS):
            free = np.flatnonzero(self.number < 0)[: tail - self.taken]
            self.number[free] = np.arange(self.taken, self.taken + len(free))
            self.length[free] = 0
            self.taken += len(free)
            is_running = self.number >= 0
            completion[step], self.length = self.number, self.length + is_running
            is_last = is_running & (self.length >= self.lengths[self.number])
            end[step, is_last] = decode.End.TOKEN
            self.number[is_last] = -1
        token = self.random.integers(0, self.vocab_size, shape, np.int32)
        logprob, behavior_logprob = -self.random.random((2, *shape), np.float32)
        fields = (completion, token, logprob, behavior_logprob, end, self.length.copy(), np.int32(self.taken))
        return decode.StepLog(*fields)  # type: ignore[arg-type] # NumPy's


class Measurement(NamedTuple):
    """A load's seconds to launch chunks, to read their logs, for samples and their text, and its counts.

    busy: pairs of a chunk and a slot with a token in it. digest: a hash of all samples.
    """

    launch: float
    read: float
    sample: float
    text: float
    busy: int
    completions: int
    digest: str


class ReplayedLoad:
    """A call with a load, whose chunks are simulated once and replayed then."""

    def __init__(self, load: Load) -> None:
        tokenizer = load_tokenizer(str(ROOT / "configs/quickstart_start"))
        vocab_size = len(tokenizer.get_vocab())
        model = ModelConfig("qwen3", vocab_size, 8, 1, 1, 1, 8, 8, Rope(1e4), Norms(), True, True, False, 4096)
        config = EngineConfig(load.slots, chunk_steps=STEPS, longest_prompt=PROMPT, pads_to_max=True)
        self.engine = Engine(model, init_params(model, jax.random.key(0)), tokenizer, config)
        count = load.slots * ROUNDS
        lengths = shuffle_lengths(truncated_exponential(load.mean, LONGEST).take(count)).clip(1)
        prompts = np.random.default_rng(1).integers(0, vocab_size, (count // GROUP, PROMPT)).tolist()
        sampling = SamplingParams(n=GROUP, max_new_tokens=LONGEST)
        self.request = make_request(tokenizer, prompts, sampling, 0, None)
        self.logs, slots = list[decode.StepLog](), SimulatedSlots(load.slots, lengths, vocab_size)

        def simulate(tail: int) -> decode.StepLog:
            self.logs.append(slots.decode(tail))
            return self.logs[-1]

        self._serve(simulate)

    def measure(self) -> Measurement:
        """Replay the logs and return the measurement."""
        logs = iter(self.logs)
        return self._serve(lambda _: next(logs))

    def _serve(self, next_log: Callable[[int], decode.StepLog]) -> Measurement:
        """Run the call with `next_log(tail)` as the log of the next chunk."""
        decode.prefill_chunk = lambda *arguments: (arguments[2], arguments[3])
        decode.copy_blocks = lambda *arguments: arguments[2]
        decode.decode_chunk = lambda *arguments: (arguments[4], next_log(int(arguments[6].tail)))
        self.engine.reset_prefix_cache()
        call, samples = self.engine.begin(self.request), list[Sample]()
        launch, read, sample, text = (Stopwatch() for _ in range(4))
        call._end_turn = sample.watch(call._end_turn)  # type: ignore[method-assign] # noqa: SLF001 (the part per completion)
        call.vocabulary.text = text.watch(Vocabulary(self.engine.tokenizer).text)  # type: ignore[method-assign]
        launch_chunk, read_chunk = launch.watch(call.launch), read.watch(call.read)
        while call.unfinished:
            samples += [*launch_chunk(), *read_chunk()]
        return Measurement(
            launch=launch.seconds,
            read=read.seconds - sample.seconds,
            sample=sample.seconds - text.seconds,
            text=text.seconds,
            busy=sum(int((log.completion >= 0).any(axis=0).sum()) for log in self.logs),
            completions=len(samples),
            digest=hashlib.sha256(repr(samples).encode()).hexdigest(),
        )


def serve_worker(loads: Sequence[Load]) -> None:
    """Measure all loads for each line of standard input, and write the measurements as a line of JSON."""
    replayed = [ReplayedLoad(load) for load in loads]
    for _ in sys.stdin:
        print(json.dumps([load.measure()._asdict() for load in replayed]), flush=True)


class Worker:
    """A process that measures the package of a checkout."""

    def __init__(self, checkout: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--worker", *["--quick"] * options.quick]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self) -> list[Measurement]:
        """Return the measurements of all loads."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("measure\n")
        self._process.stdin.flush()
        return [Measurement(**fields) for fields in json.loads(self._process.stdout.readline())]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def add_figures(report: Report, load: Load, measurements: Mapping[str, Sequence[Measurement]]) -> None:
    """Add the figures of a load, by checkout, and the ratio of the second checkout and the first."""
    assert len({m.digest for turns in measurements.values() for m in turns}) == 1, "the samples differ"
    for name, turns in measurements.items():
        for part in ("launch", "read"):
            values = [1e6 * getattr(m, part) / m.busy for m in turns]
            report.add(f"{load}: {part}", values, "µs per slot and chunk", column=name)
        for part in ("sample", "text"):
            values = [1e6 * getattr(m, part) / m.completions for m in turns]
            report.add(f"{load}: {part}", values, "µs per completion", column=name)
    if len(measurements) > 1:
        ours, theirs = measurements.values()
        per_chunk = ratios([m.launch + m.read for m in theirs], [m.launch + m.read for m in ours])
        report.add(f"{load}: launch and read, the other / this checkout", per_chunk, "x", GOAL)
        per_completion = ratios([m.sample for m in theirs], [m.sample for m in ours])
        report.add(f"{load}: sample, the other / this checkout", per_completion, "x")


def main() -> int:
    """Measure the loads; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--compare", type=Path, metavar="FOLDER", help="another checkout, which is measured too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    loads = QUICK if options.quick else LOADS
    if options.worker:
        serve_worker(loads)
        return 0
    checkouts = {"this checkout": ROOT} | ({"the other": options.compare.resolve()} if options.compare else {})
    report = Report(options)
    workers = {name: Worker(checkout, options) for name, checkout in checkouts.items()}
    turns = run_turns({name: worker.measure for name, worker in workers.items()}, report.turns, rotate=True)
    for worker in workers.values():
        worker.close()
    for i, load in enumerate(loads):
        add_figures(report, load, {name: [results[i] for results in values] for name, values in turns.items()})
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
