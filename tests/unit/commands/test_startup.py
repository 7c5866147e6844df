"""Commands print help and reject bad arguments or settings before they import slow modules."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from jaxrl_sql.__main__ import commands
from jaxrl_sql.commands.export import DTYPES as EXPORT_DTYPES
from jaxrl_sql.commands.export import GGUF_KINDS
from jaxrl_sql.models.formats.gguf_write import KINDS
from jaxrl_sql.models.formats.hf import DTYPES

SLOW = (
    "jax", "jaxlib", "flax", "optax", "orbax", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy",
    "scipy", "pandas", "sqlglot", "bm25s", "inflect", "jinja2", "tensorboardX", "openai", "starlette", "uvicorn",
    "pydantic", "mcp", "prompt_toolkit",
)  # fmt: skip
START = "configs/quickstart_start"
# Per command with settings: arguments with a typo in a key, and the correct key.
TYPOS = {
    "quickstart": ("grpo.stpes=3", "grpo.steps"),
    "train": ("--config configs/quickstart.yaml grpo.stpes=3", "grpo.steps"),
    "sft": ("sft.stpes=3", "sft.steps"),
    "plan": ("--topology h100:8 grpo.stpes=3", "grpo.steps"),
    "launch": ("slurm --hosts 2 --config configs/quickstart.yaml grpo.stpes=3", "grpo.steps"),
    "evaluate": (f"--data d --model {START} evaluate.smaples=1", "evaluate.samples"),
    "ask": (f"--db no.sqlite --model {START} evaluate.smaples=1 Why?", "evaluate.samples"),
    "serve": (f"--model {START} rollout.max_num_sqes=1", "rollout.max_num_seqs"),
    "mcp": (f"--db no.sqlite --model {START} evaluate.smaples=1", "evaluate.samples"),
    "verbal": ("verbal.candidtes=3", "verbal.candidates"),
    "distill": ("distill.smaples=3", "distill.samples"),
    "data prepare": ("--config configs/data/arctic.yaml vm_stpes=3", "vm_steps"),
    "data augment": ("augment.crrect=3", "augment.correct"),
    "data filter": ("filter.smaples=3", "filter.samples"),
}
WITHOUT_SETTINGS = {
    "doctor", "view", "report", "export", "data synth", "data audit", "data copy",
}  # fmt: skip
# Invalid arguments, and a part of the error.
REFUSALS = {
    "train": ("", "no arguments: start with"),
    "sft": ("data.dir=d model.checkpoint=m", "sft.steps=0 and sft.epochs=0: set one of them"),
    "plan": ("--topology h100:8 --compile updates model.checkpoint=m", "--compile updates: 'updates'"),
    "launch": ("slurm --hosts 0 --config configs/quickstart.yaml", "--hosts 0"),
    "evaluate": ("--predictions f", "--data is missing"),
    "evaluate --as artic": ("--data d --predictions f", "the nearest is arctic"),
    "ask": (f"--db no.sqlite --model {START} one two", "expected one question"),
    "export": ("run --gguf q4", "invalid choice: 'q4'"),
    "serve": (f"--model {START} --queue 0", "--queue must be at least 1"),
    "mcp": ("--db no.sqlite --max-rows 0", "--max-rows must be at least 1"),
    "verbal": ("data.dir=d", "verbal needs a model"),
    "distill": ("data.dir=d", "distill.base_url is empty"),
    "data synth": ("--out d --db no.sqlite --n 0", "n must be at least 1"),
    "data audit": ("", "name sets with --train and --eval"),
    "data copy": ("--from d --to nowhere --out d", "nowhere: not the URL of a database"),
}  # fmt: skip
PROGRAM = f"""
import contextlib, io, json, sys
from jaxrl_sql.__main__ import main
for line in sys.stdin:
    output, before = io.StringIO(), set(sys.modules)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(json.loads(line))
        except SystemExit as end:
            code = end.code
    slow = [name for name in {SLOW!r} if name in sys.modules and name not in before]
    print(json.dumps([code, slow, output.getvalue()]), flush=True)
"""


class End(NamedTuple):
    """A command line's exit code, its output, and the slow modules imported before it ended."""

    code: int
    slow: list[str]
    output: str


def lines_of() -> list[str]:
    """Return the command lines to run."""
    helps = [f"{name} --help" for name in commands()]
    typos = [f"{name} {arguments}" for name, (arguments, _) in TYPOS.items()]
    return [*helps, *typos, *(f"{name} {arguments}" for name, (arguments, _) in REFUSALS.items())]


@pytest.fixture(scope="module")
def ends() -> dict[str, End]:
    """Run all command lines in one process and return the end of each."""
    lines = lines_of()
    arguments = "".join(f"{json.dumps(line.split())}\n" for line in lines)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {line: End(*json.loads(end)) for line, end in zip(lines, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("name", commands())
def test_help_imports_nothing_slow(name: str, ends: dict[str, End]) -> None:
    end = ends[f"{name} --help"]
    assert (end.code, end.slow) == (0, [])
    assert end.output.startswith(f"usage: jaxrl-sql {name} ")


@pytest.mark.parametrize("name", TYPOS)
def test_unknown_key_is_reported_before_slow_imports(name: str, ends: dict[str, End]) -> None:
    arguments, key = TYPOS[name]
    end = ends[f"{name} {arguments}"]
    assert (end.code, end.slow) == (2, [])
    assert end.output.endswith(f"the nearest is {key}\n")
    assert end.output.count("\n") == 1


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_arguments_are_reported_before_slow_imports(name: str, ends: dict[str, End]) -> None:
    arguments, message = REFUSALS[name]
    end = ends[f"{name} {arguments}"]
    assert (end.code, end.slow) == (2, [])
    assert message in end.output
    assert end.output.count("\n") == 1


def test_every_command_with_settings_has_a_listed_typo() -> None:
    assert set(TYPOS) | WITHOUT_SETTINGS == set(commands())
    assert not set(TYPOS) & WITHOUT_SETTINGS


def test_export_choices_equal_its_writers() -> None:
    assert tuple(KINDS) == GGUF_KINDS
    assert EXPORT_DTYPES == DTYPES
