"""Trace a small training and print the files that a reader visits from its configuration to its first gradient.

A landmark is a function of the walk in docs/architecture.md. The walk has the calls around each landmark at its first
call after the previous landmark. A stack continues from the last call that both have. A return enters a file that the
walk has already visited, including a return to a caller.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jaxrl_sql.commands.train import main as train
from jaxrl_sql.datagen.synth.dataset import generate
from jaxrl_sql.datagen.synth.spec import SynthSpec

PACKAGE = Path(__file__).resolve().parents[1] / "jaxrl_sql"
LANDMARKS = {
    "config/load.py": "load_config",
    "inference/questions.py": "load_questions",
    "text2sql/prompts/prompts.py": "make_prompts",
    "training/collect.py": "generate_groups",
    "rollout/decode.py": "decode_chunk",
    "text2sql/rewards/score.py": "submit_texts",
    "training/batching/pack.py": "pack_groups",
    "models/policy.py": "make_policy.<locals>.logprobs",
    "algo/loss.py": "grpo_loss",
}
SMALL = (
    "model.init=plain", "model.compute_dtype=same", "model.d_model=32", "model.n_layers=1", "model.n_heads=2",
    "model.n_kv_heads=1", "model.head_dim=16", "model.d_ff=48", "data.prompt=compact", "data.evals=[dev_unseen]",
    "data.max_prompt_tokens=320", "sft.steps=0", "grpo.steps=1", "grpo.prompts=2", "grpo.num_generations=2",
    "grpo.optim.lr=1e-4", "sampling.max_new_tokens=12", "rollout.max_num_seqs=4", "run.pad_to_max=true",
    "run.display=none",
    "validation.max_num_seqs=2",
)  # fmt: skip


class Call(NamedTuple):
    """A call of a function of the package; `place` identifies the call's frame."""

    file: str
    function: str
    place: int


class Stacks:
    """A profiler for `sys.setprofile` that keeps the calls around each landmark, outermost first."""

    def __init__(self) -> None:
        self.found: dict[str, list[Call]] = {}
        self._coming = iter(LANDMARKS.items())
        self._next = next(self._coming, None)
        self._frames: list[FrameType] = []  # a stored frame's identity is not reused

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Keep the calls around a landmark."""
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        file = _file(frame.f_code)
        if (file, frame.f_code.co_qualname) != self._next:
            return
        self._next = next(self._coming, None)
        frames = list(_frames(frame))[::-1]
        self._frames += frames
        self.found[file] = [Call(_file(call.f_code), call.f_code.co_qualname, id(call)) for call in frames]


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the package from a frame outwards, without lambdas."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)) and "<lambda>" not in frame.f_code.co_qualname:
            yield frame
        frame = frame.f_back


def _file(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(PACKAGE).as_posix()


def walk(stacks: Sequence[Sequence[Call]]) -> list[Call]:
    """Return the calls of stacks in order, each from the last call that it shares with the previous stack."""
    path: list[Call] = []
    before: Sequence[Call] = ()
    for stack in stacks:
        shared = sum(1 for _ in _shared_calls(before, stack))
        path += stack[max(shared - 1, 0) :]
        before = stack
    return path


def _shared_calls(before: Sequence[Call], stack: Sequence[Call]) -> Iterator[Call]:
    for old, new in zip(before, stack, strict=False):
        if old != new:
            return
        yield new


def visits(path: Sequence[Call]) -> list[list[Call]]:
    """Return the calls of a walk, grouped by consecutive calls of one file."""
    groups: list[list[Call]] = []
    for call in path:
        if groups and groups[-1][0].file == call.file:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def trace(folder: Path) -> list[list[Call]]:
    """Train a small model in a folder and return the stacks of the landmarks; raises RuntimeError if it fails."""
    data = folder / "data"
    generate(data, SynthSpec(train_dbs=2, dev_dbs=1, unseen_dbs=1, train_questions=4, dev_questions=2))
    places = [f"data.dir={data}", f"data.tokenizer.path={data}/tokenizer", f"run.dir={folder}/run"]
    stacks = Stacks()
    sys.setprofile(stacks)
    try:
        code = train([*SMALL, *places])
    finally:
        sys.setprofile(None)
    missing = LANDMARKS.keys() - stacks.found.keys()
    if code or missing:
        raise RuntimeError(f"the run ended with code {code}, and did not call {sorted(missing)}")
    return list(stacks.found.values())


def main() -> None:
    """Print each visit of a file with its functions, and the counts."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with TemporaryDirectory() as folder:
        groups = visits(walk(trace(Path(folder))))
    seen: set[str] = set()
    for visit in groups:
        file, is_return = visit[0].file, visit[0].file in seen
        seen.add(file)
        functions = " > ".join(dict.fromkeys(call.function for call in visit))
        sys.stdout.write(f"{'return' if is_return else '':<7} {file:<34} {functions}\n")
    sys.stdout.write(f"{len(seen)} files, {len(groups) - len(seen)} returns\n")


if __name__ == "__main__":
    main()
