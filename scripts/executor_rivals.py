"""Run a workload by one method, in a separate process: `executor_rivals.py NAME WORKLOAD THREADS REPEATS DEADLINE_MS`.

`bench_executor.py` starts it. Each line of the workload is a database's path, a tab and a SQL text. Like `bare_loop` it
prints one line per repeat: seconds, and the numbers of queries that ran, failed, and reached the deadline. The
alternatives reimplement methods of other projects. They fetch and count all rows, and compare nothing. Each has its own
process, because some leave threads that use a core until the process ends.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from sqlexec_rs import STATUS_NAMES, Executor, Limits

Query = tuple[str, str]
STEP_PERIOD = 1_000
_COMPARED = ("bird",)


class DeadlineError(Exception):
    """Raised in a thread whose query is over its deadline."""


def main() -> None:
    """Run the workload and print one line per repeat."""
    name, workload, threads, repeats, deadline_ms = sys.argv[1:]
    lines = Path(workload).read_text(encoding="utf-8").splitlines()
    queries = [tuple(line.split("\t", 1)) for line in lines]
    run = METHODS[name](queries, int(threads), int(deadline_ms) / 1_000)
    for _ in range(int(repeats)):
        start_time = time.perf_counter()
        verdicts = Counter(run())
        seconds = time.perf_counter() - start_time
        print(f"{seconds:.9f}", *(verdicts[verdict] for verdict in ("ok", "failed", "late")), flush=True)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # threads that func_timeout's method left would never end.


# --- ours


def make_executor(threads: int, deadline: float, isolation: str) -> Executor:
    """Start an executor that caches only golds."""
    limits = Limits(timeout_ms=int(deadline * 1_000))
    return Executor(threads=threads, limits=limits, isolation=isolation, cache_bytes=0)


def run_ours_scored(
    queries: list[Query], threads: int, deadline: float, *, isolation: str = "thread"
) -> Callable[[], Iterable[str]]:
    """`score_many` with golds that the first call runs; equal texts would reuse the gold's run."""
    executor = make_executor(threads, deadline, isolation)
    paths, texts = [path for path, _ in queries], [sql for _, sql in queries]
    golds = [f"{sql} -- gold" for sql in texts]
    verdict_of = [_verdict(status) for status in STATUS_NAMES]

    def run() -> Iterable[str]:
        arrays = executor.score_many(paths, texts, golds, _COMPARED)
        return map(verdict_of.__getitem__, arrays["pred_status"].tolist())

    return run


def run_ours_executed(
    queries: list[Query], threads: int, deadline: float, *, isolation: str = "thread"
) -> Callable[[], Iterable[str]]:
    """`execute_many` in one call, without conversion of the results to Python rows."""
    executor = make_executor(threads, deadline, isolation)
    return lambda: [_verdict(outcome.status) for outcome in executor.execute_many(queries)]


def ours_rows(queries: list[Query], threads: int, deadline: float) -> Callable[[], Iterable[str]]:
    """`execute` and the rows of its result, one query at a time."""
    executor = make_executor(threads, deadline, "thread")

    def run_query(query: Query) -> str:
        outcome = executor.execute(*query)
        if outcome.status == "ok":
            len(outcome.rows)
        return _verdict(outcome.status)

    return lambda: map(run_query, queries)


def ours_distinct(queries: list[Query], threads: int, deadline: float) -> Callable[[], Any]:
    """`execute_many` of texts that a comment makes distinct, so that no run is shared."""
    return run_ours_executed([(path, f"{sql} -- {n}") for n, (path, sql) in enumerate(queries)], threads, deadline)


def _verdict(status: str) -> str:
    return {"ok": "ok", "timeout": "late"}.get(status, "failed")


# --- a deadline enforced by a second thread


def by_exception(deadline: float, query: Query) -> str:
    """func_timeout's method: a new connection, a helper thread, and an exception set in it after the deadline.

    The exception takes effect when SQLite returns a row, so an endless query continues after this call returns.
    """
    path, sql = query
    verdict = ["failed"]
    helper = threading.Thread(target=_fetch_fresh, args=(path, sql, verdict), daemon=True)
    helper.start()
    helper.join(deadline)
    if not helper.is_alive():
        return verdict[0]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(helper.ident or 0), ctypes.py_object(DeadlineError))
    return "late"


def _fetch_fresh(path: str, sql: str, verdict: list[str]) -> None:
    try:
        connection = sqlite3.connect(path)
        try:
            connection.execute(sql).fetchall()
            verdict[0] = "ok"
        finally:
            connection.close()
    except (sqlite3.Error, DeadlineError):
        pass


