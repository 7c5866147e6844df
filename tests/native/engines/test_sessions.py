"""Sessions with a server: roles, lost sessions, unreachable addresses, and server facts."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sqlexec_rs import Executor, Outcome
from sqlexec_rs.servers import ServerError, __main__, _programs, check


class Dialect(NamedTuple):
    """An engine's statements for the same actions; `{user}` is the reader."""

    sleep: str
    """A call that waits a number of seconds."""
    kill: str
    """A statement of the owner that ends all sessions of the reader."""
    clock: str
    """A query whose value changes within a moment."""
    create_user: str
    """A statement that makes a user with the password `m`."""
    attacks: tuple[str, ...]
    """Texts of a reader that try to end sessions of others."""


OTHERS = "usename LIKE '{user}\\_%' AND pid <> pg_backend_pid()"
DIALECTS = {
    "postgresql": Dialect(
        sleep="pg_sleep({})",
        kill="SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'",
        clock="SELECT clock_timestamp()",
        create_user="CREATE ROLE {} LOGIN PASSWORD 'm'",
        attacks=(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}",
            f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {OTHERS}",
            (
                "WITH me AS MATERIALIZED (SELECT set_config('role', '{user}', false)) "
                f"SELECT pg_terminate_backend(pid) FROM me, pg_stat_activity WHERE {OTHERS}"
            ),
            "SELECT set_config('session_authorization', '{user}_1', false), set_config('role', '{user}_2', false)",
        ),
    ),
    "mariadb": Dialect(
        sleep="SLEEP({})",
        kill="KILL USER {user}",
        clock="SELECT SYSDATE(6)",
        create_user="CREATE USER {} IDENTIFIED BY 'm'",
        attacks=("KILL 5", "KILL USER {user}_2", "SELECT 1; KILL 5", "SELECT /*! 1; KILL 5 */ 1"),
    ),
}


@pytest.fixture(params=DIALECTS)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dialect(engine: str) -> Dialect:
    return DIALECTS[engine]


def test_changed_rows_on_a_server_are_read_again(dialect: Dialect, database: Any, db: str) -> None:
    database.run("CREATE TABLE counter(n integer); INSERT INTO counter VALUES (1)")
    sql = "SELECT n FROM counter"
    with Executor(threads=1) as executor, Executor(threads=1, immutable=True) as keeper:
        first = [reader.execute(db, sql).rows for reader in (executor, keeper)]
        database.run("UPDATE counter SET n = 2")
        assert first == [[(1,)], [(1,)]]
        assert executor.execute(db, sql).rows == [(2,)]
        assert keeper.execute(db, sql).rows == [(1,)], "immutable: results are cached"
        times = {keeper.execute(db, dialect.clock).rows[0] for _ in range(3)}
        assert len(times) == 3


