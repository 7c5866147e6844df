"""Form of the pages: their length by kind, and code that fits a window of 1,280 px."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
KINDS = {"tutorials", "howto", "reference", "explanation", "results"}
ROOT_PAGES = {"docs/architecture.md"}  # pages for contributors
CODE_WIDTH = 112  # characters per line of a code block in a window of 1,280 px
MOST_WORDS = 900


def most_lines(page: str) -> int | None:
    """Return the line limit of a page; None without a limit."""
    if page.startswith("docs/reference/"):
        return None
    if page.startswith("docs/howto/"):
        return 80
    return 200 if page.endswith("/architecture.md") else 250


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def wide_lines(text: str) -> list[int]:
    """Return the numbers of the lines of code that are wider than a block."""
    wide, is_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif is_code and len(line) > CODE_WIDTH:
            wide.append(number)
    return wide


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_a_kind(page: str) -> None:
    assert page.split("/")[1] in KINDS or page in ROOT_PAGES


@pytest.mark.parametrize("page", [page for page in PAGES if most_lines(page)])
def test_a_page_is_short(page: str) -> None:
    assert len(read(page).splitlines()) <= (most_lines(page) or 0)


def test_readme_has_at_most_900_words() -> None:
    assert len(re.findall(r"\S+", read("README.md"))) <= MOST_WORDS


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_code_fits_a_window_of_1280_px(page: str) -> None:
    assert wide_lines(read(page)) == []


def test_wide_lines_counts_only_code() -> None:
    long = "x" * (CODE_WIDTH + 1)
    assert wide_lines(f"{long}\n```sh\n{long}\n{long[1:]}\n```\n{long}\n") == [3]
