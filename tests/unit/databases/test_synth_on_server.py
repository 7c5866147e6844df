"""Questions about a PostgreSQL database: written counts, reasons, quoted names and comments."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.commands.synth import main
from sqlexec_rs.servers import Server

pytestmark = pytest.mark.servers

SCRIPT = """
CREATE TABLE turbines (id int PRIMARY KEY, code text NOT NULL, "hubHeight" int NOT NULL, "gridOperator" text NOT NULL,
  cost int);
COMMENT ON COLUMN turbines.cost IS 'Net cost in EUR; null until done';
INSERT INTO turbines SELECT i, 'T' || i, 60 + i % 37, CASE i % 3 WHEN 0 THEN 'North' ELSE 'South' END, 1000 + 7 * i
FROM generate_series(1, 60) AS i;
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))


def change_sample(cache: Path, statement: str) -> None:
    """Change the cached sample, so that it differs from the server."""
    (sample,) = cache.rglob("*.sqlite")
    with closing(sqlite3.connect(sample)) as connection:
        connection.execute(statement)
        connection.commit()


def test_names_are_quoted_and_comments_with_punctuation_are_no_nouns(
    server_database: Callable[[str, str], Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = server_database("postgresql", SCRIPT)
    assert main(["--db", database.reader, "--out", str(tmp_path / "out"), "--n", "40"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out/questions.jsonl").read_text().splitlines()]
    output = capsys.readouterr().out
    assert f": {len(lines)} questions" in output
    assert "fails on the server" not in output
    assert any('"hubHeight"' in line["sql"] for line in lines)
    assert any('"gridOperator"' in line["sql"] for line in lines)
    questions = " ".join(line["question"] for line in lines)
    assert "until done" not in questions
    assert "cost" in questions


def test_no_gold_that_runs_is_an_error_with_the_servers_message(
    server_database: Callable[[str, str], Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = server_database("postgresql", SCRIPT)
    command = ["--db", database.reader, "--n", "4", "--out"]
    assert main([*command, str(tmp_path / "first")]) == 0
    change_sample(tmp_path / "cache", "ALTER TABLE turbines RENAME TO wheels")
    assert main([*command, str(tmp_path / "second")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "0 of 4 questions written" in message
    assert 'relation "wheels" does not exist' in message
    assert "search_path" in message
    assert not (tmp_path / "second").exists()


def test_written_number_excludes_rejected_golds_and_the_reason_is_named(
    server_database: Callable[[str, str], Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = server_database("postgresql", SCRIPT)
    command = ["--db", database.reader, "--n", "40", "--out"]
    assert main([*command, str(tmp_path / "first")]) == 0
    capsys.readouterr()
    change_sample(tmp_path / "cache", "ALTER TABLE turbines RENAME COLUMN cost TO price")
    assert main([*command, str(tmp_path / "second")]) == 0
    written = (tmp_path / "second/questions.jsonl").read_text().splitlines()
    output = capsys.readouterr().out
    assert 0 < len(written) < 40
    assert f": {len(written)} questions of 40 requested" in output
    assert 'fails on the server (column "price" does not exist)' in output
