"""Outcomes and limits as values: truncated results, row batches, pickles, and reports of each run."""

from __future__ import annotations

import asyncio
import copy
import logging
import multiprocessing
import pickle
import sqlite3
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor, Limits, Outcome

COUNT = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT {n}) SELECT x, 'row ' || x AS name FROM r"
ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE item(id INTEGER PRIMARY KEY, name VARCHAR(20), price REAL, raw BLOB, made DATE, d)"
    )
    connection.execute("INSERT INTO item VALUES (1, 'nail', 0.5, x'ff', NULL, NULL)")
    connection.commit()
    connection.close()
    return path


def test_a_truncated_result_has_the_first_rows_and_a_flag(executor: Executor, database: Path) -> None:
    cut = Limits(max_rows=3, on_excess="cut")
    out = executor.execute(database, COUNT.format(n=10), limits=cut)
    assert (out.status, out.is_cut, out.rows) == ("ok", True, [(1, "row 1"), (2, "row 2"), (3, "row 3")])
    assert "3 rows, cut" in repr(out)
    for n in (2, 3):
        out = executor.execute(database, COUNT.format(n=n), limits=cut)
        assert (out.status, out.is_cut, out.row_count) == ("ok", False, n)
    # Endless results are truncated, too.
    assert executor.execute(database, ENDLESS, limits=cut).rows == [(1,), (2,), (3,)]
    assert executor.execute(database, COUNT.format(n=10), limits=Limits(max_rows=3)).status == "too_large"
    assert executor.execute(database, COUNT.format(n=2), limits=Limits(max_rows=0, on_excess="cut")).rows == []


def test_the_byte_limit_truncates_between_rows(executor: Executor, database: Path) -> None:
    for max_bytes in range(0, 400, 7):
        limits = Limits(max_bytes=max_bytes, on_excess="cut")
        out = executor.execute(database, COUNT.format(n=20), limits=limits)
        size = [2 * 16 + len(f"row {x}") for x in range(1, 21)]
        n = max(k for k in range(21) if sum(size[:k]) <= max_bytes)
        assert (out.status, out.is_cut, out.rows) == ("ok", True, [(x, f"row {x}") for x in range(1, n + 1)])
        assert (
            out.set_digest == executor.execute(database, COUNT.format(n=n) if n else "SELECT 1, 2 WHERE 0").set_digest
        )


def test_truncated_results_are_not_scored(executor: Executor, database: Path) -> None:
    limits = Limits(max_rows=1, on_excess="cut")
    with pytest.raises(ValueError, match="a result that may be cut cannot be scored"):
        executor.score(database, "SELECT 1", "SELECT 1", limits=limits)
    gold = executor.execute(database, COUNT.format(n=5), limits=limits)
    with pytest.raises(ValueError, match="a gold outcome must be complete, but this one was cut"):
        executor.score(database, "SELECT 1", gold)
    with pytest.raises(ValueError, match='on_excess must be "refuse" or "cut"'):
        Limits(on_excess="drop")


def test_rows_are_read_in_batches(executor: Executor, database: Path) -> None:
    out = executor.execute(database, COUNT.format(n=2_500))
    batches = list(out.batches(1_000))
    assert [len(rows) for rows in batches] == [1_000, 1_000, 500]
    assert [row for rows in batches for row in rows] == out.rows
    assert (out.slice(10, 12), out.slice(2_499, 9_999), out.slice(5, 3)) == (out.rows[10:12], out.rows[2_499:], [])
    assert len(out.batches()) == 3
    assert list(executor.execute(database, "SELECT nmae FROM item").batches()) == []
    with pytest.raises(ValueError, match="at least 1 row"):
        out.batches(0)


