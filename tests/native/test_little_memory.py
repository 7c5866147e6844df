"""With little address space a result is `too_large` or raises MemoryError, and never ends the process."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sqlexec_rs import RULE_NAMES
from sqlexec_rs.servers import Server

SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS requires Linux")

# 240 MB of rows: few long texts, and many short ones and numbers. Blobs and zeroblobs use other code paths.
RESULTS = {
    "long texts": "SELECT pad || i, i FROM n, pads LIMIT 240",
    "short cells": "SELECT i, i / 7.0, 'text ' || i FROM n, (SELECT 1 UNION ALL SELECT 2) LIMIT 5000000",
    "blobs": "SELECT zeroblob(1000000), i FROM n LIMIT 240",
    "one blob": "SELECT zeroblob(240000000)",
    "one text": "SELECT hex(zeroblob(120000000))",
}

BODY = """
import json, pickle, resource, sys
from sqlexec_rs import Executor, Limits
path, isolation, kib, sql, step, rules = sys.argv[1:]
bounds = {"timeout_ms": 60_000, "max_bytes": 300_000_000, "max_rows": 10_000_000}
limits = Limits(**bounds, max_length=300_000_000, heap_bytes=1 << 30, other_engines=Limits(**bounds))
use = {
    "execute": lambda ex, out: None,
    "rows": lambda ex, out: out.rows,
    "pretty": lambda ex, out: out.pretty(max_rows=None, max_width=None),
    "pickle": lambda ex, out: pickle.loads(pickle.dumps(out)),
    "arrow": lambda ex, out: out.to_arrow(),
    "digest": lambda ex, out: out.set_digest,
    "score": lambda ex, out: {ex.score(path, sql, out, (rule,))["pred_status"] for rule in json.loads(rules)},
}
with Executor(threads=1, isolation=isolation, limits=limits) as ex:
    ex.execute(path, "SELECT 1")  # the threads and their stacks are there
    resource.setrlimit(resource.RLIMIT_AS, (int(kib) << 10, -1))
    try:
        out = ex.execute(path, sql)
        answer = [out.status, out.stopped_by or out.error]
        if out.status == "ok":
            used = use[step](ex, out)
            answer = ["ok", sorted(used) if step == "score" else None]
    except MemoryError:
        answer = ["MemoryError", None]
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    assert ex.execute(path, "SELECT 1").rows == [(1,)]
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "n.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE n(i); CREATE TABLE pads(pad);"
            "WITH r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 2500000) INSERT INTO n SELECT i FROM r;"
            "INSERT INTO pads SELECT hex(zeroblob(500000));"
        )
    return path


def run(database: str | Path, isolation: str, kib: int, sql: str, step: str) -> list[str | list[str]]:
    command = [sys.executable, "-c", BODY, str(database), isolation, str(kib), sql, step, json.dumps(RULE_NAMES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (kib, done.returncode, done.stderr[-2000:])
    answer: list[str | list[str]] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize(
    "kib", [400_000, 475_000, pytest.param(550_000, marks=NIGHTLY), pytest.param(700_000, marks=SLOW)]
)
@pytest.mark.parametrize("result", ["long texts", *(pytest.param(name, marks=SLOW) for name in list(RESULTS)[1:])])
def test_a_large_result_ends_no_process(database: Path, isolation: str, kib: int, result: str) -> None:
    status, why = run(database, isolation, kib, RESULTS[result], "rows")
    assert status in {"ok", "too_large", "MemoryError"}, why
    if status == "too_large":
        assert why in {"memory", "out of memory"}, "SQLite has its own name for it"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kib", [800_000, *(pytest.param(kib, marks=NIGHTLY) for kib in (600_000, 1_000_000, 1_300_000))]
)
@pytest.mark.parametrize("step", ["pretty", "pickle", "arrow", "digest", "score"])
@pytest.mark.parametrize("result", ["long texts", "short cells"])
def test_converting_a_large_result_ends_no_process(database: Path, kib: int, step: str, result: str) -> None:
    status, used = run(database, "thread", kib, RESULTS[result], step)
    assert status in {"ok", "too_large", "MemoryError"}, used
    if step == "score" and status == "ok":
        assert set(used) <= {"ok", "too_large"}


@pytest.mark.parametrize("kib", [400_000, 550_000])
@pytest.mark.parametrize(
    ("engine", "sql"),
    [
        ("postgresql", "SELECT repeat('x', 1000000) FROM generate_series(1, 240)"),
        ("mariadb", "SELECT repeat('x', 1000000) FROM seq_1_to_240"),
    ],
)
def test_a_large_result_of_a_server_ends_no_process(
    server_database: Callable[[str, str], Server], kib: int, engine: str, sql: str
) -> None:
    server = server_database(engine, "SELECT 1;")
    status, why = run(server.reader, "thread", kib, sql, "rows")
    assert status in {"ok", "too_large", "MemoryError"}, why


def test_a_large_result_is_complete_with_enough_memory(database: Path) -> None:
    assert run(database, "thread", 4_000_000, RESULTS["long texts"], "rows") == ["ok", None]
