"""Commands on a file of questions whose golds are PostgreSQL's: audit, evaluate, filter, and messages."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxrl_sql.commands.audit import main as audit
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.filter_data import main as filter_data
from jaxrl_sql.databases.sample.external import ExternalDatabase
from jaxrl_sql.datagen.synth.on_server import make_gold_translator
from jaxrl_sql.text2sql.env.address import parse_address
from jaxrl_sql.types import InputError
from sqlexec_rs import Executor
from sqlexec_rs.servers import Server

pytestmark = pytest.mark.servers

SCRIPT = """
CREATE TABLE customers (id int PRIMARY KEY, name text, country text);
INSERT INTO customers VALUES (1, 'Ada', 'Chile'), (2, 'Bo', 'Peru'), (3, 'Cem', 'Chile');
"""
TRAIN = """question,sql
How many customers live in Chile?,SELECT count(*) FROM customers WHERE country ILIKE 'chile'
"Who lives in
Peru?",SELECT name FROM customers WHERE country = 'Peru'
Which ids are even?,SELECT ident FROM customers WHERE id % 2 = 0
Who is called Zoe?,SELECT id::bigint FROM customers WHERE name ~ '^Zoe'
How long does it take?,"SELECT count(*) FROM generate_series(1, 100000000000)"
"""
DEV = """question,sql
Which countries are there?,SELECT DISTINCT country FROM customers WHERE name ILIKE '%'
"""


class QuestionFiles(NamedTuple):
    """A folder with train.csv and dev.csv, the setting of their database, and its name for output."""

    folder: Path
    setting: str
    shown: str
    password: str


@pytest.fixture(scope="module")
def question_files(
    server_database: Callable[[str, str], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[QuestionFiles]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "train.csv").write_text(TRAIN)
    (folder / "dev.csv").write_text(DEV)
    address = parse_address(f"{server_database('postgresql', SCRIPT).reader}?roles=16")
    setting = f"data.database={address.public_url(address.database)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", address.password)
        yield QuestionFiles(folder, setting, address.display_name(address.database), address.password)


def test_audit_names_the_database_and_lists_failing_golds_by_line(
    question_files: QuestionFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, out = question_files.folder / "train.csv", tmp_path / "audit"
    command = ["--train", str(train), "--eval", str(question_files.folder / "dev.csv"), question_files.setting]
    assert audit([*command, "--timeout-ms", "500", "--out", str(out)]) == 0
    output, notes = capsys.readouterr()
    assert f"train.csv: matched with {question_files.shown} (5 questions)" in notes
    lines = output.splitlines()
    assert any(line.startswith(f"{train}:5: gold: fails (") and "SELECT ident FROM" in line for line in lines)
    assert any(line.startswith(f"{train}:7: gold: times out (over --timeout-ms=500): ") for line in lines)
    assert sum(line.startswith(f"{train}:") for line in lines) == 2
    assert "train.csv: running the golds: 5 golds" in notes
    findings = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    golds = {(finding["kind"], finding["line"]) for finding in findings if finding["kind"].startswith("gold")}
    assert golds >= {
        ("gold: fails", f"{train}:5"),
        ("gold: empty", f"{train}:6"),
        ("gold: matched by a constant", f"{train}:6"),
        ("gold: times out", f"{train}:7"),
    }
    summary = json.loads((out / "audit.json").read_text())
    assert summary["sets"]["dev.csv"]["matched_with"] == f"{question_files.shown} (1 question)"
    assert question_files.password not in "".join(path.read_text() for path in out.iterdir()) + output + notes


def test_audit_reads_the_password_from_the_environment_only(
    question_files: QuestionFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = question_files.setting.replace("@", ":secret@")
    assert audit(["--eval", str(question_files.folder / "dev.csv"), setting, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "data.database holds the password of reader" in message
    assert "set PGPASSWORD" in message
    assert "secret" not in message


def test_predictions_are_judged_on_the_server(
    question_files: QuestionFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions = tmp_path / "predictions.jsonl"
    out = tmp_path / "out"
    command = [
        *("--data", str(question_files.folder / "dev.csv"), "--predictions", str(predictions), "--out", str(out)),
        question_files.setting,
        "run.display=plain",
    ]
    for sql, accuracy in (
        ("SELECT country FROM customers GROUP BY country HAVING bool_or(name IS NOT NULL)", 1.0),
        ("DELETE FROM customers RETURNING country", 0.0),
    ):
        predictions.write_text(json.dumps({"id": "dev_0", "sql": sql}) + "\n")
        assert evaluate(command) == 0
        (numbers,) = [json.loads((out / "metrics.json").read_text())]
        assert next(value for key, value in numbers.items() if key.endswith("accuracy")) == accuracy
        for path in out.iterdir():
            path.unlink()
    captured = capsys.readouterr()
    assert f"matched with {question_files.shown} (1 question)" in captured.out + captured.err
    assert evaluate([part for part in command if part != question_files.setting]) == 2
    message = capsys.readouterr().err
    assert "no db_id: 1" in message
    assert "names tried: db_id (db_id, database, db_name, dbname, db, db_path)" in message
    assert "data.database" in message


def test_evaluation_stores_the_address_without_its_password(question_files: QuestionFiles, tmp_path: Path) -> None:
    predictions, out = tmp_path / "predictions.jsonl", tmp_path / "out"
    predictions.write_text(json.dumps({"id": "dev_0", "sql": "SELECT 1"}) + "\n")
    command = ["--data", str(question_files.folder / "dev.csv"), "--predictions", str(predictions), "--out", str(out)]
    assert evaluate([*command, question_files.setting, "run.display=none"]) == 0
    texts = {path.name: path.read_text() for path in out.iterdir()}
    assert question_files.setting.partition("=")[2] in texts["config.yaml"]
    assert not any(question_files.password in text for text in texts.values())


def test_filter_runs_golds_on_data_database(question_files: QuestionFiles, tmp_path: Path) -> None:
    out = tmp_path / "filtered"
    limits = ["executor.engine_timeout_ms=500", "data.select.limit_train=4", "run.display=none"]
    assert filter_data([f"data.dir={question_files.folder}", question_files.setting, *limits, f"filter.out={out}"]) == 0
    kept_ids = [json.loads(line)["id"] for line in (out / "kept.jsonl").read_text().splitlines()]
    assert kept_ids == ["train_0", "train_1"]


@pytest.mark.parametrize(
    ("password", "message"),
    [
        ("", r"error: data\.database: postgresql://.*: set PGPASSWORD to the password"),
        ("wrong-one", r"error: data\.database: postgresql://.*: check the user and the password \(PGPASSWORD\)"),
    ],
    ids=["missing", "wrong"],
)
def test_password_is_checked_before_the_golds_run(
    password: str,
    message: str,
    question_files: QuestionFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cached sample of the database needs no connection."""
    command = ["--eval", str(question_files.folder / "dev.csv"), question_files.setting, "--out"]
    assert audit([*command, str(tmp_path / "first")]) == 0
    monkeypatch.setenv("PGPASSWORD", password)
    capsys.readouterr()
    assert audit([*command, str(tmp_path / "second")]) == 2
    error = capsys.readouterr().err
    assert re.match(message, error)
    assert "?roles=16 means the roles " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [audit, evaluate], ids=["audit", "evaluate"])
