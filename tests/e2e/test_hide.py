"""Hidden columns in commands: endpoint requests, agent tools, and refusals."""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.distill import main as distill
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.filter_data import main as filter_data
from jaxrl_sql.commands.mcp import main as serve_agents
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.report.view.folder import executor_settings
from jaxrl_sql.serving.mcp import open_database
from jaxrl_sql.types import JaxrlSqlError

HIDE = "data.hide=[users.password_hash]"
SECRETS = ("$2b$12$", "password_hash")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder = tmp_path / "data/train"
    path = folder / "databases/shop/shop.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE users(id INTEGER PRIMARY KEY, name TEXT, password_hash TEXT);"
            "INSERT INTO users VALUES (1, 'Ann', '$2b$12$abc')"
        )
    golds = {"fine": "SELECT name FROM users", "hash": "SELECT name FROM users WHERE password_hash = '$2b$12$abc'"}
    lines = [{"id": uid, "db_id": "shop", "question": f"{uid}?", "sql": sql} for uid, sql in golds.items()]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def secrets_in(requests: object) -> list[str]:
    return [word for word in SECRETS if word in json.dumps(requests)]


def test_ask_sends_no_hidden_column(
    database: Path, chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    replies = {"all": "SELECT * FROM users", "names": "SELECT name FROM users"}
    for word, sql in replies.items():
        with chat_server.serve_script(lambda _n, _body, sql=sql: chat_server.assistant(f"```sql\n{sql}\n```")) as (
            url,
            requests,
        ):
            options = ["--model", "m", "--endpoint", url, "--db", str(database)]
            assert ask([*options, "data.schema=omnisql", f"Show {word}."]) == 0
            assert secrets_in(requests) == [*SECRETS]
            requests.clear()
            capsys.readouterr()
            code = ask([*options, "data.schema=omnisql", HIDE, f"Show {word}."])
            output = capsys.readouterr().out
            assert (code, secrets_in(requests)) == (int(word == "all"), [])
            assert "$2b" not in output
            assert ("access to users.password_hash is prohibited: it is hidden" in output) == (word == "all")


def test_a_dialogue_shows_the_refusal_instead_of_the_value(
    database: Path, chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = ("<sql>SELECT * FROM users</sql>", "<sql>SELECT pasword FROM users</sql>",
             "<solution>SELECT name FROM users</solution>")  # fmt: skip

    def script(_number: int, body: dict[str, list[object]]) -> object:
        return chat_server.assistant(f"<think>a</think>\n{turns[len(body['messages']) // 2]}")

    with chat_server.serve_script(script) as (url, requests):
        overrides = ["recipe=skyrl_sql", "evaluate.sampling.turns=4", HIDE]
        assert ask(["--model", "m", "--endpoint", url, "--db", str(database), *overrides, "Who?"]) == 0
    assert len(requests) == 3
    assert "$2b" not in json.dumps(requests)
    assert "access to users.password_hash is prohibited" in json.dumps(requests[1])
    assert "Did you mean" not in json.dumps(requests[2])
    assert "Ann" in capsys.readouterr().out


def test_help_states_that_values_are_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ask(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "it receives names, values and rows of the database, except the columns of data.hide" in text


def test_distill_and_evaluate_skip_golds_that_read_a_hidden_column(
    database: Path, chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = "<think>\nso\n</think>\n<answer>\n```sql\nSELECT name FROM users\n```\n</answer>"
    with chat_server.serve_script(lambda *_: chat_server.assistant(answer)) as (url, requests):
        data = ["data.source=folder", f"data.dir={tmp_path}/data", HIDE, "data.schema=omnisql"]
        assert distill([*data, f"distill.base_url={url}", "distill.model=m", "distill.key_env=''",
                        f"distill.out={tmp_path}/traces"]) == 0  # fmt: skip
        rejected = (tmp_path / "traces/rejected.jsonl").read_text()
        assert '"id": "hash", "reason": "gold refused: access to users.password_hash' in rejected
        out = tmp_path / "out"
        assert evaluate(["--data", str(tmp_path / "data/train"), "--out", str(out), "--endpoint", url,
                         "evaluate.model=m", *data, "run.display=plain"]) == 0  # fmt: skip
    assert secrets_in(requests) == []
    output = capsys.readouterr()
    assert "skipped 1 (gold refused: access to users.password_hash is prohibited" in output.out + output.err
    assert [json.loads(line)["id"] for line in (out / "records.jsonl").read_text().splitlines()] == ["fine"]
    assert json.loads((out / "metrics.json").read_text())["left_out"] == 1


def test_filter_data_names_the_gold_that_reads_a_hidden_column(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "filtered"
    assert filter_data(["data.source=folder", f"data.dir={tmp_path}/data", HIDE, f"filter.out={out}"]) == 0
    assert "gold refused: access to users.password_hash" in capsys.readouterr().out
    assert [json.loads(line)["id"] for line in (out / "kept.jsonl").read_text().splitlines()] == ["fine"]


def test_mcp_tools_refuse_hidden_columns(database: Path) -> None:
    with open_database(str(database), ExecutorConfig(), ["users.password_hash"], max_rows=5) as agents:
        assert agents.schema(None) == "CREATE TABLE users (\n    id INTEGER,\n    name TEXT,\n    PRIMARY KEY (id)\n);"
        for call in (agents.query, agents.explain):
            with pytest.raises(JaxrlSqlError, match=r"forbidden: access to users.password_hash is prohibited"):
                call("SELECT * FROM users")
        assert agents.query("SELECT name FROM users")["rows"] == [["Ann"]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["data.hide=[users.pasword]"],
            "data.hide: no table or column users.pasword; the nearest is users.password_hash",
        ),
        (["data.hide=[users]"], "data.hide=[users] hides everything in"),
    ],
)
def test_an_unknown_column_name_is_refused_before_the_first_request(
    database: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", "m", "--endpoint", "http://127.0.0.1:9/v1", "--db", str(database)]
    assert ask([*options, *more, "Who?"]) == 2
    assert message in capsys.readouterr().err
    assert serve_agents([*options, *more]) == 2
    assert message in capsys.readouterr().err


def test_hiding_columns_on_servers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_agents(["--db", "postgresql://u@127.0.0.1:1/shop", HIDE]) == 2
    error = capsys.readouterr().err
    assert re.search(r"is for SQLite files, .*GRANT SELECT \(…\) ON users TO reader.*--leave-out users.password", error)


def test_view_judges_with_the_hidden_columns_of_its_runs(tmp_path: Path) -> None:
    runs = []
    for name, hide in (("a", HIDE), ("b", "data.hide=[t.x]"), ("c", "")):
        runs.append(argparse.Namespace(folder=tmp_path / name))
        runs[-1].folder.mkdir()
        (runs[-1].folder / "config.yaml").write_text(f"data:\n  {hide.removeprefix('data.').replace('=', ': ')}\n")
    (tmp_path / "c/config.yaml").unlink()
    assert executor_settings(runs)[1] == ["users.password_hash", "t.x"]
