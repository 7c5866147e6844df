"""Limits, as set from Python, on hostile queries; `core/tests/suite/adversarial.rs` has the full list."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from pathlib import Path

import pytest

from sqlexec_rs import RULE_NAMES, STATUS_NAMES, Executor, Limits

KEYWORDS = {
    "heap_bytes": 256 << 20,
    "temp_bytes": 1 << 30,
    "compare_steps": 2_000_000_000,
    "max_length": 4 << 20,
    "max_sql_length": 1 << 20,
    "max_like_pattern": 1_000,
    "max_expr_depth": 500,
    "max_compound": 200,
    "max_vdbe_ops": 1_000_000,
    "max_columns": 2_000,
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("notes") / "notes.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE note(id INTEGER PRIMARY KEY, body TEXT)")
    connection.executemany("INSERT INTO note(body) VALUES (?)", [("a" * 60_000,) for _ in range(200)])
    connection.commit()
    connection.close()
    return path


def test_limits_repr_shows_keywords_that_differ_from_the_default() -> None:
    limits = Limits()
    assert {name: getattr(limits, name) for name in KEYWORDS} == KEYWORDS
    assert repr(limits) == "Limits(timeout_ms=30000, cpu_ms=None, vm_steps=None, max_rows=1000000, max_bytes=268435456)"
    for name, value in KEYWORDS.items():
        changed = Limits(**{name: value + 1})  # type: ignore[arg-type]
        assert changed != limits
        assert repr(changed) == repr(limits)[:-1] + f", {name}={value + 1})"
        assert eval(repr(changed), {"Limits": Limits}) == changed  # noqa: S307
    with pytest.raises(TypeError):
        Limits(None, None, None, 1, 1, 1)  # type: ignore[misc]
    with pytest.raises(OverflowError):
        Limits(max_length=-1)


@pytest.mark.parametrize(
    ("limits", "sql", "error"),
    [
        (Limits(max_length=1_000), "SELECT hex(zeroblob(501))", "string or blob too big"),
        (Limits(max_sql_length=20), "SELECT 1234567890123456", "statement too long"),
        (Limits(max_like_pattern=4), "SELECT 'a' LIKE '12345'", "LIKE or GLOB pattern too complex"),
        (Limits(max_expr_depth=5), "SELECT 1+2+3+4+5+6+7", "Expression tree is too large (maximum depth 5)"),
        (Limits(max_compound=2), "SELECT 1 UNION SELECT 2 UNION SELECT 3", "too many terms in compound SELECT"),
        (Limits(max_columns=2), "SELECT 1, 2, 3", "too many columns in result set"),
        (Limits(heap_bytes=3_000_000), "SELECT hex(zeroblob(2000000))", "over the limit of 3000000 bytes of memory"),
        (
            Limits(temp_bytes=1_000_000),
            "SELECT id FROM note ORDER BY body || id LIMIT -1 OFFSET 199",
            "over the limit of 1000000 bytes of temporary files",
        ),
    ],
)
def test_each_limit_applies_only_to_its_run(notes: Path, limits: Limits, sql: str, error: str) -> None:
    with Executor(threads=1, cache_bytes=0) as ex:
        assert ex.execute(notes, sql).status == "ok"
        outcome = ex.execute(notes, sql, limits=limits)
        assert (outcome.status, outcome.error) == ("too_large", error)
        assert ex.execute(notes, sql).status == "ok"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM note a, note b WHERE instr(a.body || b.id, 'aaab') AND trim(b.body, 'a')",
        "SELECT count(*) FROM note a, note b WHERE a.body || b.id LIKE '%aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'",
        "SELECT count(*) FROM note a, note b, note c WHERE replace(a.body, b.body || 'b', c.id) = ''",
        "WITH c0 AS (SELECT id AS v FROM note)"
        + "".join(f", c{i} AS (SELECT {'+'.join(['v'] * 60)} AS v FROM c{i - 1})" for i in range(1, 5))
        + " SELECT max(v) FROM c4",
    ],
)
def test_formerly_unstoppable_queries_are_stopped(notes: Path, sql: str) -> None:
    before = hashlib.sha256(notes.read_bytes()).hexdigest()
    with Executor(threads=1, limits=Limits(timeout_ms=250)) as ex:
        begun = time.monotonic()
        outcome = ex.execute(notes, sql)
        assert outcome.status in {"timeout", "too_large", "ok"}, outcome.error  # a fast machine may finish in time
        assert time.monotonic() - begun < 5.0
    assert hashlib.sha256(notes.read_bytes()).hexdigest() == before
    assert [path.name for path in notes.parent.iterdir()] == ["notes.sqlite"]


def test_a_budget_of_any_size_is_valid(notes: Path, isolation: str) -> None:
    """Rounded up to thousands, the largest numbers once wrapped around to the smallest."""
    sql = "SELECT count(*) FROM note a, note b WHERE a.id < b.id"
    with Executor(threads=1, isolation=isolation, cache_bytes=0) as ex:
        for steps in (2**64 - 1, 2**64 - 500, 2**63, 12_000_000_000):
            outcome = ex.execute(notes, sql, limits=Limits(vm_steps=steps))
            assert (outcome.status, outcome.rows) == ("ok", [(19_900,)]), outcome.error
        assert ex.execute(notes, sql, limits=Limits(vm_steps=1_000)).stopped_by == "vm_steps"


def wide(n_rows: int, n_columns: int, salt: float) -> str:
    """Return SQL for rows of numbers that no other salt gives."""
    columns = ", ".join(f"i * {n_columns} + {salt + column}" for column in range(n_columns))
    return f"WITH r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < {n_rows}) SELECT {columns} FROM r"


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_comparison_has_a_budget(notes: Path, rule: str) -> None:
    with Executor(threads=1) as ex:
        pair = (notes, wide(300, 10, 0.25), wide(299, 10, 0.75))
        for _ in range(2):
            over = ex.score(*pair, (rule,), limits=Limits(compare_steps=5_000))
            assert (over["pred_status"], over["gold_status"], over[rule]) == ("too_large", "ok", 0.0)
        assert ex.score(*pair, (rule,))["pred_status"] == "ok"
        arrays = ex.score_many(
            [notes] * 2, ["SELECT 1", pair[1]], ["SELECT 1", pair[2]], (rule,), limits=Limits(compare_steps=5_000)
        )
        assert [STATUS_NAMES[status] for status in arrays["pred_status"]] == ["ok", "too_large"]
        assert arrays[rule].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_running_comparison_ends_when_it_is_abandoned(notes: Path, how: str) -> None:
    """Each value of a row is searched among those of the other's: more than a billion comparisons."""
    limits = Limits(timeout_ms=None, compare_steps=2**64 - 1)
    predicted, gold = wide(10_000, 400, 0.25), wide(10_000, 400, 0.75)
    with Executor(threads=1, limits=limits) as ex:
        job = ex.submit_score([notes], [predicted], [gold], ("soft_f1",))
        while ex.stats()["runs"] < 2:
            time.sleep(0.01)
        assert not job.wait(0.2), "the comparison has started"
        (job.cancel if how == "cancel" else ex.close)()
        result = job.result()
        assert STATUS_NAMES[result["pred_status"][0]] == "cancelled"
        assert result["soft_f1"].tolist() == [0.0]
