"""The commands of short pages run, in order and at a small scale.

Pages of docs: resume.md, recipe.md, lora.md, engines.md, quickstart.md; of skills/: each SKILL.md.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.datagen.synth import SynthSpec, generate

ROOT = Path(__file__).parents[2]
MARK = "<!-- run by tests/docs/test_howto.py -->"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("docs/howto/*.md"), *ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("skills/*/SKILL.md"))
    if MARK in path.read_text(encoding="utf-8")
)
SYNTH = ["data.source=folder", "data.dir=data"]
TINY = [
    "data.max_prompt_tokens=320",
    "validation.sampling.max_new_tokens=8",
    "validation.max_num_seqs=8",
    "data.select.limit_eval=2",
]
RUN = [*TINY, "grpo.steps=1", "grpo.prompts=2", "grpo.num_generations=2", "sampling.max_new_tokens=8",
       "data.evals=[dev]", "rollout.max_num_seqs=8"]  # fmt: skip
ANSWER = ["evaluate.sampling.max_new_tokens=8", "evaluate.max_num_seqs=8"]


def smaller(arguments: list[str]) -> list[str]:
    """Return overrides that make a page's command small; later values take precedence."""
    name, line = arguments[0], " ".join(arguments)
    if "--resume" in arguments or "--compare" in arguments:
        return []
    if "own_database" in line:
        settings = ["data.schema=compact", "data.max_prompt_tokens=320"]
        return [*settings, *{"evaluate": ANSWER, "sft": [*TINY, "sft.epochs=1"], "train": RUN}[name]]
    if name == "own_recipe.py":
        return [*SYNTH, *RUN, "sft.steps=1"]
    if name in ("train", "quickstart"):
        return RUN if "data.dir=data" in line else [*SYNTH, *RUN]
    return ANSWER if name in ("ask", "evaluate") else []


def commands(page: str) -> list[list[str]]:
    """Return the words of the commands that a page marks as run here."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^{re.escape(MARK)}\n```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the pages' files: generated data, a database with questions, and this repository's files."""
    here = tmp_path_factory.mktemp("pages")
    generate(here / "data", SynthSpec(seed=5, train_dbs=2, dev_dbs=1, unseen_dbs=1, train_questions=6, dev_questions=4))
    (here / "data-cache").mkdir()
    (here / "data-cache" / "synth-2").symlink_to(here / "data")
    for name in ("configs", "docs"):
        (here / name).symlink_to(ROOT / name)
    (here / "shop").mkdir()
    for path in (here / "shop.sqlite", here / "shop" / "shop.sqlite"):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT, city TEXT)")
            rows = [(i, f"Person {i}", ("Oslo", "Rome")[i % 2]) for i in range(1, 31)]
            connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
    questions = [(f"Who is number {i}?", f"SELECT name FROM customers WHERE id = {i}") for i in range(1, 13)]
    for name, selected in (("train", questions[:8]), ("dev", questions[8:])):
        with (here / "shop" / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("question", "sql"), *selected])
    return here


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(page: str, folder: Path) -> None:
    lines = commands(page)
    assert lines
    cache = f"run.compilation_cache={folder / 'programs'}"
    for program, *arguments in lines:
        if program == "jaxrl-sql":
            command = ["-m", "jaxrl_sql", *arguments, *smaller(arguments)]
        else:
            assert program == "python"
            command = [*arguments, *smaller([Path(arguments[0]).name, *arguments[1:]])]
        if command[-1].startswith(("evaluate.", "rollout.", "sft.", "data.")):
            command.append(cache)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        process = subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False, env=environment
        )
        # The small model may write SQL that fails.
        assert process.returncode in ((0, 1) if "ask" in arguments else (0,)), (
            f"{command}\n{process.stdout}{process.stderr}"
        )
        assert "Traceback" not in process.stderr, process.stderr
