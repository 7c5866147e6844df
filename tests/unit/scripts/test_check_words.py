"""The check for project-specific words: matches and exceptions."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/check_words.py"
SPEC = importlib.util.spec_from_file_location("check_words", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
check_words = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_words)


@pytest.mark.parametrize(
    ("name", "text", "result"),
    [
        ("a.py", "x = few_programs\n", ["a.py:1: few_programs: it is called pad_to_max"]),
        ("a.py", "'''See `few_programs`.'''\n", ["a.py:1: few_programs: it is called pad_to_max"]),
        ("a.py", "NAMES = ['illness', 'Lessons']\n", []),
        ("a.rs", "let taken_up = 1; // taken_up\n", ["a.rs:1: taken_up: it is called batches_from_arrays"]),
        ("a.md", "Set `few_programs`.\n", ["a.md:1: few_programs: it is called pad_to_max"]),
        ("a.md", "The answer is paid.\n", ["a.md:1: “is paid”: write “rewarded”"]),
        ("a.md", "The answer is rewarded.\n", []),
    ],
)
def test_old_words_are_found(name: str, text: str, result: list[str]) -> None:
    assert list(check_words.find_words(name, text)) == result
