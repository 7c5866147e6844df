"""Time the engine's host work per decode slot and chunk, with ready-made logs instead of a model.

`python scripts/bench_host.py`: slots take completions of exponential length (mean 60 and 200 tokens, at most 512),
eight for each prompt of 128 tokens, in chunks of 16 steps. A first run simulates the slots and records the log of each
chunk. Timed runs replay the logs, so planning, arguments, reading and samples are measured, and no program. Starting a
program and copying its arguments and logs are not included, and the text of completions is timed apart. Times are
processor time of the thread, so other processes change them little. They are per chunk and slot with a token in it.

`--compare FOLDER` also measures the package of another checkout in the same turns, and checks that both return the same
samples. Each turn is a new process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from harness import Goal, Report, make_parser, ratios, run_turns

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.planning.lengths import shuffle_lengths, truncated_exponential
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams, decode
from jaxrl_sql.rollout.call import EngineCall
from jaxrl_sql.rollout.engine import make_request

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


class TimedTokenizer:
    """A tokenizer that measures the seconds of `decode`."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.seconds = tokenizer, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Return the text of ids."""
        start = time.thread_time()
        text = str(self.tokenizer.decode(ids, **options))
        self.seconds += time.thread_time() - start
        return text


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


class Seconds(NamedTuple):
    """Seconds of a call: to launch chunks, to read them without the text of completions, and for this text."""

    launch: float
    read: float
    text: float


def serve(call: EngineCall, tokenizer: TimedTokenizer) -> tuple[Seconds, list[Sample]]:
    """Run a call to its end and return the seconds and the samples."""
    samples = list[Sample]()
    launch = read = tokenizer.seconds = 0.0
    while call.unfinished:
        start = time.thread_time()
        samples += call.launch()
        launched = time.thread_time()
        samples += call.read()
        launch, read = launch + launched - start, read + time.thread_time() - launched
    return Seconds(launch, read - tokenizer.seconds, tokenizer.seconds), samples


def measure(load: Load) -> dict[str, Any]:
    """Return a load's seconds, counts and a hash of its samples."""
    tokenizer = TimedTokenizer(load_tokenizer(str(ROOT / "configs/quickstart_start")))
    vocab_size = len(tokenizer.get_vocab())
    model = ModelConfig("qwen3", vocab_size, 8, 1, 1, 1, 8, 8, Rope(1e4), Norms(), True, True, False, 4096)
    config = EngineConfig(load.slots, chunk_steps=STEPS, max_prompt_bucket=PROMPT)
    engine = Engine(model, init_params(model, jax.random.key(0)), tokenizer, config)  # type: ignore[arg-type]
    count = load.slots * ROUNDS
    lengths = shuffle_lengths(truncated_exponential(load.mean, LONGEST).take(count)).clip(1)
    prompts = np.random.default_rng(1).integers(0, vocab_size, (count // GROUP, PROMPT)).tolist()
    sampling = SamplingParams(n=GROUP, max_new_tokens=LONGEST)
    logs = list[decode.StepLog]()
    slots = SimulatedSlots(load.slots, lengths, vocab_size)

    def record(*arguments: Any) -> Any:
        logs.append(slots.decode(int(arguments[6].tail)))
        return arguments[4], logs[-1]

    def replay(*arguments: Any) -> Any:
        return arguments[4], next(remaining)

    decode.prefill_chunk = lambda *arguments: (arguments[2], arguments[3])
    decode.copy_blocks = lambda *arguments: arguments[2]
    for decode_chunk in (record, replay, replay):
        decode.decode_chunk, remaining = decode_chunk, iter(logs)
        engine.reset_prefix_cache()
        call = engine.begin(make_request(engine.tokenizer, prompts, sampling, 0, None))
        seconds, samples = serve(call, tokenizer)
    assert len(samples) == count, f"{len(samples)} samples of {count}"
    digest = hashlib.sha256(repr(samples).encode()).hexdigest()
    busy = sum(int((log.completion >= 0).any(axis=0).sum()) for log in logs)
    return {"seconds": seconds, "busy": busy, "completions": count, "digest": digest}


def run_worker(checkout: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all loads with a checkout's package, in a new process."""
    command = [sys.executable, __file__, "--worker", *["--quick"] * options.quick]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def main() -> int:
    """Measure the loads; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--compare", type=Path, metavar="FOLDER", help="another checkout, which is measured too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    loads = QUICK if options.quick else LOADS
    if options.worker:
        print(json.dumps([measure(load) for load in loads]))
        return 0
    checkouts = {"this checkout": ROOT} | ({"the other": options.compare.resolve()} if options.compare else {})
    report = Report(options)
    variants = {name: lambda checkout=checkout: run_worker(checkout, options) for name, checkout in checkouts.items()}
    taken = run_turns(variants, report.turns, warm_up=0, rotate=True)
    for i, load in enumerate(loads):
        first, *others = (turns[0][i] for turns in taken.values())
        assert all(other["digest"] == first["digest"] for other in others), "the checkouts return other samples"
        unit, share = 1e6 / first["busy"], "µs per slot and chunk"
        totals = {}
        for name, turns in taken.items():
            launch, read, text = (list(values) for values in zip(*(turn[i]["seconds"] for turn in turns), strict=True))
            totals[name] = [a + b for a, b in zip(launch, read, strict=True)]
            report.add(f"{load}: launch", [x * unit for x in launch], share, column=name)
            report.add(f"{load}: read", [x * unit for x in read], share, column=name)
            report.add(f"{load}: both", [x * unit for x in totals[name]], share, column=name)
            per_completion = [x * 1e6 / first["completions"] for x in text]
            report.add(f"{load}: text", per_completion, "µs per completion", column=name)
        if others:
            report.add(f"{load}: the other / this checkout", ratios(*list(totals.values())[::-1]), "x", GOAL)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
