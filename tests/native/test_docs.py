"""The examples of the executor's pages (executor.md, executor_servers.md) give the documented output."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# In this order, with the names and files of earlier pages.
PAGES = ("reference/executor.md", "reference/executor_servers.md", "explanation/executor.md")
FLAGS = doctest.ELLIPSIS


def test_examples_of_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks(text, "pycon")), {}, "pages", str(DOCS), 0)
    printed: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append, clear_globs=False)
    test.globs["ex"].close()
    assert outcome.attempted > 60
    assert outcome.failed == 0, "".join(printed)
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for command, wanted in commands(text):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        got = done.stderr + done.stdout
        assert doctest.OutputChecker().check_output(wanted, got, FLAGS), f"{command}\n{got}"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[tuple[str, str]]:
    """Return (command, output) pairs: `$ ` starts a command, `> ` continues it."""
    result: list[tuple[str, str]] = []
    for line in "".join(blocks(text, "console")).splitlines(keepends=True):
        if line.startswith("$ "):
            result.append((line[2:], ""))
        elif line.startswith("> ") and not result[-1][1]:
            result[-1] = (result[-1][0] + line[2:], "")
        else:
            result[-1] = (result[-1][0], result[-1][1] + line)
    return result
