"""How-to pages begin with a command, and all pages quote messages that the code prints."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/howto/*.md"))
OTHER_PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("explanation", "reference", "tutorials")
    for path in ROOT.glob(f"docs/{folder}/*.md")
)
MIN_FIXED = 8
"""Minimum length of the fixed parts of a message with values."""
FIRST_LINES = 12  # the first code block begins within these lines


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def quoted_messages(page: str) -> list[str]:
    """Return the messages in the first column of a page's section "Messages"."""
    section = read(page).partition("\n## Messages\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def messages_in_code_spans(page: str) -> list[str]:
    """Return the code spans of a page that read like a message: words, a colon or semicolon, and more words."""
    text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text)
    return [span for span in spans if re.match(r"[\w ]*[a-z]{3}[:;] [a-z]{3}", span)]


@functools.cache
def texts_of_code() -> list[str]:
    """Return all strings and prompt templates of the packages, with `…` for interpolated values."""
    texts = [
        line
        for path in ROOT.glob("jaxrl_sql/**/*.jinja")
        for line in re.sub(r"\{\{.*?\}\}", "…", path.read_text(encoding="utf-8")).splitlines()
    ]
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


def is_example(message: str) -> bool:
    """Return whether a string of the code with values inserted is the message."""
    return any(
        re.fullmatch(".*".join(map(re.escape, text.split("…"))), message)
        for text in texts_of_code()
        if "…" in text and len(text.replace("…", "").strip()) >= MIN_FIXED
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_how_to_page_begins_with_a_command(page: str) -> None:
    first = next((number for number, line in enumerate(read(page).splitlines(), 1) if line.startswith("```")), None)
    assert first is not None
    assert first <= FIRST_LINES


@pytest.mark.parametrize("page", PAGES)
def test_quoted_messages_are_printed_by_the_code(page: str) -> None:
    assert [message for message in quoted_messages(page) if not is_printed(message)] == []


@pytest.mark.parametrize("page", OTHER_PAGES)
def test_messages_in_code_spans_are_printed_by_the_code(page: str) -> None:
    messages = messages_in_code_spans(page)
    assert [message for message in messages if not (is_printed(message) or is_example(message))] == []


def test_an_invented_message_is_detected() -> None:
    assert is_printed("… already holds a run")
    assert not is_printed("… already holds a bun")
    assert is_example("gold fails: timeout, over vm_steps")
    assert not is_example("gold failed: timeout, over vm_steps")


def test_messages_are_recognised_among_code_spans() -> None:
    assert "gold fails: timeout, over vm_steps" in messages_in_code_spans("docs/tutorials/own_database.md")
    assert "stopped; resume with --resume FOLDER" in messages_in_code_spans("docs/reference/exit_codes.md")
