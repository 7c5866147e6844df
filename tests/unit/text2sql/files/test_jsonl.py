"""JSON of other programs: a lone surrogate, valid in JSON but not in a file, is read and written as `?`."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.text2sql.benchmarks.files import read_json, read_records
from jaxrl_sql.text2sql.files.index import open_index
from jaxrl_sql.text2sql.files.jsonl import records, write_lines

HALVES = r"""{"a \udca0": ["how \ud83d many", "\ud83d\ude00", "\\ud83d", "ä"]}"""
WHOLE = {"a ?": ["how ? many", "\N{GRINNING FACE}", r"\ud83d", "ä"]}


@pytest.mark.parametrize("text", [HALVES, f"[{HALVES}]"])
def test_lone_surrogate_is_replaced_when_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(text, encoding="utf-8")
    assert read_records(path, []) == [WHOLE]
    assert read_json(path, []) == ([WHOLE] if text.startswith("[") else WHOLE)
    assert list(open_index(path)) == [WHOLE]


def test_line_with_a_lone_surrogate_is_written(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(HALVES + "\n", encoding="utf-8")
    assert records(path) == [(1, WHOLE)]
    write_lines(path, [{"text": "\ud83d!"}])
    assert records(path) == [(1, {"text": "?!"})]
