"""What the tests of the executor may ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from sqlexec_rs import Executor, Limits


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Return where queries run; a test that asks runs in both ways."""
    return str(request.param)


@pytest.fixture(scope="module")
def executor(isolation: str) -> Iterator[Executor]:
    """Return an executor of two threads; a test that asks runs in both ways."""
    with Executor(threads=2, isolation=isolation) as executor:
        yield executor


@pytest.fixture(scope="session")
def ask_for_harm() -> Callable[[str, list[str]], None]:
    """Return what asks a server for texts that mean harm, and for their plans: each ends, and the server answers."""

    def ask(db: str, texts: list[str]) -> None:
        assert len(texts) >= 60
        limits = Limits(timeout_ms=150, max_rows=10_000, max_bytes=1 << 20)
        with Executor(threads=1) as executor:
            executor.execute(db, "SELECT 1")
            for call in (executor.execute, executor.explain):
                late = []
                for sql in texts:
                    begun = time.perf_counter()
                    outcome = call(db, sql, limits=limits)
                    late.append((time.perf_counter() - begun) * 1e3 - 150)
                    assert outcome.status != "ok" or outcome.row_count <= 10_000, sql[:60]
                    assert late[-1] < 5_000, sql[:60]
                p99, latest = sorted(late)[len(late) * 99 // 100], max(late)
                sql = texts[late.index(latest)][:60]
                print(f"{call.__name__}: {len(texts)} texts, p99 {p99:.0f} and the latest {latest:.0f} ms late ({sql})")
            assert executor.execute(db, "SELECT 1").rows == [(1,)]

    return ask
