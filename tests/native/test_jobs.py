"""Running batches: deadlines, cancellation, closing, forks and Ctrl-C."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from sqlexec_rs import STATUS_NAMES, STOP_NAMES, Executor, ExecutorError, Limits

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
NO_LIMITS = Limits(timeout_ms=None)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(a)")
    connection.commit()
    connection.close()
    return path


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(timeout_ms=50), "wall"),
        (Limits(timeout_ms=None, cpu_ms=50), "cpu"),
        (Limits(timeout_ms=None, vm_steps=100_000), "vm_steps"),
        (Limits(timeout_ms=0), "wall"),
    ],
)
def test_each_deadline_stops_a_runaway_query(database: Path, isolation: str, limits: Limits, stop: str) -> None:
    with Executor(threads=2, limits=limits, isolation=isolation) as ex:
        outcome = ex.execute(database, ENDLESS)
        assert (outcome.status, outcome.stopped_by) == ("timeout", stop)
        arrays = ex.score_many([database], [ENDLESS], ["SELECT 1"])
        assert (STATUS_NAMES[arrays["pred_status"][0]], STOP_NAMES[arrays["pred_stop"][0]]) == ("timeout", stop)
        assert ex.stats()["timeout"] >= 2, "a timeout is never cached"


def test_the_step_budget_is_deterministic(database: Path, isolation: str) -> None:
    steps = set()
    for threads in (1, 2):
        with Executor(threads=threads, limits=Limits(vm_steps=50_000), isolation=isolation) as ex:
            steps |= {ex.execute(database, ENDLESS).vm_steps for _ in range(3)}
    assert len(steps) == 1
    assert 50_000 <= steps.pop() < 51_000
    sql = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 3000) SELECT max(x) FROM r"
    with Executor(threads=1, isolation=isolation) as ex:
        need = ex.execute(database, sql).vm_steps
        assert ex.execute(database, sql, limits=Limits(vm_steps=need + 1_000)).status == "ok"
        assert ex.execute(database, sql, limits=Limits(vm_steps=need - 2_000)).status == "timeout"


def test_submit_returns_at_once_and_cancel_frees_the_threads(database: Path, isolation: str) -> None:
    with Executor(threads=2, limits=NO_LIMITS, isolation=isolation) as ex:
        job = ex.submit([(database, ENDLESS), (database, ENDLESS + " -- again"), (database, "SELECT 1")])
        assert not job.done()
        assert not job.wait(0.01)
        job.cancel()
        assert job.done()
        assert [outcome.status for outcome in job.result()] == ["cancelled"] * 3
        assert ex.execute(database, "SELECT 2").rows == [(2,)]


def test_a_runaway_query_does_not_delay_others(database: Path, isolation: str) -> None:
    with Executor(threads=2, limits=NO_LIMITS, isolation=isolation) as ex:
        slow = ex.submit_score([database] * 2, [ENDLESS, "SELECT 1"], ["SELECT 1"] * 2)
        outcomes = ex.execute_many([(database, f"SELECT {i}") for i in range(500)])
        assert [outcome.rows for outcome in outcomes] == [[(i,)] for i in range(500)]
        assert slow.progress() == (1, 2)
        slow.cancel()
        arrays = slow.result()
        assert [STATUS_NAMES[i] for i in arrays["pred_status"]] == ["cancelled", "ok"]
        assert arrays["bird"].tolist() == [0.0, 1.0]


def test_a_closed_executor_raises(database: Path, isolation: str) -> None:
    ex = Executor(threads=1, limits=NO_LIMITS, isolation=isolation)
    job = ex.submit([(database, ENDLESS)])
    ex.close()
    assert [outcome.status for outcome in job.result()] == ["cancelled"]
    with pytest.raises(ExecutorError, match="closed"):
        ex.execute(database, "SELECT 1")
    ex.close()


def test_a_dropped_executor_finishes_its_jobs_as_cancelled(database: Path, isolation: str) -> None:
    ex = Executor(threads=1, limits=NO_LIMITS, isolation=isolation)
    job = ex.submit([(database, ENDLESS)])
    del ex
    assert [outcome.status for outcome in job.result()] == ["cancelled"]


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_a_new_executor_in_a_forked_child_does_not_hang(database: Path, is_busy: bool) -> None:
    done = run_python(
        """
        import os, sys, time
        from sqlexec_rs import Executor, ExecutorError, Limits
        endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
        ex = Executor(threads=2, limits=Limits(timeout_ms=None))
        assert ex.execute(sys.argv[1], "SELECT 1").status == "ok"
        job = ex.submit([(sys.argv[1], endless)]) if sys.argv[2] == "True" else None
        while ex.stats()["queued"]:
            time.sleep(0.001)
        time.sleep(0.3)  # a thread runs the query, or rests after the one before
        pid = os.fork()
        if pid == 0:
            try:
                text = Executor(threads=1).execute(sys.argv[1], "SELECT 1").status
            except ExecutorError as error:
                text = "forked while a query ran" if "forked while a query ran" in str(error) else "?"
            print(text, flush=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if job is not None:
            job.cancel()
        print(os.waitstatus_to_exitcode(status), ex.execute(sys.argv[1], "SELECT 1").status)
        """,
        database,
        str(is_busy),
    )
    child = "forked while a query ran" if is_busy else "ok"
    assert (done.stdout.splitlines(), done.stderr) == ([child, "0 ok"], "")


def test_after_a_fork_the_child_raises_and_the_parent_continues(database: Path, isolation: str) -> None:
    done = run_python(
        """
        import os, sys
        from sqlexec_rs import Executor, ExecutorError, Limits
        endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
        ex = Executor(threads=2, limits=Limits(timeout_ms=None), isolation=sys.argv[2])
        job = ex.submit([(sys.argv[1], endless)])
        pid = os.fork()
        if pid == 0:
            calls = [lambda: ex.execute(sys.argv[1], "SELECT 1"), lambda: ex.submit([]), ex.stats, ex.close,
                     job.done, job.result, job.cancel, lambda: ex.score(sys.argv[1], "SELECT 1", "SELECT 1")]
            raised = 0
            for call in calls:
                try:
                    call()
                except ExecutorError as error:
                    raised += "fork" in str(error)
            del job, ex
            os._exit(0 if raised == 8 else 1)
        _, status = os.waitpid(pid, 0)
        job.cancel()
        print(os.waitstatus_to_exitcode(status), ex.execute(sys.argv[1], "SELECT 1").status)
        """,
        database,
        isolation,
    )
    assert (done.stdout.strip(), done.stderr) == ("0 ok", "")


@pytest.mark.parametrize(
    ("call", "where"),
    [
        ("ex.execute(db, sql)", "thread"),
        ("ex.score_many([db], [sql], [sql])", "thread"),
        ("ex.submit([(db, sql)]).result()", "thread"),
        ("ex.execute(db, sql)", "process"),
    ],
)
def test_ctrl_c_ends_a_wait(database: Path, call: str, where: str) -> None:
    done = run_python(
        f"""
        import os, signal, sys, threading
        from sqlexec_rs import Executor, Limits
        db = sys.argv[1]
        sql = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
        ex = Executor(threads=1, limits=Limits(timeout_ms=None), isolation="{where}")
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            {call}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        ex.close()
        """,
        database,
    )
    assert (done.stdout.strip(), done.returncode) == ("interrupted", 0)


def test_waiting_releases_the_interpreter(database: Path) -> None:
    """A second Python thread counts while the first waits: the interpreter is released."""
    done = run_python(
        """
        import sys, threading
        from sqlexec_rs import Executor, Limits
        sql = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
        ex = Executor(threads=1, limits=Limits(timeout_ms=None))
        job = ex.submit([(sys.argv[1], sql)])
        threading.Thread(target=job.cancel).start()
        print(job.result()[0].status)
        """,
        database,
    )
    assert done.stdout.strip() == "cancelled"


def test_limits_are_values() -> None:
    assert Limits() == Limits(30_000, None, None, 1_000_000, 256 << 20)
    assert Limits(vm_steps=5) != Limits()
    assert len({Limits(), Limits(timeout_ms=30_000), Limits(cpu_ms=1)}) == 2
    shown = "Limits(timeout_ms=30000, cpu_ms=7, vm_steps=None, max_rows=1000000, max_bytes=268435456)"
    assert repr(Limits(cpu_ms=7)) == shown
    with pytest.raises(AttributeError):
        Limits().max_rows = 3  # type: ignore[misc]
    with Executor(threads=1, limits=Limits(max_rows=7)) as ex:
        assert (ex.limits.max_rows, ex.threads) == (7, 1)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        Executor(threads=0)
    with pytest.raises(ValueError, match="isolation must be"):
        Executor(isolation="magic")


def test_checking_a_file_keeps_the_locks_of_a_running_query(database: Path) -> None:
    """Closing any descriptor of a file releases the process's locks on it: a writer could get in."""
    endless = "WITH RECURSIVE r(x) AS (SELECT a FROM t UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
    code = """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], timeout=0)
        try:
            connection.execute("BEGIN EXCLUSIVE")
            print("got in")
        except sqlite3.OperationalError as error:
            print(error)
        """
    with closing(sqlite3.connect(database)) as writer, writer:
        writer.execute("INSERT INTO t VALUES (1)")
    with Executor(threads=2, limits=NO_LIMITS, isolation="thread") as ex:
        job = ex.submit([(database, endless)])
        deadline, errors = time.monotonic() + 60, set[str]()
        while run_python(code, database).stdout.strip() != "database is locked":
            assert time.monotonic() < deadline, "the query did not start"
        for number in range(5):
            os.utime(database)  # changed a moment ago: checked at each batch
            assert ex.execute(database, f"SELECT {number}").status == "ok"
            time.sleep(0.05)
            errors.add(run_python(code, database).stdout.strip())
        assert not job.done()
        job.cancel()
    assert errors == {"database is locked"}