def test_batches_do_not_hold_all_rows_as_python_objects(executor: Executor, database: Path) -> None:
    out = executor.execute(database, COUNT.format(n=100_000))
    tracemalloc.start()
    for rows in out.batches(100):
        assert rows
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_batches_and_items_let_the_event_loop_run(executor: Executor, database: Path) -> None:
    async def read() -> tuple[int, int, list[int]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        (out,) = await executor.submit([(database, COUNT.format(n=5_000))])
        before = ticks
        n_rows = 0
        async for rows in out.batches(100):
            n_rows += len(rows)
        assert ticks - before >= 40
        indexes = []
        job = executor.submit([(database, COUNT.format(n=n)) for n in range(1, 60)])
        async for index, outcome in job.as_completed():
            assert outcome.row_count == index + 1
            indexes.append(index)
        ticking.cancel()
        return n_rows, ticks, sorted(indexes)

    n_rows, _, indexes = asyncio.run(read())
    assert (n_rows, indexes) == (5_000, list(range(59)))


def test_waiting_for_items_in_an_event_loop_times_out(executor: Executor, database: Path) -> None:
    async def read() -> None:
        job = executor.submit(
            [(database, ENDLESS)], limits=Limits(timeout_ms=None, max_bytes=1 << 40, max_rows=1 << 40)
        )
        try:
            with pytest.raises(TimeoutError):
                async for _ in job.as_completed(timeout=0.1):
                    pass
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(job.as_completed()), 0.1)
        finally:
            job.cancel()

    asyncio.run(asyncio.wait_for(read(), 30))


def test_a_cancelled_wait_loses_no_item(executor: Executor, database: Path) -> None:
    async def read() -> list[int]:
        result: list[int] = []
        items = executor.submit([(database, COUNT.format(n=20_000 + n)) for n in range(40)]).as_completed()
        while True:
            try:
                index, _ = await asyncio.wait_for(anext(items), 0.001)
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return sorted(result)
            result.append(index)

    assert asyncio.run(asyncio.wait_for(read(), 60)) == list(range(40))


def test_limits_are_replaced_copied_and_pickled() -> None:
    limits = Limits(
        timeout_ms=None, cpu_ms=7, vm_steps=5, max_rows=9, heap_bytes=1 << 20, max_columns=3, on_excess="cut"
    )
    for again in (again_from_pickle(limits), copy.deepcopy(limits), limits.replace(), eval(repr(limits))):  # noqa: S307
        assert again == limits
        assert hash(again) == hash(limits)
    changed = limits.replace(timeout_ms=10, on_excess="refuse")
    assert (changed.timeout_ms, changed.on_excess, changed.max_rows, limits.timeout_ms) == (10, "refuse", 9, None)
    assert changed != limits
    names = {name for name in dir(Limits) if not name.startswith("_")} - {"replace"}
    assert set(limits.__getnewargs_ex__()[1]) == names
    with pytest.raises(TypeError, match="timeout"):
        limits.replace(timeout=3)
    if sys.version_info >= (3, 13):
        assert copy.replace(limits, max_rows=1) == limits.replace(max_rows=1)


def again_from_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  data written above


def _row_count(outcome: Outcome) -> tuple[int, list[Any]]:
    return outcome.row_count, outcome.rows[-1:]


def test_outcomes_can_be_pickled(executor: Executor, database: Path) -> None:
    sqls = [
        "SELECT *, 2.5, 'x' || char(0) FROM item",
        "SELECT nmae FROM item",
        COUNT.format(n=1_000),
        "SELECT 1 WHERE 0",
    ]
    outcomes = executor.execute_many([(database, sql) for sql in sqls])
    outcomes.append(executor.execute(database, COUNT.format(n=9), limits=Limits(max_rows=2, on_excess="cut")))
    names = [name for name in dir(Outcome) if not name.startswith("_") and not callable(getattr(outcomes[0], name))]
    assert {"rows", "columns", "column_types", "error", "hint", "is_cut", "set_digest", "elapsed_ms"} <= set(names)
    for outcome in outcomes:
        again = again_from_pickle(outcome)
        assert [getattr(again, name) for name in names] == [getattr(outcome, name) for name in names]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_row_count, outcomes[2:3]) == [(1_000, [(1_000, "row 1000")])]
    broken = bytearray(pickle.dumps(outcomes[0]))
    broken[broken.index(b"sqlexec-worker") + 20] ^= 1
    with pytest.raises(ValueError, match="by the version of sqlexec_rs that pickled it"):
        pickle.loads(bytes(broken))  # noqa: S301  data written above


