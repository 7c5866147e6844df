"""Spider's training databases in three parts, which have none in common."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gemma_spider", ROOT / "scripts" / "gemma_spider.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_are_the_same_each_time_and_have_nothing_in_common(script: ModuleType) -> None:
    names = [f"db_{i}" for i in range(139)]
    parts = script.deal(names)
    assert {name: len(part) for name, part in parts.items()} == {"grpo": 29, "choose": 10, "sft": 100}
    assert set.union(*parts.values()) == set(names)
    assert script.deal(names[::-1]) == parts


@pytest.mark.data
def test_a_question_is_where_its_database_is(script: ModuleType, real_data: Path, tmp_path: Path) -> None:
    script.split(real_data, tmp_path)
    script.split(real_data, tmp_path)  # again changes nothing
    lines = (real_data / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    database = {one["id"]: one["db_id"] for one in map(json.loads, lines)}
    sft, grpo = ((tmp_path / f"{name}.ids").read_text(encoding="utf-8").split() for name in ("sft", "grpo"))
    chosen = (tmp_path / "choose" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    choose = [json.loads(line)["id"] for line in chosen]
    assert sorted(sft + grpo + choose) == sorted(database)
    held = [{database[uid] for uid in part} for part in (sft, grpo, choose)]
    assert [len(part) for part in held] == [100, 29, 10]
    assert not (held[0] & held[1] | held[0] & held[2] | held[1] & held[2])
    for name in held[2]:
        assert (tmp_path / "choose" / "databases" / name).is_dir()
