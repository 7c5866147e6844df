"""Behaviour of the executor on PostgreSQL only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor, cli
from sqlexec_rs.servers import __main__


@pytest.fixture(params=["postgresql"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_sessions_of_a_role_can_end_each_other(database: Any, db: str) -> None:
    attack = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE usename = '{database.user}' AND pid <> pg_backend_pid()"
    )
    with Executor(threads=1) as executor, Executor(threads=1) as other:
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        assert other.execute(db, attack).status == "ok"
        assert executor.execute(db, "SELECT 1").rows == [(1,)], "a lost session is replaced once"
        assert executor.stats()["connections_lost"] == 1


def test_the_command_line_accepts_a_url(
    database: Any, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golds, predictions, name = tmp_path / "gold.json", tmp_path / "predictions.jsonl", database.name
    golds.write_text(f'[{{"id": 0, "db_id": "{name}", "sql": "SELECT name FROM item WHERE name ILIKE \'ITEM 7\'"}}]')
    predictions.write_text('{"id": 0, "pred_sql": "SELECT name FROM item WHERE id = 7"}\n')
    for root in (db, db.rpartition("/")[0], f"{db.rpartition('/')[0]}?roles=16"):
        code = cli.main(["score", "--pred", str(predictions), "--gold", str(golds), "--db-root", root])
        output = capsys.readouterr().out
        assert (code, "predictions: ok 1" in output) == (0, True), output
        assert re.search(rf"{name} +1 +100\.0", output)
    assert cli.main(["run", db, "SELECT id, name FROM item WHERE id = 2", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["id,name", "2,item 2"]
    assert cli.main(["run", db, "SELECT 1", "--explain"]) == 0
    assert "Result" in capsys.readouterr().out
    assert cli.main(["run", database.url_of(database.user, "secret"), "SELECT 1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("db_error: ")
    assert len(error.splitlines()) == 1
    assert "secret" not in error


def test_a_server_at_its_connection_limit_is_a_db_error(database: Any, db: str) -> None:
    with Executor(threads=2) as executor:
        database.run(f"ALTER ROLE {database.user} CONNECTION LIMIT 0")
        try:
            outcome = executor.execute(db, "SELECT 1")
            assert outcome.status == "db_error"
            assert "too many connections" in (outcome.error or "")
        finally:
            database.run(f"ALTER ROLE {database.user} CONNECTION LIMIT -1")
        assert executor.execute(db, "SELECT 1").status == "ok"


def test_a_limit_on_temporary_files_is_reported(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    database.run(f"ALTER ROLE {database.user} SET temp_file_limit = '1GB'")
    try:
        assert __main__.main(["check", database.url]) == 0
        assert "temporary files: limited by temp_file_limit, 1GB" in capsys.readouterr().out
    finally:
        database.run(f"ALTER ROLE {database.user} RESET temp_file_limit")


def test_commands_start_and_stop_a_server(
    servers_folder: Path, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(servers_folder / tmp_path.name)
    assert __main__.main(["start", "postgresql", "--dir", folder]) == 0
    urls = dict(line.split() for line in capsys.readouterr().out.splitlines())
    with Executor(threads=1) as executor:
        assert executor.execute(urls["reader"], "SELECT 1").rows == [(1,)]
    assert __main__.main(["start", "postgresql", "--dir", folder]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert __main__.main(["stop", "--dir", folder]) == 0
    assert __main__.main(["stop", "--dir", folder]) == 2
    assert "no server was started" in capsys.readouterr().err
    with Executor(threads=1) as executor:
        assert executor.execute(urls["reader"], "SELECT 1").status == "db_error"
        assert executor.execute(db, "SELECT 1").status == "ok"
