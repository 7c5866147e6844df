"""Properties of worker processes only: ending unstoppable queries, and crashes that affect no other query."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from sqlexec_rs import Executor, ExecutorError, Limits, _native

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="inspects processes through /proc")

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
NO_LIMITS = Limits(timeout_ms=None)
# Generous, for a busy machine.
PATIENCE_S = 60.0
OVERSHOOT_MS = 1_000.0  # about 30 on an idle machine; without a kill these queries take ten seconds and more


def parent_and_state(pid: int) -> tuple[int, str]:
    """Return the parent and the state letter of a process, or (0, "") if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[1]), fields[0]


def workers(parent: int) -> list[int]:
    """Return the worker processes among a process's children, including unreaped ones.

    Executors of other tests in this process have their own.
    """
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    local = [pid for pid in pids if pid not in OTHERS and parent_and_state(pid)[0] == parent]
    return [pid for pid in local if name_of(pid) == "sqlexec-worker"]


OTHERS: set[int] = set()


@pytest.fixture(autouse=True)
def own_workers_alone() -> None:
    """Ignore workers that existed before the test."""
    OTHERS.clear()
    OTHERS.update(workers(os.getpid()))


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.002)


def open_paths(pid: int) -> list[Path]:
    """Return the files that a process has open."""
    result = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            result.append(path.readlink())
    return result


def stop(pid: int) -> None:
    """Stop a process, and wait until it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: parent_and_state(pid)[1] == "T")


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; its first thread may end before the others."""
    try:
        n_threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        n_threads = 0
    return n_threads <= 1 and parent_and_state(pid)[1] in {"", "Z", "X"}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return make_database(tmp_path.resolve() / "t.sqlite", 3)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(threads=1, isolation="process") as ex:
        yield ex


def make_database(path: Path, n: int) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(a)")
    connection.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(n)])
    connection.commit()
    connection.close()
    return path


def only_worker(ex: Executor, database: Path) -> int:
    """Run a query and return the process that ran it."""
    assert ex.execute(database, f"SELECT {time.monotonic_ns()}").status == "ok"
    (pid,) = workers(os.getpid())
    return pid


def test_a_stopped_worker_is_killed_and_replaced(executor: Executor, database: Path) -> None:
    """A stopped process represents any query that never returns to a handler, whatever SQLite can stop."""
    pid = only_worker(executor, database)
    stop(pid)
    begun = time.monotonic()
    outcome = executor.execute(database, "SELECT a FROM t", limits=Limits(timeout_ms=100))
    overshoot_ms = (time.monotonic() - begun) * 1e3 - 100
    assert (outcome.status, outcome.stopped_by) == ("timeout", "wall")
    assert "100 ms" in (outcome.error or "")
    assert "killed" in (outcome.error or "")
    assert outcome.elapsed_ms >= 100
    assert overshoot_ms < OVERSHOOT_MS
    assert executor.execute(database, "SELECT a FROM t").row_count == 3
    assert executor.stats()["workers_killed"] == 1
    assert workers(os.getpid()) != [pid]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT instr(printf('%.*c', 6000000, 'a'), printf('%.*c', 3000000, 'a') || 'b')",
        "SELECT length(trim(printf('%.*c', 6000000, 'a'), printf('%.*c', 3000000, 'b') || 'a'))",
        "SELECT length(replace(printf('%.*c', 6000000, 'a'), printf('%.*c', 3000000, 'a') || 'b', 'c'))",
    ],
    ids=["instr", "trim", "replace"],
)
def test_queries_that_escape_the_handlers_are_stopped(executor: Executor, database: Path, sql: str) -> None:
    only_worker(executor, database)
    begun = time.monotonic()
    outcome = executor.execute(database, sql, limits=Limits(timeout_ms=200))
    assert (time.monotonic() - begun) * 1e3 - 200 < OVERSHOOT_MS
    # Refusing the query or finishing it in time is fine, too.
    assert outcome.status in {"timeout", "too_large", "ok"}, outcome.error
    assert executor.execute(database, "SELECT a FROM t").status == "ok"


def test_a_hung_worker_is_killed_without_a_wall_limit(database: Path) -> None:
    with Executor(threads=1, isolation="process", worker_hang_ms=300) as ex:
        outcome = ex.execute(database, ENDLESS, limits=NO_LIMITS)
        assert (outcome.status, outcome.stopped_by) == ("timeout", "wall")
        assert "hung" in (outcome.error or "")
        outcome = ex.execute(database, ENDLESS, limits=Limits(timeout_ms=None, vm_steps=100_000))
        assert (outcome.status, outcome.stopped_by) == ("timeout", "vm_steps"), "its own handlers stop it"
        assert ex.stats()["workers_killed"] == 1


