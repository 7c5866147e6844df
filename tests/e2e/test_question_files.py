"""A run on a file of questions whose golds are PostgreSQL's."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.train import main as train
from jaxrl_sql.text2sql.env.address import parse_address
from sqlexec_rs.servers import Server

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCRIPT = """
CREATE TABLE customers (id int PRIMARY KEY, name text, country text);
INSERT INTO customers SELECT i, 'name ' || i, CASE i % 3 WHEN 0 THEN 'Chile' ELSE 'Peru' END
FROM generate_series(1, 30) AS i;
"""


def test_run_on_a_question_file_trains_evaluates_and_resumes_without_storing_the_password(
    server_database: Callable[[str, str], Server],
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = parse_address(f"{server_database('postgresql', SCRIPT).reader}?roles=16")
    shown = address.display_name(address.database)
    monkeypatch.setenv("PGPASSWORD", address.password)
    rows = [f"Which name has customer {i}?,SELECT name::varchar FROM customers WHERE id = {i}" for i in range(1, 13)]
    for split, part in (("train", rows[:9]), ("dev", rows[9:])):
        (tmp_path / f"{split}.csv").write_text("\n".join(["question,sql", *part]) + "\n")
    database = f"data.database={address.public_url(address.database)}"
    run = tmp_path / "run"
    settings = [f"data.dir={tmp_path}", "data.evals=[dev]", "sft.databases=1", database]
    assert train(arguments(run, *settings)) == 0
    assert train(["--resume", str(run), "grpo.steps=4"]) == 0
    data_and_model = ["--data", str(tmp_path / "dev.csv"), "--model", str(run)]
    assert evaluate([*data_and_model, "--out", str(run / "eval"), database]) == 0
    printed = "".join(capsys.readouterr())
    assert f"train: matched with {shown} (9 questions)" in printed
    assert "9 in PostgreSQL" in printed
    group = json.loads(gzip.decompress(max(run.glob("rollouts/train-*.jsonl.gz")).read_bytes()).splitlines()[0])
    assert (group["dialect"], group["db"]) == ("postgresql", address.public_url(address.database))
    assert shown in (run / "report.html").read_text()
    assert f"next: jaxrl-sql ask --model {run} 'Which name has customer 10?'" in printed
    assert ask(["--model", str(run), "Who is customer 3?"]) in (0, 1)
    commands = [line for line in printed.splitlines() if line.startswith("next: jaxrl-sql evaluate ")]
    assert evaluate(shlex.split(commands[-1])[3:]) == 0
    stored = [path for path in run.rglob("*") if path.is_file()]
    assert len(stored) > 20
    assert not [path for path in stored if address.password.encode() in path.read_bytes()]
    assert address.password not in printed
    capsys.readouterr()
    assert train(["--resume", str(run), "grpo.steps=5", database.replace("127.0.0.1", "localhost")]) == 2
    assert "data.database" in capsys.readouterr().err
