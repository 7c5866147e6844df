"""Write a checkpoint of a run as a Hugging Face folder, in bfloat16: `export_checkpoint.py RUN STEP OUT`.

Of any phase, and also of a run that never came to its end. Not of adapters, which are nothing without their base.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import load_tokenizer, save_checkpoint
from jaxrl_sql.run.questions import model_config
from jaxrl_sql.runtime.checkpoint import Checkpoints
from jaxrl_sql.types import InputError


def parameters(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the policy's parameters as a nested dict, of a state's arrays by name."""
    parts = ("trainable.policy.", "trainable.")  # with a value head beside it, and without
    part = next(part for part in parts if any(name.startswith(part) for name in arrays))
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        if name.startswith(part):
            *folders, leaf = name.removeprefix(part).split(".")
            place = tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[leaf] = array
    return tree


def tokenizer_of(config: TrainConfig, run: Path) -> Any:
    """Return the tokenizer that the run was made with."""
    own, named = run / "tokenizer", config.data.tokenizer or config.model.checkpoint
    return load_tokenizer(named or (own if own.exists() else Path(config.data.dir) / "tokenizer"))


def export(run: Path, step: int, out: Path) -> None:
    """Read the step's arrays and save the policy's."""
    config = load_config(run / "config.yaml")
    if config.model.lora.rank:
        raise InputError(f"{run}: its checkpoints hold adapters alone")
    tokenizer = tokenizer_of(config, run)
    with Checkpoints(run / "checkpoints", sys.maxsize) as checkpoints:
        params = parameters(checkpoints.arrays(step))
    save_checkpoint(out, model_config(config, tokenizer), params, tokenizer, dtype="bfloat16")


def main() -> int:
    """Export what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("step", type=int)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    try:
        export(given.run, given.step, given.out)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
