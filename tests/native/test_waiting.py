"""Waiting: for one of many jobs, for items of a job, in an event loop, and for space in the queue."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqlexec_rs import Executor, ExecutorError, Job, Limits, as_completed

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
NO_LIMITS = Limits(timeout_ms=None)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(a)")
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(threads=2, limits=NO_LIMITS) as ex:
        yield ex


def run_python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def wait_until_running(executor: Executor) -> None:
    """Wait until a thread has taken the queued query."""
    deadline = time.monotonic() + 60
    while executor.stats()["queued"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_jobs_are_yielded_as_they_finish(executor: Executor, database: Path) -> None:
    slow = executor.submit([(database, ENDLESS)])
    fast = [executor.submit([(database, f"SELECT {i}")]) for i in range(5)]
    arrived = []
    for job in as_completed([slow, *fast, fast[0]], timeout=60):
        arrived.append(job)
        if len(arrived) == 5:
            slow.cancel()
    assert arrived[-1] is slow
    assert set(arrived) == {slow, *fast}
    assert len(arrived) == 6
    assert list(as_completed([])) == []


def test_as_completed_times_out(executor: Executor, database: Path) -> None:
    jobs = [executor.submit([(database, ENDLESS)]), executor.submit([(database, "SELECT 1")])]
    seen: list[Job] = []
    assert jobs[1].wait(60)
    with pytest.raises(TimeoutError, match="1 of 2 jobs were not finished in time"):
        seen.extend(as_completed(jobs, timeout=0.5))
    with pytest.raises(TimeoutError, match="not every item"):
        list(jobs[0].as_completed(timeout=0))
    jobs[0].cancel()


def test_items_of_a_job_are_yielded_as_they_finish(executor: Executor, database: Path) -> None:
    job = executor.submit([(database, sql) for sql in (ENDLESS, "SELECT 1", "SELECT 2", "SELECT 1")])
    items = job.as_completed(timeout=60)
    first = {index: outcome.rows for index, outcome in (next(items) for _ in range(3))}
    assert first == {1: [(1,)], 2: [(2,)], 3: [(1,)]}
    job.cancel()
    assert [(index, outcome.status) for index, outcome in items] == [(0, "cancelled")]
    assert [outcome.status for _, outcome in sorted(job.as_completed())] == ["cancelled", "ok", "ok", "ok"]
    scores = executor.submit_score([database] * 2, ["SELECT 1", "SELECT 2"], ["SELECT 1"] * 2, ("bird",))
    assert {index: score["bird"] for index, score in scores.as_completed()} == {0: 1.0, 1: 0.0}
    assert list(executor.submit([]).as_completed()) == []


def test_callbacks_are_called_once_with_the_job(executor: Executor, database: Path) -> None:
    called: list[Job] = []
    event = threading.Event()
    job = executor.submit([(database, ENDLESS)])
    job.add_done_callback(called.append)
    job.add_done_callback(lambda _: event.set())
    assert called == []
    job.cancel()
    assert event.wait(60)
    job.add_done_callback(called.append)  # finished: called at once
    assert called == [job, job]
    with pytest.raises(TypeError, match="callable"):
        job.add_done_callback(3)  # type: ignore[arg-type]


def test_a_callback_that_raises_is_reported(
    executor: Executor, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    job = executor.submit([(database, "SELECT 1")])
    job.wait()
    job.add_done_callback(lambda _: 1 / 0)
    assert [type(report) for report in reports] == [ZeroDivisionError]
    assert executor.execute(database, "SELECT 3").rows == [(3,)]


def test_jobs_are_awaited_next_to_other_tasks(executor: Executor, database: Path) -> None:
    async def main() -> tuple[list[int], int, list[str]]:
        jobs = [executor.submit([(database, f"SELECT {i}")]) for i in range(20)]
        slow = executor.submit([(database, ENDLESS)])
        waiting = asyncio.ensure_future(slow)  # type: ignore[arg-type]
        rows = [outcomes[0].rows[0][0] for outcomes in await asyncio.gather(*jobs)]  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.01)
        slow.cancel()
        done = await waiting
        scores = await executor.submit_score([database], ["SELECT 1"], ["SELECT 1"])
        return rows, len(scores["bird"]), [outcome.status for outcome in done]

    assert asyncio.run(main()) == (list(range(20)), 1, ["cancelled"])


def test_cancelling_a_task_does_not_cancel_the_job(executor: Executor, database: Path) -> None:
    async def main() -> Job:
        job = executor.submit([(database, ENDLESS)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.01)
        return job

    job = asyncio.run(main())
    assert not job.done()
    job.cancel()  # the loop to be notified is closed
    assert job.done()


def test_batches_are_served_round_robin(database: Path) -> None:
    with Executor(threads=1, limits=NO_LIMITS) as ex:
        blocker = ex.submit([(database, ENDLESS)])
        large = ex.submit([(database, f"SELECT {i}, 'large'") for i in range(2_000)])
        small = ex.submit([(database, f"SELECT {i}, 'small'") for i in range(5)])
        done: queue.Queue[Job] = queue.Queue()
        for job in (large, small):
            job.add_done_callback(done.put)
        blocker.cancel()
        assert [done.get(timeout=60) for _ in range(2)] == [small, large]


def test_submit_blocks_on_a_full_queue(database: Path) -> None:
    with Executor(threads=1, limits=NO_LIMITS, max_queued=3) as ex:
        blocker = ex.submit([(database, ENDLESS)])
        wait_until_running(ex)
        first = ex.submit([(database, f"SELECT {i}") for i in range(3)])
        entered: list[Job] = []
        thread = threading.Thread(target=lambda: entered.append(ex.submit([(database, "SELECT 9")])))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert not entered
        assert ex.stats()["queued"] == 3
        blocker.cancel()
        thread.join(60)
        assert entered[0].result()[0].rows == [(9,)]
        assert first.wait(60)
        # A batch larger than the queue is accepted when the queue is empty.
        assert len(ex.execute_many([(database, f"SELECT {i}, 'large'") for i in range(50)])) == 50
    with pytest.raises(ValueError, match="max_queued must be at least 1"):
        Executor(max_queued=0)


def test_closing_ends_a_blocked_submit(database: Path) -> None:
    ex = Executor(threads=1, limits=NO_LIMITS, max_queued=1)
    ex.submit([(database, ENDLESS)])
    wait_until_running(ex)
    ex.submit([(database, "SELECT 1")])
    raised: list[str] = []

    def submit() -> None:
        try:
            ex.submit([(database, "SELECT 2")])
        except ExecutorError as error:
            raised.append(str(error))

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join(0.1)
    ex.close()
    thread.join(60)
    assert raised == ["the executor is closed"]


@pytest.mark.parametrize(
    "call",
    [
        "ex.execute_many([(db, sql), (db, 'SELECT 1')])",
        "ex.submit([(db, 'SELECT 2')])",  # the queue is full
        "next(as_completed([running]))",
        "next(running.as_completed())",
    ],
)
def test_ctrl_c_interrupts_waits_immediately(database: Path, call: str) -> None:
    done = run_python(
        f"""
        import os, signal, sys, threading, time
        from sqlexec_rs import Executor, Limits, as_completed
        db, sql = sys.argv[1], {ENDLESS!r}
        ex = Executor(threads=1, limits=Limits(timeout_ms=None), max_queued=1)
        running = ex.submit([(db, sql + " -- running")])
        while ex.stats()["queued"]:
            time.sleep(0.001)
        queued = None if "execute_many" in {call!r} else ex.submit([(db, "SELECT 1")])
        sent = []
        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        try:
            threading.Timer(0.3, interrupt).start()
            {call}
        except KeyboardInterrupt:
            print("heard", time.monotonic() - sent[0] < 20.0, flush=True)
        ex.close()
        """,
        database,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("heard True", "", 0)


def test_waiting_raises_after_a_fork(database: Path) -> None:
    done = run_python(
        f"""
        import os, sys
        from sqlexec_rs import Executor, ExecutorError, Limits, as_completed
        ex = Executor(threads=1, limits=Limits(timeout_ms=None))
        job = ex.submit([(sys.argv[1], {ENDLESS!r})])
        items = job.as_completed()
        pid = os.fork()
        if pid == 0:
            calls = [lambda: job.add_done_callback(print), lambda: next(as_completed([job])), job.as_completed,
                     lambda: next(items), lambda: ex.submit([(sys.argv[1], "SELECT 1")])]
            raised = 0
            for call in calls:
                try:
                    call()
                except ExecutorError as error:
                    raised += "fork" in str(error)
            sys.exit(0 if raised == len(calls) else 1)
        _, status = os.waitpid(pid, 0)
        job.cancel()
        print(os.waitstatus_to_exitcode(status))
        """,
        database,
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_the_interpreter_exits_with_pending_callbacks(database: Path) -> None:
    done = run_python(
        f"""
        import sys
        from sqlexec_rs import Executor, Limits
        ex = Executor(threads=2, limits=Limits(timeout_ms=300))
        for i in range(8):
            ex.submit([(sys.argv[1], {ENDLESS!r} + f" -- {{i}}")]).add_done_callback(lambda job: job.result())
        """,
        database,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_callback_that_closes_its_executor_raises(database: Path, isolation: str) -> None:
    """It used to wait for its own thread, and blocked everyone else."""
    body = f"""
        import sys, time
        from sqlexec_rs import Executor, ExecutorError, Limits
        ex, errors = Executor(threads=2, isolation={isolation!r}), []
        def close(job):
            try:
                ex.close()
            except ExecutorError as error:
                errors.append(error)
        # Long enough that the job is not done before it has the callback, which would then run here.
        job = ex.submit([(sys.argv[1], {ENDLESS!r})], limits=Limits(timeout_ms=700))
        job.add_done_callback(close)
        job.result()
        while not errors:
            time.sleep(0.001)
        print(errors[0])
        print(ex.execute(sys.argv[1], "SELECT 2").rows)
        ex.close()
    """
    done = run_python(body, database)
    assert done.stdout.splitlines() == [
        "a callback cannot close the executor that calls it: it would deadlock",
        "[(2,)]",
    ], done.stderr


def test_a_subinterpreter_cannot_import_the_module() -> None:
    """It used to be possible, and hung at exit."""
    done = run_python("""
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        number = interpreters.create()
        body = ["try:", "    import sqlexec_rs", "except ImportError as error:", "    print(error, flush=True)"]
        interpreters.run_string(number, chr(10).join(body))
        interpreters.destroy(number)
        from sqlexec_rs import Executor
        Executor(threads=1).close()
    """)
    assert (done.returncode, done.stdout) == (0, "sqlexec_rs cannot be imported in a subinterpreter\n"), done.stderr
