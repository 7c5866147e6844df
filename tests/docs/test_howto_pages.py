"""How-to pages begin with a command, and quote messages that the code prints."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/howto/*.md"))
FIRST_LINES = 12  # the first code block begins within these lines


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def quoted_messages(page: str) -> list[str]:
    """Return the messages in the first column of a page's section "Messages"."""
    section = read(page).partition("\n## Messages\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


@functools.cache
def texts_of_code() -> list[str]:
    """Return all strings of the packages, with `…` for interpolated values."""
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
    """Return whether the fixed parts of a message occur in one string of the code, in order."""
    parts = [part.strip() for part in message.split("…") if part.strip()]
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in texts_of_code())


@pytest.mark.parametrize("page", PAGES)
def test_a_how_to_page_begins_with_a_command(page: str) -> None:
    first = next((number for number, line in enumerate(read(page).splitlines(), 1) if line.startswith("```")), None)
    assert first is not None
    assert first <= FIRST_LINES


@pytest.mark.parametrize("page", PAGES)
def test_quoted_messages_are_printed_by_the_code(page: str) -> None:
    assert [message for message in quoted_messages(page) if not is_printed(message)] == []


def test_an_invented_message_is_detected() -> None:
    assert is_printed("… already holds a run")
    assert not is_printed("… already holds a bun")