def test_no_password_reaches_a_callback(database: Any, db: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    with (
        caplog.at_level(logging.WARNING, "sqlexec_rs.slow"),
        Executor(threads=1, on_run=lambda path, sql, _: seen.append(f"{path} {sql}"), slow_query_ms=0) as executor,
    ):
        executor.execute(db, "SELECT 1")
    assert len(seen) == 1
    assert f"127.0.0.1:{database.server.port}" in seen[0]
    password = db.partition(f"{database.user}:")[2].partition("@")[0]
    assert len(password) == 32
    assert password not in seen[0] + caplog.text + repr(executor)


N_QUERIES = 500


def test_answers_are_right_or_db_error_while_sessions_are_killed(dialect: Dialect, database: Any, db: str) -> None:
    kill, pause = dialect.kill.format(user=database.user), threading.Event()
    with Executor(threads=2) as executor:
        job = executor.submit([(db, f"SELECT {i}, {dialect.sleep.format(0.002)}") for i in range(N_QUERIES)])
        while not job.done() or not executor.stats()["connections_lost"]:
            database.run(kill)
            pause.wait(0.1)
            if job.done():  # before a session was lost
                executor.execute(db, f"SELECT {dialect.sleep.format(0.1)}")
        outcomes = job.result()
        for i, outcome in enumerate(outcomes):
            assert outcome.status in {"ok", "db_error"}, outcome
            assert outcome.status != "ok" or outcome.rows[0][0] == i
        # A query is lost if its session is killed twice.
        assert sum(outcome.status == "ok" for outcome in outcomes) > N_QUERIES * 13 // 15
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        assert executor.stats()["connections_open"] <= 2


def test_a_thread_has_a_role_and_cannot_end_the_sessions_of_another(dialect: Dialect, database: Any) -> None:
    attacks = [attack.format(user=database.user) for attack in dialect.attacks]
    with Executor(threads=4) as executor:

        def run(texts: list[str]) -> list[Outcome]:
            return executor.execute_many([(database.server.readers, sql) for sql in texts])

        users = run([f"SELECT current_user, {dialect.sleep.format(0.2)}, {i}" for i in range(8)])
        roles = {outcome.rows[0][0].partition("@")[0] for outcome in users}
        assert len(roles) > 1
        assert roles <= {f"{database.user}_{i}" for i in range(1, 5)}
        texts = [f"SELECT {i}, {dialect.sleep.format(0.002)}" for i in range(300)]
        for i in range(24):
            texts.insert(i * 12, attacks[i % len(attacks)] + " " * i)
        outcomes = run(texts)
        right = [outcome.rows[0][0] for outcome in outcomes if outcome.status == "ok"]
        assert right == list(range(300))
        assert [outcome.status for outcome in outcomes].count("forbidden") == 24
        assert executor.stats()["connections_lost"] == 0


def test_each_role_that_can_write_is_refused(dialect: Dialect, database: Any) -> None:
    mixed = f"{database.user}_mixed"
    for i, rights in ((1, "SELECT"), (2, "SELECT, INSERT")):
        database.run(f"{dialect.create_user.format(f'{mixed}_{i}')}; GRANT {rights} ON item TO {mixed}_{i}")
    url = database.url_of(mixed, "m")
    with Executor(threads=2) as executor:
        assert executor.execute(f"{url}?roles=1", "SELECT 1").status == "ok"
        texts = [f"SELECT {i}, {dialect.sleep.format(0.02)}" for i in range(40)]
        outcomes = executor.execute_many([(f"{url}?roles=3", sql) for sql in texts])  # golds use the third role
        assert {outcome.status for outcome in outcomes} == {"ok", "db_error"}
        errors = {outcome.error for outcome in outcomes if outcome.error}
        assert len(errors) == 1
        assert f"{mixed}_2 can do more than read" in errors.pop()
        assert "roles=0: it must be a number" in (executor.execute(f"{url}?roles=0", "SELECT 1").error or "")


# Parts of the message for the owner, and for a user who may insert into one table.
REFUSALS = {
    "postgresql": (["superuser", "GRANT SELECT ON ALL TABLES"], "it can write to public.open"),
    "mariadb": (["ALL PRIVILEGES on *.*", "GRANT SELECT ON `{name}`.* TO reader"], "it has INSERT on `{name}`.`open`"),
}


def test_a_user_that_can_write_is_refused(executor: Executor, dialect: Dialect, database: Any, engine: str) -> None:
    of_owner, of_writer = REFUSALS[engine]
    outcome = executor.execute(database.server.owner, "SELECT 1")
    assert outcome.status == "db_error"
    for part in of_owner:
        assert part.format(name=database.name) in (outcome.error or "")
    writer = f"{database.user}_writer"
    create = dialect.create_user.format(writer)
    database.run(f"CREATE TABLE open(n integer); {create}; GRANT INSERT ON open TO {writer}")
    error = executor.execute(database.url_of(writer, "m"), "SELECT 1").error
    assert of_writer.format(name=database.name) in (error or "")


# Parts of the messages for a wrong password, no password, an unknown user, and an unknown database.
ACCESS = {
    "postgresql": ("password authentication failed", "requires a password", "does not exist"),
    "mariadb": ("Access denied", "Access denied", "Access denied"),
}


def test_an_invalid_url_is_reported_in_one_line_without_the_password(
    executor: Executor, database: Any, engine: str
) -> None:
    wrong, missing, absent = ACCESS[engine]
    scheme, address = database.scheme, f"127.0.0.1:{database.server.port}/{database.name}"
    cases = {
        f"{scheme}://{database.user}:secret@{address}": wrong,
        f"{scheme}://{database.user}@{address}": missing,
        f"{scheme}://nobody:secret@{address}": wrong,
        f"{scheme}://reader:secret@127.0.0.1:1/main": "refused",
        f"{scheme}://reader:secret@127.0.0.1:port/main": "port",
        f"{scheme}://reader:secret@127.0.0.1": "the URL has no database",
        "oracle://reader:secret@h/d": "unknown scheme oracle://",
        database.url.rpartition("/")[0] + "/nosuch": absent,
    }
    for url, reason in cases.items():
        outcome = executor.execute(url, "SELECT 1")
        assert outcome.status == "db_error"
        assert outcome.error is not None
        assert reason in outcome.error
        assert "\n" not in outcome.error
        assert "secret" not in outcome.error


# Lines of `check` for a reader, and of the error for an owner.
FACTS = {
    "postgresql": (["the role {user} can only read", "temporary files: not limited"], "superuser"),
    "mariadb": (
        ["the user {user}@% can only read", "memory: 256 MiB per run"],
        "can do more than read",
    ),
}


def test_server_limits_are_reported(database: Any, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts, refusal = FACTS[engine]
    assert __main__.main(["check", database.url]) == 0
    output = capsys.readouterr().out
    for fact in facts:
        assert fact.format(user=database.user) in output
    assert __main__.main(["check", database.server.owner]) == 2
    assert refusal in capsys.readouterr().err


def test_check_of_a_file_is_refused() -> None:
    with pytest.raises(ServerError, match="must start with postgresql://"):
        check("shop.sqlite")


def packet(body: bytes) -> bytes:
    """Return a packet of MariaDB's protocol, the first of a connection."""
    return len(body).to_bytes(3, "little") + b"\0" + body


def hello(version: bytes) -> bytes:
    """Return the greeting of a server with MariaDB's protocol."""
    return packet(
        b"\x0a" + version + b"\0" + bytes(4) + b"saltsalt\0" + b"\xff\xff\x2d" + b"\x02\0" + b"\xff\xff\x15"
        + bytes(10) + b"saltsaltsalt\0" + b"mysql_native_password\0"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "greeting", "message"),
    [
        ("postgresql", b"S\0\0\0\x1aserver_version\x009.6.24\0", "too old (9.6.24): PostgreSQL 13 is required"),
        ("mysql", hello(b"5.5.5-10.3.39-MariaDB"), "10.3.39-MariaDB): MariaDB 10.5"),
        ("mysql", hello(b"5.7.44"), "too old (5.7.44): MariaDB 10.5 or MySQL 8.0 is required"),
    ],
)
def test_an_outdated_server_is_refused_in_one_line(scheme: str, greeting: bytes, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Executor(threads=1) as executor:

        def greet() -> None:
            with listener.accept()[0] as client:
                if scheme == "postgresql":
                    client.recv(4096)
                    client.sendall(b"R\0\0\0\x08\0\0\0\0")
                client.sendall(greeting)
                client.recv(4096)

        thread = threading.Thread(target=greet)
        thread.start()
        outcome = executor.execute(f"{scheme}://reader:secret@127.0.0.1:{listener.getsockname()[1]}/main", "SELECT 1")
        thread.join()
    assert outcome.status == "db_error"
    assert outcome.error is not None
    assert message in outcome.error
    assert "\n" not in outcome.error
    assert "secret" not in outcome.error


def test_program_errors_exclude_usage_advice(tmp_path: Path) -> None:
    """MariaDB's installer prints the error first, and then half a page of advice."""
    advice = "echo you may also look at the manual;" * 40
    script = f"echo '[Note] begins'; echo '[ERROR] Cannot map 146m'; {advice} exit 1"
    with pytest.raises(ServerError, match=r"sh failed in .*: \[ERROR\] Cannot map 146m$"):
        _programs.run(["/bin/sh", "-c", script], tmp_path, None)
    with pytest.raises(ServerError, match=r"look at the manual$"):
        _programs.run(["/bin/sh", "-c", f"{advice} exit 1"], tmp_path, None)
