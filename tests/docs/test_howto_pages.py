"""How-to pages are short, begin with commands that fit a screen, and quote messages that the code prints."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/howto/*.md"))
TUTORIALS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/tutorials/*.md"))
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE_WIDTH = 112  # characters of a code block in a window of 1,280 px


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def quoted_messages(page: str) -> list[str]:
    """Return the messages in the first column of a page's section "Messages"."""
    section = read(page).partition("\n## Messages\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


@functools.cache
def texts_of_code() -> list[str]:
    """Return all texts of the packages, with `…` for the values in them."""
    texts = []
    for package in ("jaxrl_sql", "sqlexec_rs/python"):
        for path in ROOT.glob(f"{package}/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    texts.append("".join(_part(value) for value in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return texts


def _part(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "…"


def is_printed(message: str) -> bool:
    """Return whether the fixed parts of a message occur in one text of the code, in order."""
    parts = [part.strip() for part in message.split("…") if part.strip()]
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in texts_of_code())


@pytest.mark.parametrize("page", PAGES)
def test_a_how_to_page_is_short_and_begins_with_a_command(page: str) -> None:
    lines = read(page).splitlines()
    assert len(lines) <= 80
    first_code = next((number for number, line in enumerate(lines, 1) if line.startswith("```")), None)
    assert first_code is not None
    assert first_code <= 12, "the command that does the job comes first"


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_is_short(page: str) -> None:
    assert len(read(page).splitlines()) <= 250


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS])
def test_code_fits_a_screen(page: str) -> None:
    lines = [line for block in FENCED.findall(read(page)) for line in block.splitlines()]
    assert [line for line in lines if len(line) > CODE_WIDTH] == []


@pytest.mark.parametrize("page", PAGES)
def test_quoted_messages_are_printed_by_the_code(page: str) -> None:
    assert [message for message in quoted_messages(page) if not is_printed(message)] == []


def test_an_invented_message_is_found() -> None:
    assert is_printed("… already holds a run")
    assert not is_printed("… already holds a bun")
