"""Each command of the pages is valid: options, settings, targets and files exist; each block names its test."""

from __future__ import annotations

import argparse
import contextlib
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import pytest

from jaxrl_sql.__main__ import commands, main
from jaxrl_sql.commands.prepare import load_prepare
from jaxrl_sql.config import RootConfig, TrainConfig, load_config
from sqlexec_rs.cli import main as sqlexec

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "small.yaml"
TEXTS = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "sqlexec_rs/README.md")
PAGES = [
    *TEXTS,
    *(path.relative_to(ROOT).as_posix() for part in ("docs", "skills") for path in ROOT.glob(f"{part}/**/*.md")),
]
MARK = re.compile(r"<!-- (?:(?:all )?run by (?P<test>\S+)|(?:all )?not run: (?P<reason>[^>]+)) -->")
BLOCK = re.compile(
    r"(?:^(?P<mark><!-- [^\n]*-->)\n)?^```(?P<language>sh|bash|console)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
MODULES = {entry.module: name for name, entry in commands().items() if name != "quickstart"}
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
# Programs of others: their arguments are not checked.
FOREIGN = {
    "pip", "sbatch", "export", "srun", "mkdir", "echo", "printf", "cp", "ruff", "mypy", "sqlite3", "vf-eval", "vllm",
    "llama-server", "ollama", "tensorboard", "psql",
}  # fmt: skip


class Block(NamedTuple):
    """A block of commands, and the comment above it."""

    page: str
    mark: str
    text: str


class ReadError(Exception):
    """Raised when a parser has read its arguments."""


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    whole = re.search(r"<!-- all [^\n]*-->", text)
    for result in BLOCK.finditer(text):
        yield Block(page, result["mark"] or (whole[0] if whole else ""), shown(result["language"], result["text"]))


def shown(language: str, text: str) -> str:
    """Return a block's commands, one per line, without their output."""
    if language == "console":
        lines = [line for line in text.splitlines() if line.startswith(("$ ", "> "))]
        text = "\n".join(("" if line.startswith("$ ") else "\\\n") + line[2:] for line in lines).replace("\n\\\n", " ")
    text = text.replace("\\\n", " ")
    for name, value in re.findall(r'^([A-Z])="(.*)"$', text, flags=re.MULTILINE):  # a page's own shorthand
        text = text.replace(f"${name} ", f"{value} ")
    return text


ALL = [block for page in PAGES for block in blocks(page)]
LINES = [
    (block.page, part.strip())
    for block in ALL
    for line in block.text.splitlines()
    for part in line.split("&&")
    if line.split("#")[0].strip()
]


def words_of(line: str) -> list[str]:
    """Return a command's words, without leading variable assignments; optional parts in brackets are included."""
    command = shlex.split(re.sub(r"\[(--[^\]]*)\]", r"\1", line), comments=True)
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    return command


def read(command: list[str]) -> None:
    """Parse a command's words with its parser, and stop; an unknown word ends the process, as in the command."""
    program, *rest = command
    program = program.removeprefix(".venv/bin/")
    if program == "jaxrl-sql":
        with stopped():
            assert main(rest) == 0
    elif program == "python" and rest[0] == "-m" and rest[1].startswith("jaxrl_sql."):
        with stopped():
            assert main([*MODULES[rest[1].removeprefix("jaxrl_sql.")].split(), *rest[2:]]) == 0
    elif program == "sqlexec" or rest[:2] == ["-m", "sqlexec_rs"]:
        with stopped():
            assert sqlexec(rest if program == "sqlexec" else rest[2:]) == 0
    elif rest[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in rest if word.startswith("tests"))
    elif rest[:2] == ["-m", "sqlexec_rs.servers"]:
        assert rest[2:5] in (["start", "postgresql", "--dir"], ["readers", "postgresql", "--database"])
    elif program == "python" or program.startswith("scripts/"):
        script, *command = rest if program == "python" else command
        run_script(script, command)
    elif program == "bash":
        script, *command = rest
        if "--" in command:  # settings of the runs that it starts
            with stopped():
                assert main(["train", *command[command.index("--") + 1 :]]) == 0
            command = command[: command.index("--")]
        known = re.findall(r"^ +([a-z|-]+)\)", (ROOT / script).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(command) <= {word for each in known for word in each.split("|")}, f"{script}: {command} of {known}"
        assert subprocess.run(["bash", "-n", str(ROOT / script)], check=False).returncode == 0  # noqa: S607
    elif program == "make":
        assert {word for word in rest if "=" not in word and not word.startswith("-")} <= TARGETS, rest
    else:
        assert program in FOREIGN, f"{program}: is it a program of this project?"


def run_script(script: str, rest: list[str]) -> None:
    """Run a script until it has read its arguments."""
    with pytest.MonkeyPatch.context() as patch, stopped():
        patch.setattr(sys, "argv", [script, *rest])
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """Stop a command when its parser has read its arguments, and check settings and files among them."""

    def reading(method: Any) -> Any:
        def read_and_stop(parser: argparse.ArgumentParser, message: Any = None, *_: Any) -> NoReturn:
            arguments = method(parser, message)
            look_at(arguments, getattr(parser, "root", None) or TrainConfig)
            raise ReadError

        return read_and_stop

    with pytest.MonkeyPatch.context() as patch:
        for name in ("parse_args", "parse_intermixed_args"):
            patch.setattr(argparse.ArgumentParser, name, reading(getattr(argparse.ArgumentParser, name)))
        with contextlib.suppress(ReadError):
            yield
            pytest.fail("no parser has read the words")


def look_at(arguments: argparse.Namespace, root: type[RootConfig]) -> None:
    """Load the configuration of a command, whose keys and values must be known."""
    if not hasattr(arguments, "overrides") and not hasattr(arguments, "config"):
        return
    overrides = [*getattr(arguments, "overrides", ()), *getattr(arguments, "arguments", ())]
    values = [word for word in overrides if re.match(r"[\w.]+=", word)]
    if isinstance(files := getattr(arguments, "config", None), Path):  # prepare has one file, of its own settings
        load_prepare(files, values)
    else:
        # Commands of the page write the files in `runs`.
        named = [file for file in files or () if str(file) not in ("FILE", "…") and file.parts[0] != "runs"]
        is_whole = files == named and getattr(arguments, "resume", None) is None
        load_config(root, named if is_whole else [SMALL, *named], values)


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_command_is_valid(page: str, line: str) -> None:
    assert page
    try:
        if message := words_of(line):
            read(message)
    except SystemExit as ended:
        pytest.fail(f"exit code {ended.code}")


@pytest.mark.parametrize("block", ALL, ids=lambda block: f"{block.page}:{block.text.splitlines()[0][:40]}")
def test_a_block_names_its_test_or_a_reason(block: Block) -> None:
    mark = MARK.fullmatch(block.mark)
    assert mark, f"{block.page}: {block.text}"
    if test := mark["test"]:
        assert Path(block.page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name the page"


@pytest.mark.parametrize("page", PAGES)
def test_paths_on_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    spans = re.findall(r"`([^`\n]+)`", text)
    assert {word for span in spans for word in re.findall(r"^make ([a-z][\w-]*)", span)} <= TARGETS
    files = re.findall(r"\b(?:scripts|tests)/[\w/]+\.(?:py|sh)\b", text)
    assert [name for name in files if not (ROOT / name).exists()] == []
    known = {word for name in commands() for word in (name, name.split()[0])}
    assert {word for span in spans for word in re.findall(r"\bjaxrl-sql ((?:data )?[a-z]+)", span)} <= known


@pytest.mark.parametrize(
    "line",
    [
        "jaxrl-sql trian", "jaxrl-sql train --confg configs/quickstart.yaml", "jaxrl-sql train grpo.step=3",
        "python -m jaxrl_sql.train --config configs/none.yaml", "make quikstart", "frobnicate",
        "python scripts/count_line.py", "jaxrl-sql ask --model M --db FILE evaluate.sample=3 Why?",
    ],
)  # fmt: skip
def test_an_invalid_command_is_detected(line: str) -> None:
    with pytest.raises((SystemExit, Exception)) as result:
        read(words_of(line))
    assert not isinstance(result.value, ReadError | click.Abort)
