"""Comparison of prediction files: shares, paired differences with the first file, and disagreement of rules."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "rescore.py"
GOLDS = [f"SELECT a, b FROM t WHERE a > {i}" for i in range(8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a set of eight questions on one database, with two files of predictions."""
    (tmp_path / "databases" / "d").mkdir(parents=True)
    connection = sqlite3.connect(tmp_path / "databases" / "d" / "d.sqlite")
    connection.execute("CREATE TABLE t(a, b)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(i, -i) for i in range(12)])
    connection.commit()
    connection.close()
    rows = [{"id": f"q{i}", "db_id": "d", "question": "?", "sql": sql} for i, sql in enumerate(GOLDS)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # The first file is right twice; the second always, except for an additional column in the last.
    first = [*GOLDS[:2], *["SELECT 0"] * 6]
    second = [*GOLDS[:7], GOLDS[7].replace("a, b", "a, b, a + b")]
    for name, sqls in (("first", first), ("second", second)):
        lines = [json.dumps({"id": f"q{i}", "pred_sql": sql}) for i, sql in enumerate(sqls)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


class Done(NamedTuple):
    """The exit code of the script, and its output."""

    returncode: int
    stdout: str
    stderr: str


Rescore = Callable[..., Done]


@pytest.fixture(scope="module")
def main() -> Callable[[list[str]], int]:
    """Return the script's main function."""
    spec = importlib.util.spec_from_file_location("rescore", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: Callable[[list[str]], int] = module.main
    return main


@pytest.fixture
def rescore(
    folder: Path,
    main: Callable[[list[str]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Rescore:
    """Return a function (arguments…) that runs the script in the folder of the set."""
    monkeypatch.chdir(folder)
    return lambda *arguments: Done(main(["--data", str(folder), *arguments]), *capsys.readouterr())


def test_prediction_files_are_compared(folder: Path, rescore: Rescore) -> None:
    out = folder / "differences.jsonl"
    done = rescore("first.jsonl", "second.jsonl", "--rules", "bird", "spider2", "--differences", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 questions" in done.stdout
    cells = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if "|" in line]
    shares = {row[1]: [cell.split(" ")[0] for cell in row[2:4]] for row in cells if row[1] in {"first", "second"}}
    assert shares == {"first": ["25.0", "25.0"], "second": ["87.5", "100.0"]}
    paired = {row[1]: row[2:7] for row in cells if row[1] in {"bird", "spider2"}}
    assert paired["bird"][0].startswith("+62.5")
    # All five differences favour the second file: 2 / 2**5; of six: 2 / 2**6.
    assert paired["bird"][1:] == ["1", "0.062", "5", "0"]
    assert paired["spider2"][1:] == ["1", "0.031", "6", "0"]
    assert "second against first: 1 database: the interval and McNemar's p are over its questions" in done.stdout
    (row,) = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert (row["file"], row["id"], row["right"], row["wrong"]) == ("second", "q7", ["spider2"], ["bird"])
    assert (row["status"], row["rows"], row["gold_rows"]) == ("ok", 4, 4)


def test_predictions_are_executed_like_the_scorer_of_the_set(folder: Path, rescore: Rescore) -> None:
    (folder / "questions.jsonl").unlink()
    (folder / "tables.json").write_text("[]")
    questions = [{"db_id": "d", "question": f"{i}?", "query": sql} for i, sql in enumerate(GOLDS[:2])]
    (folder / "dev.json").write_text(json.dumps(questions))
    (folder / "spaced.sql").write_text(
        "SELECT a, b FROM t WHERE a + 1 > = 2\nSELECT a, b FROM t WHERE a > 1; SELECT 1\n"
    )
    done = rescore("spaced.sql", "--rules", "bird")
    assert (done.returncode, done.stderr) == (0, "")
    assert "| spaced | 100.0 " in done.stdout


@pytest.mark.slow
def test_files_that_do_not_match_the_set_are_an_error_of_one_line(folder: Path, rescore: Rescore) -> None:
    (folder / "short.jsonl").write_text('{"id": "q0", "pred_sql": "SELECT 1"}', encoding="utf-8")
    done = rescore("first.jsonl", "short.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "short.jsonl" in done.stderr
    assert rescore("first.jsonl", "short.jsonl", "--allow-missing", "--rules", "bird").returncode == 0
    lost = rescore("first.jsonl", "--rules", "bird", "--differences", "nowhere/x")
    assert (lost.returncode, lost.stderr.count("\n"), "nowhere/x" in lost.stderr) == (2, 1, True)
