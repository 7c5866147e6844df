"""What holds on every server that tests start, whatever its engine: limits, scores, cancellations, lost sessions."""

from __future__ import annotations

import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from sqlexec_rs import Executor, Limits, Outcome
from sqlexec_rs.servers import Server, _programs


class Words(NamedTuple):
    """What an engine calls what all of them have."""

    engine: str
    """Its name in messages."""
    numbers: str
    """Where the numbers from 1 to 500 come from, as `i`."""
    sleep: str
    """A call that waits so many seconds."""
    kill: str
    """The statement of an owner that ends all sessions of the reader."""
    clock: str
    """A query whose value changes within a moment."""
    user: str
    """The statement that makes a user of a name whose password is `m`."""
    attacks: tuple[str, ...]
    """What a reader may try to end the sessions of others."""


OTHERS = "usename LIKE 'reader\\_%' AND pid <> pg_backend_pid()"
WORDS = {
    "postgresql": Words(
        engine="postgresql",
        numbers="generate_series(1, 500) i",
        sleep="pg_sleep({})",
        kill="SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'",
        clock="SELECT clock_timestamp()",
        user="CREATE ROLE {} LOGIN PASSWORD 'm'",
        attacks=(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}",
            f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {OTHERS}",
            (
                "WITH me AS MATERIALIZED (SELECT set_config('role', 'reader', false)) "
                f"SELECT pg_terminate_backend(pid) FROM me, pg_stat_activity WHERE {OTHERS}"
            ),
            "SELECT set_config('session_authorization', 'reader_1', false), set_config('role', 'reader_2', false)",
        ),
    ),
    "mariadb": Words(
        engine="mysql",
        numbers="(SELECT seq AS i FROM seq_1_to_500) numbers",
        sleep="SLEEP({})",
        kill="KILL USER reader",
        clock="SELECT SYSDATE(6)",
        user="CREATE USER {} IDENTIFIED BY 'm'",
        attacks=("KILL 5", "KILL USER reader_2", "SELECT 1; KILL 5", "SELECT /*! 1; KILL 5 */ 1"),
    ),
}


@pytest.fixture(scope="module", params=WORDS)
def server(request: pytest.FixtureRequest, start_server: Callable[[str, str], Server]) -> Server:
    """Return a server with a table `item` of 500 rows."""
    numbers = WORDS[request.param].numbers
    rows = f"INSERT INTO item SELECT i, i / 4.0 FROM {numbers};"
    return start_server(request.param, f"CREATE TABLE item(id integer PRIMARY KEY, price numeric(8, 2)); {rows}")


@pytest.fixture(scope="module")
def words(server: Server) -> Words:
    return WORDS[server.engine]


@pytest.fixture(scope="module")
def db(server: Server) -> str:
    return server.reader


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """Return an executor in processes, which is the default: SQL of a server runs in the server all the same."""
    with Executor(threads=2) as executor:
        yield executor


def test_a_result_is_cut_where_that_is_asked_for(executor: Executor, db: str) -> None:
    for limits in (Limits(max_rows=7, on_excess="cut"), Limits(max_bytes=500, on_excess="cut")):
        outcome = executor.execute(db, "SELECT id FROM item ORDER BY id", limits=limits)
        assert outcome.is_cut
        assert outcome.rows == [(i + 1,) for i in range(outcome.row_count)]
        assert 5 < outcome.row_count < 40
    unbounded = Limits(max_rows=2**40, max_bytes=2**40)
    assert executor.execute(db, "SELECT id FROM item", limits=unbounded).row_count == 500
    assert executor.execute(db, "SELECT 1").rows == [(1,)]


def test_limits_of_sqlite_are_refused_at_submit(words: Words, executor: Executor, db: str) -> None:
    for limits, name in [
        (Limits(vm_steps=10), "vm_steps"),
        (Limits(cpu_ms=10), "cpu_ms"),
        (Limits(heap_bytes=1), "heap"),
    ]:
        with pytest.raises(ValueError, match=f"{words.engine} cannot honour {name}"):
            executor.execute_many([(db, "SELECT 1")], limits=limits)