def test_a_query_is_retried_after_its_worker_is_killed(database: Path) -> None:
    with Executor(threads=2, limits=NO_LIMITS, isolation="process") as ex:
        job = ex.submit([(database, ENDLESS)])
        wait_until(lambda: [database in open_paths(pid) for pid in workers(os.getpid())] == [True])
        (first,) = workers(os.getpid())
        other = ex.submit([(database, ENDLESS + " -- another")])
        wait_until(lambda: [database in open_paths(pid) for pid in workers(os.getpid())] == [True, True])
        (of_other,) = set(workers(os.getpid())) - {first}
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: [database in open_paths(pid) for pid in set(workers(os.getpid())) - {first, of_other}] == [True]
        )
        assert not job.done()
        (second,) = set(workers(os.getpid())) - {first, of_other}
        os.kill(second, signal.SIGKILL)
        (outcome,) = job.result()
        assert (outcome.status, outcome.stopped_by) == ("crashed", "killed")
        assert "signal 9" in (outcome.error or "")
        assert ex.execute(database, "SELECT a FROM t").status == "ok"
        assert not other.done()
        stats = ex.stats()
        assert (stats["workers_crashed"], stats["workers_killed"], stats["crashed"]) == (2, 0, 1)


def test_a_crash_between_queries_fails_no_query(executor: Executor, database: Path) -> None:
    for _ in range(3):
        worker = only_worker(executor, database)
        os.kill(worker, signal.SIGKILL)
        wait_until(partial(is_gone, worker))
        assert executor.execute(database, f"SELECT {time.monotonic_ns()}").status == "ok"
    stats = executor.stats()
    assert (stats["workers_crashed"], stats["workers_started"], stats["crashed"]) == (3, 4, 0)
    assert (stats["connections_open"], stats["connections_opened"]) == (1, 4)


N_BURST = 4_000


def burst(database: Path, salt: str) -> list[tuple[Path, str]]:
    """Return quick queries, some of which a worker gets early; number i has the result i."""
    return [(database, f"SELECT {i} FROM t WHERE a = 1 -- {salt}") for i in range(N_BURST)]


def test_a_stopped_worker_in_a_burst_fails_one_query(database: Path) -> None:
    """On a busy machine others are replaced, too: late with reassigned queries, which fails none."""
    with Executor(threads=1, isolation="process", limits=Limits(timeout_ms=1_000)) as ex:
        n_timeouts = 0
        for salt in range(30):
            job = ex.submit(burst(database, f"{salt}"))
            wait_until(lambda job=job: job.progress()[0] > 100)
            (pid,) = (pid for pid in workers(os.getpid()) if not is_gone(pid))
            stop(pid)
            outcomes = job.result()
            wrong = [i for i, outcome in enumerate(outcomes) if outcome.rows != [(i,)]]
            assert [outcomes[i].status for i in wrong] in [["timeout"], []]
            n_timeouts += len(wrong)
            if n_timeouts == 3:
                break
            if not wrong:  # the burst was over before the worker stopped, or another had its queries
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        stats = ex.stats()
        assert (n_timeouts, stats["workers_killed"], stats["workers_crashed"]) == (3, 3, 0)
        assert stats["workers_started"] - stats["workers_late"] - 3 in {0, 1}, "the executor killed each"


@pytest.mark.slow
def test_a_worker_late_with_reassigned_queries_fails_no_query(database: Path) -> None:
    """It stops, answers a little, and stops again while another worker has its remaining queries."""
    n_late = 0
    for salt in range(300):  # about every seventh is late
        with Executor(threads=1, isolation="process", limits=NO_LIMITS) as ex:
            pid = only_worker(ex, database)
            job = ex.submit(burst(database, f"{salt}"))
            wait_until(lambda job=job: job.progress()[0] > 100)
            with suppress(ProcessLookupError):  # it has been replaced
                for _ in range(6):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.007)
                    os.kill(pid, signal.SIGCONT)
            assert [outcome.rows for outcome in job.result()] == [[(i,)] for i in range(N_BURST)]
            stats = ex.stats()
            assert (stats["workers_killed"], stats["workers_crashed"]) == (0, 0)
            n_late += stats["workers_late"]
        if n_late:
            return
    raise AssertionError("no worker was late")