def test_on_run_is_called_before_the_outcome_is_returned(database: Path, isolation: str) -> None:
    seen: list[tuple[Path, str, Outcome, str]] = []

    def on_run(db_path: Path, sql: str, outcome: Outcome) -> None:
        seen.append((db_path, sql, outcome, threading.current_thread().name))

    with Executor(threads=2, isolation=isolation, on_run=on_run) as executor:
        sqls = ["SELECT 1", "SELECT nmae FROM item", "SELECT 1", "SELECT ?"]
        executor.execute_many([(database, sql) for sql in sqls])
        assert sorted((sql, outcome.status) for _, sql, outcome, _ in seen) == [
            ("SELECT 1", "ok"),
            ("SELECT ?", "runtime_error"),
            ("SELECT nmae FROM item", "schema_error"),
        ]
        assert {path for path, *_ in seen} == {database}
        executor.execute(database, "SELECT 1")  # from the cache: no run
        assert len(seen) == 3
    assert threading.current_thread().name not in {name for *_, name in seen}
    with pytest.raises(TypeError, match="on_run must be callable"):
        Executor(on_run=3)  # type: ignore[arg-type]


def test_an_exception_in_on_run_does_not_affect_results(
    database: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: errors.append(str(args.exc_value)))

    def on_run(*_: object) -> None:
        raise RuntimeError("no matter")

    with Executor(threads=1, isolation=isolation, on_run=on_run) as executor:
        assert executor.execute(database, "SELECT 7").rows == [(7,)]
    assert errors == ["no matter"]


def test_slow_queries_are_logged(database: Path, isolation: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="sqlexec_rs.slow"),
        Executor(threads=1, isolation=isolation, slow_query_ms=500) as executor,
    ):
        executor.execute(database, "SELECT 1")
        executor.execute(database, f"SELECT max(x)\n FROM ({ENDLESS})", limits=Limits(timeout_ms=700))
    (record,) = (item for item in caplog.records if item.name == "sqlexec_rs.slow")
    assert "(timeout, 0 rows, " in record.getMessage()
    assert f" on {database}: SELECT max(x) FROM (WITH" in record.getMessage()


def test_arrow_columns_without_cells_have_declared_types(executor: Executor, database: Path) -> None:
    types = {"id": "int64", "name": "large_utf8", "price": "float64", "raw": "large_binary", "made": "large_utf8"}
    empty = executor.execute(database, "SELECT *, 1 AS e FROM item WHERE 0").to_arrow()
    assert dict(zip(empty.names, empty.types, strict=True)) == types | {"d": "null", "e": "null"}
    full = executor.execute(database, "SELECT * FROM item").to_arrow()
    assert dict(zip(full.names, full.types, strict=True)) == types | {"d": "null"}


def test_integers_in_a_column_with_a_real_stay_integers(executor: Executor, database: Path) -> None:
    def column(sql: str) -> tuple[list[str], list[Any]]:
        out = executor.execute(database, sql)
        return out.to_arrow().types, pyarrow.table(out).column(0).to_pylist()

    pyarrow = pytest.importorskip("pyarrow")
    assert column("SELECT 9007199254740993 UNION ALL SELECT 0.5") == (["large_utf8"], ["9007199254740993", "0.5"])
    assert column("SELECT 9007199254740992 UNION ALL SELECT 0.5") == (["float64"], [9007199254740992.0, 0.5])
    assert column("SELECT 9007199254740993 UNION ALL SELECT NULL") == (["int64"], [9007199254740993, None])