def test_pairs_are_scored_across_engines(executor: Executor, db: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "t.sqlite")
    connection.execute("CREATE TABLE item(id, price)")
    connection.executemany("INSERT INTO item VALUES (?, ?)", [(i, i / 4) for i in range(1, 501)])
    connection.commit()
    connection.close()
    sql = "SELECT id, price FROM item WHERE id < 9"
    rows = executor.execute(tmp_path / "t.sqlite", sql).rows
    scores = executor.score_many([db], [sql], [(["id", "price"], rows)], rules=["bird", "test_suite", "soft_f1"])
    assert [scores[rule].tolist() for rule in ("bird", "test_suite", "soft_f1")] == [[1.0]] * 3
    predicted = [sql, "SELECT id, price FROM item WHERE id < 8", "SELECT 1 FROM nothing"]
    assert executor.score_many([db] * 3, predicted, [sql] * 3, rules=["bird"])["bird"].tolist() == [1.0, 0.0, 0.0]


def test_what_a_server_holds_may_change(words: Words, server: Server, db: str) -> None:
    server.run("CREATE TABLE counter(n integer); INSERT INTO counter VALUES (1)")
    sql = "SELECT n FROM counter"
    with Executor(threads=1) as executor, Executor(threads=1, immutable=True) as keeper:
        first = [ours.execute(db, sql).rows for ours in (executor, keeper)]
        server.run("UPDATE counter SET n = 2")
        assert first == [[(1,)], [(1,)]]
        assert executor.execute(db, sql).rows == [(2,)]
        assert keeper.execute(db, sql).rows == [(1,)], "it was said not to change"
        times = {keeper.execute(db, words.clock).rows[0] for _ in range(3)}
        assert len(times) == 3


def test_a_run_is_cancelled(words: Words, db: str) -> None:
    with Executor(threads=1) as executor:
        job = executor.submit([(db, f"SELECT {words.sleep.format(60)}"), (db, "SELECT 1")])
        time.sleep(0.2)
        job.cancel()
        assert [outcome.status for outcome in job.result()] == ["cancelled", "cancelled"]
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        executor.submit([(db, f"SELECT {words.sleep.format(60)}")])
        time.sleep(0.2)
        begun = time.monotonic()
    assert time.monotonic() - begun < 30, "close waits for the thread, and for no query"


def packet(body: bytes) -> bytes:
    """Return a packet of MariaDB's protocol, the first of a conversation."""
    return len(body).to_bytes(3, "little") + b"\0" + body


def hello(version: bytes) -> bytes:
    """Return how a server of MariaDB's protocol greets."""
    return packet(
        b"\x0a" + version + b"\0" + bytes(4) + b"saltsalt\0" + b"\xff\xff\x2d" + b"\x02\0" + b"\xff\xff\x15"
        + bytes(10) + b"saltsaltsalt\0" + b"mysql_native_password\0"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "greeting", "told"),
    [
        ("postgresql", b"S\0\0\0\x1aserver_version\x009.6.24\0", "too old (9.6.24): PostgreSQL from 13"),
        ("mysql", hello(b"5.5.5-10.3.39-MariaDB"), "10.3.39-MariaDB): MariaDB from 10.5"),
        ("mysql", hello(b"5.7.44"), "too old (5.7.44): MariaDB from 10.5, MySQL from 8.0"),
    ],
)
def test_a_server_that_is_too_old_is_refused_in_one_line(scheme: str, greeting: bytes, told: str) -> None:
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
    assert told in outcome.error
    assert "\n" not in outcome.error
    assert "secret" not in outcome.error


