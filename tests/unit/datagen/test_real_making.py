"""Audit, augmentation and question generation on the real sets in JAXRL_SQL_DATA."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.commands.audit import main as audit
from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.datagen.augment import Change, fill
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.text2sql.schema.read import read_schema

ROOT = Path(os.environ.get("JAXRL_SQL_DATA", ""))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not ROOT.name, reason="JAXRL_SQL_DATA does not name the folder of the real sets"),
]


@pytest.mark.slow
def test_audit_finds_the_known_errors_of_spider_dev(tmp_path: Path) -> None:
    dev, suite = ROOT / "spider_dev", ROOT / "spider_dev_testsuite"
    options = [f"--eval={dev}", f"--train={ROOT / 'bird_superhero'}", f"--suite={suite}", f"--out={tmp_path}"]
    assert audit([word for option in options for word in option.split("=")]) == 0
    findings = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text(encoding="utf-8").splitlines()]
    verified = json.loads((dev / "verify.json").read_text(encoding="utf-8"))
    ids = {
        kind: {entry["id"] for entry in findings if entry["kind"] == kind}
        for kind in Counter(entry["kind"] for entry in findings)
    }
    assert ids["gold: empty"] == {entry["id"] for entry in verified if entry["rows"] == 0}
    assert ids["gold: one row of 0 or NULL"] == {entry["id"] for entry in verified if entry["trivial"]}
    assert "gold: fails" not in ids
    assert not any(kind.startswith("database") for kind in ids)
    # A constant matches the uninformative golds.
    assert ids["gold: empty"] | ids["gold: one row of 0 or NULL"] <= ids["gold: matched by a constant"]


def test_empty_golds_of_spider_dev_get_rows(tmp_path: Path) -> None:
    verified = json.loads((ROOT / "spider_dev/verify.json").read_text(encoding="utf-8"))
    empty = {item["id"] for item in verified if item["rows"] == 0}
    failed = []
    for example in load_folder(ROOT / "spider_dev").examples:
        if example.uid not in empty:
            continue
        path = tmp_path / f"{example.uid}.sqlite"
        shutil.copyfile(example.db_path, path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            violations = len(connection.execute("PRAGMA foreign_key_check").fetchall())
            change = fill(connection, read_schema(path), example.uid, example.gold_sql, [], random.Random(0))
            if not isinstance(change, Change):
                failed.append((example.gold_sql, change))
            assert len(connection.execute("PRAGMA foreign_key_check").fetchall()) <= violations, example
    # Two golds ask for the airport with the fewest flights, and each flight has two airports.
    assert [why for _, why in failed] == ["the gold would have a tie"] * len(failed)
    assert len(failed) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["car_1", "flight_2", "world_1", "orchestra"])
def test_questions_are_generated_for_real_databases(tmp_path: Path, name: str) -> None:
    path = ROOT / f"spider_dev/databases/{name}/{name}.sqlite"
    assert synth(["--db", str(path), "--out", str(tmp_path / "out"), "--n", "80"]) == 0
    examples = load_folder(tmp_path / "out").examples
    # References of flight_2 match no row: its keys end with blanks.
    assert len(examples) == 80 or (name == "flight_2" and len(examples) > 60)
    with closing(sqlite3.connect(path)) as connection:
        assert all(connection.execute(example.gold_sql).fetchone() for example in examples)
