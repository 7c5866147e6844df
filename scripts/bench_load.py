"""Time a folder of weights being loaded against its bytes being read.

`python scripts/bench_load.py`: a folder of Qwen2.5-0.5B's shape (494 million parameters, random, one bfloat16 file) is
written to a temporary folder. `read` is the file's bytes into memory, from its beginning to its end; `load` is
`load_checkpoint` to one device in the file's own dtype, and cast to float32. The file is in the system's cache; the
three take turns, and figures are medians of `--runs`. The goal is a load in the file's own dtype in at most 1.5 times
the read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.models import ModelConfig, count_params, load_checkpoint, param_specs, save_checkpoint
from jaxrl_sql.models.spec import nest

MODEL = ModelConfig("qwen2", 151_936, 896, 24, 14, 2, 64, 4864, 1e6, 1e-6, True, False, True, 32_768)
GOAL = 1.5
BELOW_ONE = 0x3F80  # the bits of 1.0 in bfloat16


def random_params() -> Any:
    """Draw weights between 0 and 1 on the host."""
    r = np.random.default_rng(0)
    return nest(
        (spec, r.integers(0, BELOW_ONE, spec.shape, np.uint16).view(jnp.bfloat16)) for spec in param_specs(MODEL)
    )


def read(files: list[Path]) -> list[bytes]:
    """Read the files' bytes into memory."""
    return [file.read_bytes() for file in files]


def load(folder: Path, dtype: str) -> Any:
    """Load the folder to the first device."""
    return jax.block_until_ready(load_checkpoint(folder, dtype)[1])


def seconds(run: Callable[[], Any]) -> float:
    """Time a call; what it returns is dropped before the next one."""
    start = time.perf_counter()
    result = run()
    taken = time.perf_counter() - start
    del result
    return taken


def main() -> int:
    """Print a line a way; the exit code is 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_checkpoint(folder, MODEL, random_params(), dtype="bfloat16")
        files = sorted(folder.glob("*.safetensors"))
        ways = {"read": partial(read, files)} | {
            f"load {dtype}": partial(load, folder, dtype) for dtype in ("bfloat16", "float32")
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(given.runs + 1):
            for way, run in ways.items():
                taken = seconds(run)
                if turn:  # the first fills the system's cache
                    times[way].append(taken)
        size = sum(file.stat().st_size for file in files)
    print(f"{count_params(MODEL):,} parameters, {size / 1e9:.3f} GB, medians of {given.runs} in turns")
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    for way, taken in times.items():
        shown = " ".join(f"{t:.3f}" for t in taken)
        print(f"{way:14} {medians[way]:.3f} s  {medians[way] / medians['read']:.2f}x read  ({shown})")
    return 0 if medians["load bfloat16"] <= GOAL * medians["read"] else 1


if __name__ == "__main__":
    sys.exit(main())