def test_no_password_reaches_a_callback(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    with (
        caplog.at_level(logging.WARNING, "sqlexec_rs.slow"),
        Executor(threads=1, on_run=lambda path, sql, _: seen.append(f"{path} {sql}"), slow_query_ms=0) as executor,
    ):
        executor.execute(server.reader, "SELECT 1")
    assert len(seen) == 1
    assert f"127.0.0.1:{server.port}" in seen[0]
    assert str(urlsplit(server.reader).password) not in seen[0] + caplog.text + repr(executor)


def test_answers_are_right_or_db_error_while_sessions_are_killed(words: Words, server: Server, db: str) -> None:
    with Executor(threads=2) as executor:
        job = executor.submit([(db, f"SELECT {i}, {words.sleep.format(0.002)}") for i in range(1_500)])
        n_kills = 0
        while not job.done() or not n_kills:
            server.run(words.kill)
            n_kills += 1
            time.sleep(0.1)
        outcomes = job.result()
        for i, outcome in enumerate(outcomes):
            assert outcome.status in {"ok", "db_error"}, outcome
            assert outcome.status != "ok" or outcome.rows[0][0] == i
        # A query is lost where its session is killed twice.
        assert sum(outcome.status == "ok" for outcome in outcomes) > 1_300
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        stats = executor.stats()
        assert stats["connections_lost"] > 0
        assert stats["connections_open"] <= 2


def test_a_thread_is_a_role_of_its_own_and_cannot_end_the_sessions_of_another(words: Words, server: Server) -> None:
    with Executor(threads=4) as executor:

        def run(texts: list[str]) -> list[Outcome]:
            return executor.execute_many([(server.readers, sql) for sql in texts])

        who = run([f"SELECT current_user, {words.sleep.format(0.05)}, {i}" for i in range(8)])
        roles = {outcome.rows[0][0].partition("@")[0] for outcome in who}
        assert len(roles) > 1
        assert roles <= {f"reader_{i}" for i in range(1, 5)}
        texts = [f"SELECT {i}, {words.sleep.format(0.002)}" for i in range(300)]
        for i in range(24):
            texts.insert(i * 12, words.attacks[i % len(words.attacks)] + " " * i)
        outcomes = run(texts)
        right = [outcome.rows[0][0] for outcome in outcomes if outcome.status == "ok"]
        assert right == list(range(300))
        assert [outcome.status for outcome in outcomes].count("forbidden") == 24
        assert executor.stats()["connections_lost"] == 0


def test_each_of_several_roles_is_refused_that_can_write(words: Words, server: Server) -> None:
    for user, rights in (("mixed_1", "SELECT"), ("mixed_2", "SELECT, INSERT")):
        server.run(f"{words.user.format(user)}; GRANT {rights} ON item TO {user}")
    url = server.reader.partition("//")[0] + f"//mixed:m@{server.reader.rpartition('@')[2]}"
    with Executor(threads=2) as executor:
        assert executor.execute(f"{url}?roles=1", "SELECT 1").status == "ok"
        texts = [f"SELECT {i}, {words.sleep.format(0.02)}" for i in range(20)]
        outcomes = executor.execute_many([(f"{url}?roles=2", sql) for sql in texts])
        assert {outcome.status for outcome in outcomes} == {"ok", "db_error"}
        errors = {outcome.error for outcome in outcomes if outcome.error}
        assert len(errors) == 1
        assert "mixed_2 can do more than read" in errors.pop()
        assert "roles=0: it is a number" in (executor.execute(f"{url}?roles=0", "SELECT 1").error or "")


def test_a_program_that_fails_is_told_by_its_errors_and_not_by_its_advice(tmp_path: Path) -> None:
    """MariaDB's installer says what went wrong first, and then half a page of where to ask."""
    advice = "echo you may also look at the manual;" * 40
    script = f"echo '[Note] begins'; echo '[ERROR] Cannot map 146m'; {advice} exit 1"
    with pytest.raises(_programs.ServerError, match=r"sh failed in .*: \[ERROR\] Cannot map 146m$"):
        _programs.run(["/bin/sh", "-c", script], tmp_path, None)
    with pytest.raises(_programs.ServerError, match=r"look at the manual$"):
        _programs.run(["/bin/sh", "-c", f"{advice} exit 1"], tmp_path, None)
