"""The pages of docs/results: up to date with the stored results, and the form of their tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RESULTS = sorted((ROOT / "docs" / "results" / "data").glob("*.json"))
FIELDS = {"name", "column", "median", "text", "std", "spread", "unit", "goal", "is_met"}
PAGES = """
title = "Results"
about = "All."
[[page]]
name = "speed"
title = "Speed"
about = "Of all."
[[page.table]]
data = "x"
title = "A table"
about = "Seconds of a run."
conclusions = "It is fast."
"""


@pytest.fixture(scope="module")
def write_results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_results", ROOT / "scripts" / "write_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_up_to_date(write_results: ModuleType) -> None:
    texts = write_results.pages()
    assert {path.name for path in (ROOT / "docs" / "results").glob("*.md")} == set(texts)
    stale = [name for name, text in texts.items() if (ROOT / "docs/results" / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run python scripts/write_results.py"


def test_pages_have_at_most_250_lines(write_results: ModuleType) -> None:
    assert {name: text.count("\n") for name, text in write_results.pages().items() if text.count("\n") > 250} == {}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_stored_result_has_the_fields_of_a_table(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert {"benchmark", "date", "machine", "rows"} <= set(result)
    assert not result.get("is_quick"), "a quick run measures small loads"
    for row in result["rows"]:
        assert set(row) <= FIELDS
        assert ("median" in row) != ("text" in row)
        assert ("goal" in row) == ("is_met" in row)


def lines(write_results: ModuleType, *rows: dict[str, Any]) -> list[str]:
    return list(write_results.lines_of(rows))


def test_rows_without_columns_show_median_spread_and_goal(write_results: ModuleType) -> None:
    rate = {"name": "rate", "median": 2000, "spread": [1000, 3000], "unit": "queries/s"}
    ratio = {"name": "ratio", "median": 0.5, "unit": "x", "goal": "at least 2", "is_met": False}
    assert lines(write_results, rate, ratio) == [
        "|  | median | smallest to largest | goal |  |",
        "|---|---|---|---|---|",
        "| rate | 2,000 queries/s | 1,000–3,000 |  |  |",
        "| ratio | 0.50x |  | at least 2 | missed |",
    ]


def test_absent_spread_and_goal_have_no_columns(write_results: ModuleType) -> None:
    assert lines(write_results, {"name": "a", "median": 3.5e-7}) == ["|  |  |", "|---|---|", "| a | 3.5e-7 |"]


def test_rows_of_one_name_share_a_line_and_a_unit(write_results: ModuleType) -> None:
    rows = [
        {"name": "bare loop", "column": "mix", "median": 7.5, "unit": "s"},
        {"name": "bare loop", "column": "large", "median": 1200, "unit": "s"},
        {"name": "ours", "column": "large", "median": 2, "unit": "x", "goal": "at least 1", "is_met": True},
    ]
    assert lines(write_results, *rows) == [
        "|  | mix, s | large |",
        "|---|---|---|",
        "| bare loop | 7.5 | 1,200 s |",
        "| ours |  | 2x (at least 1: met) |",
    ]


def test_rows_without_a_column_follow_in_a_second_table(write_results: ModuleType) -> None:
    rows = [{"name": "a", "column": "b", "median": 1}, {"name": "share", "median": 0.5}]
    assert lines(write_results, *rows) == [
        "|  | b |", "|---|---|", "| a | 1 |", "", "|  |  |", "|---|---|", "| share | 0.5 |",
    ]  # fmt: skip


def test_cell_holds_interval_deviation_or_text(write_results: ModuleType) -> None:
    rows = [
        {"name": "a", "column": "accuracy", "median": 44.9, "spread": [31.1, 59.5], "unit": "%"},
        {"name": "a", "column": "gain", "median": 2.6, "spread": [-1.1, 6.2], "unit": "points"},
        {"name": "a", "column": "of seeds", "median": 52.0, "std": 1.5, "unit": "%"},
        {"name": "a", "column": "reward", "text": "0.4 → 0.5"},
    ]
    assert lines(write_results, *rows)[-1] == "| a | 44.9 (31.1–59.5) | +2.6 (-1.1 to +6.2) | 52.0 ± 1.5 | 0.4 → 0.5 |"


def test_duplicate_name_and_column_is_rejected(write_results: ModuleType) -> None:
    with pytest.raises(ValueError, match="same name and column"):
        lines(write_results, {"name": "a", "median": 1}, {"name": "a", "median": 2})


def store(folder: Path, name: str, **fields: Any) -> None:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "pages.toml").write_text(PAGES)
    machine = {"processor": "P", "cores": 2, "device": "cpu"}
    result = {"date": "2026-01-02", "machine": machine, "rows": [{"name": "a", "median": 1}], **fields}
    (folder / "data" / f"{name}.json").write_text(json.dumps(result))


def test_page_has_sentence_command_date_machine_and_conclusions(write_results: ModuleType, tmp_path: Path) -> None:
    store(tmp_path, "x", command="make x")
    texts = write_results.pages(tmp_path)
    assert texts["speed.md"].partition("## A table\n\n")[2] == (
        "Seconds of a run. `make x`, 2026-01-02, 2 cores, P.\n\n|  |  |\n|---|---|\n| a | 1 |\n\nIt is fast.\n"
    )
    assert "| [A table](speed.md#a-table) | `make x` | 2026-01-02 |\n" in texts["index.md"]


def test_commands_of_rows_are_wrapped_between_options(write_results: ModuleType, tmp_path: Path) -> None:
    store(tmp_path, "x", commands=[f"run --a {'b' * 90} --long-option value # (1)"])
    block = write_results.pages(tmp_path)["speed.md"].partition("```sh\n")[2].partition("```")[0]
    assert block == f"# (1)\nrun --a {'b' * 90} \\\n    --long-option value\n"


def test_result_without_a_table_is_rejected(write_results: ModuleType, tmp_path: Path) -> None:
    store(tmp_path, "x")
    store(tmp_path, "y")
    with pytest.raises(ValueError, match="no page has a table for y"):
        write_results.pages(tmp_path)
