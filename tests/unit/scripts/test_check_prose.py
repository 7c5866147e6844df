"""The counter of phrases, long sentences and vague names: texts small enough to count by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/check_prose.py"
SPEC = importlib.util.spec_from_file_location("check_prose", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
check_prose = importlib.util.module_from_spec(SPEC)
sys.modules["check_prose"] = check_prose
SPEC.loader.exec_module(check_prose)

PYTHON = '''"""Read what is there."""


def test_a_file_is_told(one: int) -> None:
    # A first line,
    # and a second. # not a third
    found = "beside the # mark"  # a message
    other, (kept, *rest) = f"it {one} # goes", (1, 2)
'''


def test_python_has_docstrings_messages_comments_and_names() -> None:
    text = check_prose.text_of("a.py", PYTHON)
    assert sorted(part for part in text.prose if part) == [
        " # goes", "A first line, and a second. # not a third", "Read what is there.", "a message",
        "beside the # mark", "it ", "test a file is told",
    ]  # fmt: skip
    assert sorted(text.names) == ["found", "kept", "one", "other", "rest"]
    counts = check_prose.count(text)
    assert {name: n for name, n in counts.hits.items() if n} == {"what-is": 1, "beside": 1, "tell": 1, "vague names": 3}


def test_messages_of_generated_questions_are_data() -> None:
    text = check_prose.text_of("jaxrl_sql/datagen/synth/x.py", PYTHON)
    assert sorted(part for part in text.prose if part) == [
        "A first line, and a second. # not a third", "Read what is there.", "a message", "test a file is told",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "source", "prose"),
    [
        ("a.rs", "/// Told.\n/// More.\nlet mut own = 1; // kept\n", ["Told. More.", "kept"]),
        ("a.md", "# Title\nA `what is` line\nof two.\n- item\n\n| a | b |\n```\nbeside\n```\n",
         ["# Title A line of two.", "- item", "a", "b"]),
        ("Makefile", "all: # stands\n\ttrue\n", ["stands"]),
    ],
)  # fmt: skip
def test_prose_of_other_files(name: str, source: str, prose: list[str]) -> None:
    parts = [" ".join(part.split()) for part in check_prose.text_of(name, source).prose]
    assert [part for part in parts if part] == prose


def test_rates_are_per_100_000_words_and_per_mille() -> None:
    counts = check_prose.count(check_prose.Text(["word " * 50 + "beside. Short one."], ["one", "path", "row", "kept"]))
    rates = counts.rates()
    assert (counts.words, counts.sentences) == (53, 2)
    assert rates["beside"] == pytest.approx(1e5 / 53)
    assert rates["long sentences"] == 500
    assert rates["vague names"] == 500


def test_count_above_its_limit_fails_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("He stands beside.\n")
    for arguments in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)  # noqa: S607
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: docs: beside: 33333.3 is above the limit of " in done.stdout
    assert "most in a.md (1)" in done.stdout
