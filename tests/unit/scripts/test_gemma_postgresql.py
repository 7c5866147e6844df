"""Questions of scripts/gemma_postgresql.sh: splits that share no gold."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_splits_have_their_sizes_and_share_no_gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("gemma_postgresql", ROOT / "scripts" / "gemma_postgresql.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    questions = [
        {"question": f"{number}, {wording}?", "sql": f"SELECT {number // 2}", "db_id": f"db_{number % 2}", "id": "1"}
        for number in range(400)
        for wording in ("first", "second")
    ]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    (tmp_path / "questions.jsonl").write_text(lines, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["gemma_postgresql.py", str(tmp_path), str(tmp_path / "shop")])
    assert script.main() == 0
    splits = {}
    for name in ("train", "dev"):
        with (tmp_path / "shop" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            splits[name] = list(csv.DictReader(file))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 374, "dev": 124}
    golds = [{(row["db_id"], row["sql"]) for row in rows} for rows in splits.values()]
    assert golds[0].isdisjoint(golds[1])
    assert [*splits["dev"][0]] == ["question", "sql", "db_id"]