def test_each_worker_killed_in_a_burst_fails_at_most_one_query(database: Path) -> None:
    """Queries sent early, or answered without the answer being sent, are sent again."""
    with Executor(threads=2, isolation="process") as ex:
        n_killed = 0
        for salt in range(10):
            job = ex.submit(burst(database, f"{salt}"))
            while not job.done():
                for pid in workers(os.getpid())[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        n_killed += 1
                time.sleep(0.005)
            outcomes = job.result()
            assert {outcome.status for outcome in outcomes} <= {"ok", "crashed"}
            assert all(outcome.rows == [(i,)] for i, outcome in enumerate(outcomes) if outcome.status == "ok")
        stats = ex.stats()
        assert stats["workers_crashed"] >= 1
        assert stats["crashed"] <= n_killed


def test_queries_queued_behind_a_slow_query_are_reassigned(database: Path) -> None:
    with Executor(threads=2, isolation="process", limits=NO_LIMITS) as ex:
        for salt in range(5):
            queries = burst(database, f"{salt}")
            queries[N_BURST // 3] = (database, f"{ENDLESS} -- {salt}")
            job = ex.submit(queries)
            wait_until(lambda job=job: job.progress()[0] == N_BURST - 1)
            job.cancel()
            assert [outcome.status for outcome in job.result() if outcome.status != "ok"] == ["cancelled"]
            assert ex.execute(database, "SELECT count(*) FROM t").rows == [(3,)]
        wait_until(lambda: ex.stats()["workers_killed"] == 5)


def test_a_burst_gives_the_outcomes_of_single_queries(database: Path) -> None:
    """Slow, failing, refused and killed queries are at random positions between quick ones."""
    draw = random.Random(7)
    others = [
        ENDLESS,
        "SELECT nothing FROM t",
        "DELETE FROM t",
        "SELECT zeroblob(5000000)",
        "SELECT group_concat(a || printf('%.*c', 900, 'x')) FROM t, t, t, t",
        "SELECT length(replace(printf('%.*c', 600000, 'a'), printf('%.*c', 300000, 'a') || 'b', 'c'))",
    ]
    texts = [sql for _, sql in burst(database, "b")]
    for index in draw.sample(range(N_BURST), 60):
        texts[index] = f"{draw.choice(others)} -- {index}"
    seen = {}
    for isolation in ("thread", "process"):
        limits = Limits(timeout_ms=60_000, vm_steps=300_000)
        with Executor(threads=2, isolation=isolation, limits=limits) as ex:
            outcomes = ex.execute_many([(database, sql) for sql in texts])
        seen[isolation] = [
            (outcome.status, outcome.error, outcome.rows if outcome.status == "ok" else None) for outcome in outcomes
        ]
    assert seen["process"] == seen["thread"]
    assert len({status for status, _, _ in seen["process"]}) >= 4


def test_worker_memory_is_limited_and_the_caller_survives(database: Path) -> None:
    limits = Limits(max_bytes=1 << 40, max_rows=1 << 40)
    bomb = f"WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT printf('%.*c', {10**6}, 'a') FROM r"
    with Executor(threads=1, limits=limits, isolation="process", worker_memory_bytes=128 << 20) as ex:
        outcome = ex.execute(database, bomb)
        assert outcome.status in {"crashed", "too_large"}, outcome.error
        assert ex.execute(database, "SELECT a FROM t").row_count == 3
    with pytest.raises(ValueError, match="worker_memory_bytes must be at least 67108864, not 5"):
        Executor(isolation="process", worker_memory_bytes=5)


def test_a_worker_is_sandboxed(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hush")
    leaked = os.open(database, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    with Executor(threads=1, isolation="process", worker_memory_bytes=1 << 30) as ex:
        process = Path(f"/proc/{only_worker(ex, database)}")
        limits = " ".join((process / "limits").read_text(encoding="utf-8").split())
        assert "Max address space 1073741824 1073741824" in limits
        assert "Max core file size 0 0" in limits
        assert "NoNewPrivs: 1" in " ".join((process / "status").read_text(encoding="utf-8").split())

        def is_filtered(thread: Path) -> bool:
            status = " ".join((thread / "status").read_text(encoding="utf-8").split())
            return "Seccomp: 2" in status or "Seccomp:" not in status

        wait_until(
            lambda: all(map(is_filtered, (process / "task").iterdir()))
        )  # the first thread comes after the other
        ex.execute(database, "SELECT 'files'", limits=Limits(temp_bytes=5_000_000))
        limits = " ".join((process / "limits").read_text(encoding="utf-8").split())
        assert f"Max file size {5_000_000 + (1 << 20)} " in limits
        assert b"A_SECRET" not in (process / "environ").read_bytes()
        assert os.getpgid(int(process.name)) != os.getpgid(0), "Ctrl-C at the terminal is for the caller"
        assert open_paths(int(process.name)).count(database) == 1, "its own connection, and not the caller's open files"
    os.close(leaked)


def test_relative_paths_use_the_directory_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor(threads=1, isolation="process") as ex:
        for n in (1, 2):
            (tmp_path / str(n)).mkdir()
            make_database(tmp_path / str(n) / "t.sqlite", n)
            monkeypatch.chdir(tmp_path / str(n))
            assert ex.execute("t.sqlite", "SELECT count(*) FROM t").rows == [(n,)]


def test_kills_leak_no_process_or_descriptor(database: Path) -> None:
    def n_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with Executor(threads=1, limits=NO_LIMITS, isolation="process") as ex:
        only_worker(ex, database)
        before = n_descriptors()
        for i in range(40):
            job = ex.submit([(database, f"{ENDLESS} -- {i}")])
            wait_until(lambda: ex.stats()["queued"] == 0)
            time.sleep(0.001)
            job.cancel()
            assert ex.execute(database, f"SELECT {i}").rows == [(i,)]
        assert ex.stats()["workers_killed"] > 20
        assert len(workers(os.getpid())) == 1, "the others were reaped"
        wait_until(lambda: n_descriptors() <= before)  # the last one's are closed after the answer of the next
    assert workers(os.getpid()) == []


def test_closing_or_dropping_ends_all_workers(database: Path) -> None:
    ex = Executor(threads=2, limits=NO_LIMITS, isolation="process")
    ex.submit([(database, ENDLESS)])
    ex.execute(database, "SELECT 1")
    wait_until(lambda: len(workers(os.getpid())) == 2)
    ex.close()
    assert workers(os.getpid()) == []
    ex = Executor(threads=2, limits=NO_LIMITS, isolation="process")
    job = ex.submit([(database, ENDLESS)])
    wait_until(lambda: len(workers(os.getpid())) == 1)
    del ex
    assert [outcome.status for outcome in job.result()] == ["cancelled"]
    wait_until(lambda: not workers(os.getpid()))


@pytest.mark.parametrize("is_forked", [False, True], ids=["alone", "with a fork"])
def test_no_worker_outlives_a_killed_caller(database: Path, is_forked: bool) -> None:
    """A worker may be busy or stopped, and a fork of the caller may hold copies of the sockets."""
    code = """
    import os, signal, sys, time
    from sqlexec_rs import Executor, Limits
    ex = Executor(threads=2, limits=Limits(timeout_ms=None), isolation="process")
    job = ex.submit([(sys.argv[1], sys.argv[2])])
    ex.execute(sys.argv[1], "SELECT 1")
    forked = os.fork() if sys.argv[3] == "True" else None
    if forked != 0:
        print(forked, flush=True)  # by one process: lines of two mix in a pipe
    time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(database), ENDLESS, str(is_forked)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        forked = caller.stdout.readline()
        wait_until(lambda: len(workers(caller.pid)) == 2)
        started = workers(caller.pid)
        stop(started[0])
        caller.kill()
        caller.wait()
        wait_until(lambda: all(is_gone(pid) for pid in started))
        if is_forked:
            os.kill(int(forked), signal.SIGKILL)


def test_a_missing_or_foreign_worker_program_raises(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "_native.so"))
    with pytest.raises(ExecutorError, match="pip install"):
        Executor(isolation="process")
    program = tmp_path / "sqlexec-worker"
    for script, message in [("exit 3", "exit status 3"), (f"printf '{'x' * 100}' >&0", "another build")]:
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        with Executor(threads=1, isolation="process") as ex:
            with pytest.raises(ExecutorError, match=message):
                ex.execute(database, "SELECT 1")
            with pytest.raises(ExecutorError, match=message):
                ex.execute(database, "SELECT 1")


def test_isolation_is_reported() -> None:
    with Executor(threads=1, isolation="thread") as ex:
        assert (ex.isolation, repr(ex)) == ("thread", 'Executor(threads=1, isolation="thread")')
    with Executor(threads=1) as ex:
        assert (ex.isolation, repr(ex)) == ("process", 'Executor(threads=1, isolation="process")')
        assert ex.stats()["workers_started"] == 0, "a worker starts with the first query"