def by_interrupt(deadline: float, query: Query) -> str:
    """Run the query in a new thread with a new connection, and interrupt the connection after the deadline."""
    path, sql = query
    verdict = ["failed"]
    connection = sqlite3.connect(path, check_same_thread=False)
    helper = threading.Thread(target=_fetch_on, args=(connection, sql, verdict), daemon=True)
    helper.start()
    helper.join(deadline)
    is_late = helper.is_alive()
    while helper.is_alive():  # an interrupt before the first step is lost
        connection.interrupt()
        helper.join(0.01)
    connection.close()
    return "late" if is_late and verdict[0] != "ok" else verdict[0]


def _fetch_on(connection: sqlite3.Connection, sql: str, verdict: list[str]) -> None:
    try:
        connection.execute(sql).fetchall()
        verdict[0] = "ok"
    except sqlite3.Error:
        pass


def with_threads(run_query: Callable[[float, Query], str], queries: list[Query], threads: int, deadline: float) -> Any:
    """Run each query by `run_query` in a pool of threads."""
    pool = ThreadPoolExecutor(threads)
    return lambda: pool.map(partial(run_query, deadline), queries)


def with_processes(
    run_query: Callable[[float, Query], str], queries: list[Query], threads: int, deadline: float
) -> Any:
    """Run each query by `run_query` in a pool of processes, which return a verdict and no rows."""
    pool = multiprocessing.get_context("fork").Pool(threads)
    return lambda: pool.imap(partial(run_query, deadline), queries)


# --- a deadline enforced by the progress handler of a persistent connection


class Connections(threading.local):
    """The connections of one thread, by path, and when its query must end."""

    def __init__(self, connect: Callable[[str, Callable[[], bool]], Any]) -> None:
        self.connect = connect
        self.by_path: dict[str, Any] = {}
        self.ends = 0.0

    def get(self, path: str, deadline: float) -> Any:
        """Return the connection to a file and start the clock."""
        if path not in self.by_path:
            self.by_path[path] = self.connect(path, lambda: time.perf_counter() >= self.ends)
        self.ends = time.perf_counter() + deadline
        return self.by_path[path]


def with_progress(
    make: Callable[[], tuple[Any, Any, type[Exception]]], queries: list[Query], threads: int, deadline: float
) -> Callable[[], Any]:
    """Run queries in a pool of threads, or in this thread if `threads` is 1, with the library that `make` returns."""
    connect, interrupted, error = make()
    connections = Connections(connect)

    def run_query(query: Query) -> str:
        path, sql = query
        try:
            connections.get(path, deadline).execute(sql).fetchall()
        except error as problem:
            return "late" if interrupted(problem) else "failed"
        return "ok"

    if threads == 1:
        return lambda: map(run_query, queries)
    pool = ThreadPoolExecutor(threads)
    return lambda: pool.map(run_query, queries)


def use_sqlite3() -> tuple[Any, Any, type[Exception]]:
    """Return sqlite3's connect function, its interruption error, and its other errors."""

    def connect(path: str, is_late: Callable[[], bool]) -> sqlite3.Connection:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        connection.set_progress_handler(is_late, STEP_PERIOD)
        return connection

    return connect, lambda problem: str(problem) == "interrupted", sqlite3.Error


def use_apsw() -> tuple[Any, Any, type[Exception]]:
    """Return apsw's connect function, its interruption error, and its other errors."""

    def connect(path: str, is_late: Callable[[], bool]) -> Any:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_progress_handler(is_late, STEP_PERIOD)
        return connection

    return connect, lambda problem: isinstance(problem, apsw.InterruptError), apsw.Error


METHODS: dict[str, Callable[[list[Any], int, float], Callable[[], Any]]] = {
    "ours": run_ours_executed,
    "ours_scored": run_ours_scored,
    "ours_process": partial(run_ours_executed, isolation="process"),
    "ours_scored_process": partial(run_ours_scored, isolation="process"),
    "ours_distinct": ours_distinct,
    "ours_rows": ours_rows,
    "thread_exception": partial(with_threads, by_exception),
    "process_exception": partial(with_processes, by_exception),
    "thread_interrupt": partial(with_threads, by_interrupt),
    "thread_progress": partial(with_progress, use_sqlite3),
    "apsw_progress": partial(with_progress, use_apsw),
}

if __name__ == "__main__":
    main()