def test_a_role_that_may_write_is_refused_before_golds_and_answers(
    command: Callable[[list[str]], int],
    server_database: Callable[[str, str], Server],
    question_files: QuestionFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody listens at the endpoint, so another message would mean that answers came first."""
    owner = parse_address(server_database("postgresql", SCRIPT).owner)
    monkeypatch.setenv("PGPASSWORD", owner.password)
    dev, out = str(question_files.folder / "dev.csv"), str(tmp_path / "out")
    endpoint = ["--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--data", dev]
    arguments = ["--eval", dev] if command is audit else endpoint
    assert command([*arguments, "--out", out, f"data.database={owner.public_url(owner.database)}"]) == 2
    output, errors = capsys.readouterr()
    assert "error: the role is refused: " in errors
    assert "can do more than read" in errors
    assert "gold: fails" not in output


def test_a_gold_translator_names_the_address_of_a_refused_role_once(
    server_database: Callable[[str, str], Server], tmp_path: Path
) -> None:
    owner = parse_address(server_database("postgresql", SCRIPT).owner)
    sample = tmp_path / "sample.sqlite"
    with closing(sqlite3.connect(sample)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    url = owner.url(owner.database)
    database = ExternalDatabase("postgresql", url, owner.public_url(owner.database), sample)
    with Executor(threads=1) as executor, pytest.raises(InputError, match="can do more than read") as raised:
        make_gold_translator(executor, database)("SELECT a FROM t")
    assert str(raised.value).count("postgresql://") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("?roles", "_x?roles"), r'data.database: postgresql://.*_x: .*database ".*_x" does not exist'),
        (("://reader", "://nobody"), "data.database: postgresql://.*: check the user and the password"),
        (("@127.0.0.1:", "@127.0.0.1:9"), "data.database: .*"),
        (("postgresql://", "oracle://"), "data.database: .*oracle"),
        (("postgresql://", "nowhere/"), "data.database=.*: no such file or folder"),
    ],
    ids=["database", "user", "port", "engine", "file"],
)
def test_wrong_addresses_are_reported_in_one_line(
    question_files: QuestionFiles,
    change: tuple[str, str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    setting = question_files.setting.replace(*change)
    assert audit(["--eval", str(question_files.folder / "dev.csv"), setting, "--out", str(tmp_path / "audit")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert os.environ["PGPASSWORD"] not in error
