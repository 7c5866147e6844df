"""Analysis of golds: difficulty, features, and ties at their LIMIT."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.evals.features import features_of
from jaxrl_sql.text2sql.evals.hardness import ComponentCounts, count_parts, level, spider_level
from jaxrl_sql.text2sql.evals.summary import group_names
from jaxrl_sql.text2sql.evals.ties import cuts_through_ties
from jaxrl_sql.types import Example
from sqlexec_rs.servers import Server

# SQL, its parts (plain, nested, others), its level.
LEVELS = [
    ("SELECT count(*) FROM t", (0, 0, 0), "easy"),
    ("SELECT a FROM t WHERE b = 1", (1, 0, 0), "easy"),
    ("SELECT a FROM t ORDER BY b LIMIT 1", (2, 0, 0), "medium"),
    ("SELECT a, b FROM t WHERE c = 1 AND d = 2", (1, 0, 2), "medium"),
    ("SELECT a FROM t JOIN u ON t.x = u.x WHERE b = 1 OR c = 2", (3, 0, 1), "hard"),
    ("SELECT a FROM t, u WHERE b LIKE 'x'", (3, 0, 0), "hard"),
    ("SELECT count(*), max(a) FROM t WHERE b BETWEEN 1 AND 2 AND c = 1 GROUP BY d, e", (2, 0, 4), "hard"),
    ("SELECT a FROM t WHERE b IN (SELECT b FROM u WHERE c = 1)", (1, 1, 0), "hard"),
    ("SELECT a FROM t UNION SELECT a FROM u WHERE a = 1 ORDER BY a LIMIT 1", (0, 1, 0), "hard"),
    ("SELECT a, b FROM t EXCEPT SELECT a, b FROM u", (0, 1, 1), "extra"),
    ("SELECT a FROM t WHERE b NOT IN (SELECT b FROM u) AND NOT c LIKE 'x'", (2, 1, 2), "extra"),
    ("SELECT a FROM (SELECT a FROM u)", (0, 0, 0), "easy"),
    ("SELECT a FROM t GROUP BY a HAVING count(*) > 1 AND max(b) > 2", (1, 0, 0), "easy"),
    ("SELECT a FROM t GROUP BY a HAVING count(*) = (SELECT 1)", (1, 1, 0), "hard"),
    ("SELECT a FROM t WHERE (b = 1 OR c = 2) AND d = 3", (2, 0, 1), "medium"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "parts", "expected"), LEVELS)
def test_levels(sql: str, parts: tuple[int, int, int], expected: str) -> None:
    assert count_parts(sql) == ComponentCounts(*parts)
    assert spider_level(sql) == expected


def test_noise_has_no_level() -> None:
    assert (spider_level("SELECT FROM ("), spider_level(""), spider_level("DROP TABLE t")) == ("", "", "")
    assert level(ComponentCounts(4, 0, 0)) == level(ComponentCounts(2, 1, 0)) == "extra"


@pytest.mark.data
@pytest.mark.skipif("JAXRL_SQL_DATA" not in os.environ, reason="JAXRL_SQL_DATA does not name the real sets' folder")
def test_spiders_dev_set_has_the_published_levels() -> None:
    """All 1,034 questions, including those of the database that is too large for the local copy."""
    folder = Path(os.environ["JAXRL_SQL_DATA"]) / "spider_dev"
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    rows += json.loads((folder / "questions_unusable_wta_1.json").read_text(encoding="utf-8"))
    counted = Counter(spider_level(row["sql"]) for row in rows)
    assert counted == {"easy": 248, "medium": 446, "hard": 174, "extra": 166}


FEATURES = [
    ("SELECT a FROM t", "plain"),
    ("SELECT a FROM t JOIN u ON t.x = u.x", "join"),
    ("SELECT a FROM t, u", "join"),
    ("SELECT a FROM t LEFT JOIN u ON t.x = u.x", "join outer_join"),
    ("SELECT a, count(*) FROM t GROUP BY a HAVING count(*) > 1", "group having aggregate"),
    ("SELECT a FROM t ORDER BY a LIMIT 1", "order limit"),
    ("SELECT count(DISTINCT a) FROM t", "distinct aggregate"),
    ("SELECT a FROM t WHERE b IN (SELECT b FROM u)", "nested"),
    ("SELECT a FROM (SELECT a FROM u)", "nested"),
    ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u UNION SELECT 2 FROM v)", "nested set_operation"),
    ("SELECT a FROM t UNION SELECT a FROM u", "set_operation"),
    ("(SELECT a FROM t) EXCEPT (SELECT a FROM u)", "set_operation"),
    ("WITH c AS (SELECT a FROM t) SELECT a FROM c", "cte"),
    ("SELECT a, rank() OVER (ORDER BY b) FROM t WHERE c LIKE 'x%'", "order window like"),
    ("SELECT CASE WHEN a THEN 1 END, CAST(b AS REAL) * 100 FROM t", "case cast arithmetic"),
    ("SELECT a FROM t WHERE STRFTIME('%Y', d) = '2000'", "date"),
    ("SELECT FROM (", "unparsed"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), FEATURES)
def test_features(sql: str, expected: str) -> None:
    result = set(features_of(sql)) - ({"aggregate"} if "window" in expected else set())
    # sqlglot's versions build different trees for date functions: a cast may be included.
    assert result - ({"cast"} if expected == "date" else set()) == set(expected.split())


# t(a, b, c) is (1, x, 5), (2, y, 5), (3, y, 4), (4, NULL, 2).
TIES = [
    ("SELECT a FROM t ORDER BY c DESC LIMIT 1", True),
    ("SELECT a FROM t ORDER BY c DESC LIMIT 2", False),
    ("SELECT a FROM t ORDER BY c DESC LIMIT 1 OFFSET 1", True),
    ("SELECT a FROM t ORDER BY c DESC LIMIT 1, 1", True),
    ("SELECT a FROM t ORDER BY c DESC LIMIT 1 OFFSET 2", False),
    ("SELECT c FROM t ORDER BY c DESC LIMIT 1", False),  # the tied rows are equal
    ("SELECT a, c FROM t ORDER BY 2 DESC LIMIT 1", True),
    ("SELECT a, c AS what FROM t ORDER BY what DESC LIMIT 1", True),
    ("SELECT t.b, c AS b FROM t ORDER BY b DESC LIMIT 1", True),  # SQLite prefers the alias
    ("SELECT * FROM t ORDER BY c DESC LIMIT 1", True),
    ("SELECT * FROM t ORDER BY c LIMIT 1", False),
    ("SELECT a FROM t LIMIT 2", True),  # no order at all
    ("SELECT a FROM t LIMIT 4", False),  # nothing is truncated
    ("SELECT b FROM t GROUP BY b ORDER BY count(*) DESC LIMIT 1", False),
    ("SELECT b FROM t WHERE a <> 2 GROUP BY b ORDER BY count(*) DESC LIMIT 1", True),
    ("SELECT DISTINCT c FROM t ORDER BY c LIMIT 1", False),
    ("SELECT DISTINCT b FROM t ORDER BY c LIMIT 1", False),  # cannot be determined
    ("SELECT a FROM t UNION SELECT c FROM t ORDER BY a LIMIT 1", False),
    ("SELECT count(*) FROM t WHERE a > (SELECT a FROM t ORDER BY c DESC LIMIT 1)", True),
    ("SELECT a FROM t AS o WHERE a IN (SELECT a FROM t WHERE b = o.b LIMIT 1)", False),  # does not run on its own
    ("SELECT a FROM t ORDER BY c DESC LIMIT a", False),
    ("SELECT nope FROM t LIMIT 1", False),
    ("SELECT a FROM (LIMIT", False),
    ("SELECT 'no limit' FROM t", False),
]  # fmt: skip


def test_ties(executor: Executor, db: str) -> None:
    result = cuts_through_ties(executor, [(db, sql, "sqlite") for sql, _ in TIES])
    assert [sql for (sql, expected), is_cut in zip(TIES, result, strict=True) if is_cut != expected] == []


# The same table in other engines, with a column `d` of dates: two in 2020, one in 2021, one in 2022.
ELSEWHERE = """
CREATE TABLE t(a integer, b varchar(9), c integer, d date);
INSERT INTO t VALUES (1, 'x', 5, '2022-05-01'), (2, 'y', 5, '2021-05-01'), (3, 'y', 4, '2020-07-01'),
                     (4, NULL, 2, '2020-06-01');
"""
TIES_ELSEWHERE = {
    "postgresql": [
        ("SELECT a FROM t ORDER BY c DESC LIMIT 1", True),
        ("SELECT a FROM t ORDER BY DATE_TRUNC('year', d) LIMIT 1", True),
        ("SELECT a FROM t ORDER BY DATE_TRUNC('month', d) LIMIT 1", False),
        ("SELECT a FROM t WHERE b ILIKE 'Y' ORDER BY EXTRACT(DAY FROM d)::text LIMIT 1", True),
        ("SELECT a, d + INTERVAL '1 month' FROM t ORDER BY b NULLS FIRST LIMIT 1", False),
        ("SELECT a FROM t ORDER BY b NULLS LAST LIMIT 2 OFFSET 0", True),
        ("SELECT DISTINCT ON (c) c, a FROM t ORDER BY c LIMIT 1", False),
        ("SELECT `a` FROM t LIMIT 1", False),  # not of its dialect
    ],
    "mysql": [
        ("SELECT `a` FROM `t` ORDER BY `c` DESC LIMIT 1", True),
        ('SELECT a FROM t ORDER BY DATE_FORMAT(d, "%Y") LIMIT 0, 1', True),
        ("SELECT a FROM t ORDER BY DATE_FORMAT(d, '%Y-%m') LIMIT 1", False),
        ("SELECT a FROM t ORDER BY TIMESTAMPDIFF(YEAR, d, '2024-05-01') DESC LIMIT 1", True),
    ],
    "duckdb": [
        ("FROM t SELECT a ORDER BY c DESC LIMIT 1", True),
        ("SELECT a FROM t ORDER BY date_trunc('year', d) LIMIT 1", True),
        ("SELECT a FROM t ORDER BY d::VARCHAR LIMIT 1", False),
    ],
}


@pytest.mark.parametrize(
    "dialect", ["duckdb", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgresql", "mysql"))]
)
def test_ties_of_other_engines_use_their_dialect(
    dialect: str, executor: Executor, server_database: Callable[[str, str], Server], tmp_path: Path
) -> None:
    if dialect == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect(tmp_path / "t.duckdb") as connection:
            connection.execute(ELSEWHERE)
        database = f"duckdb:{tmp_path / 't.duckdb'}"
    else:
        database = server_database("mariadb" if dialect == "mysql" else dialect, ELSEWHERE).reader
    cases = TIES_ELSEWHERE[dialect]
    result = cuts_through_ties(executor, [(database, sql, dialect) for sql, _ in cases])
    assert [sql for (sql, expected), is_cut in zip(cases, result, strict=True) if is_cut != expected] == []


def test_golds_are_parsed_in_their_dialect() -> None:
    example = Example("q", "db", "db.sqlite", "?", "SELECT a FROM t WHERE b ~ 'x' LIMIT 1", dialect="postgresql")
    assert example.gold_dialect == "sqlite", "without an engine golds are SQLite's"
    there = dataclasses.replace(example, engine_url="postgresql://h/d")
    assert there.gold_dialect == "postgresql"
    assert "feature/unparsed" in group_names(example)
    assert {"hardness/medium", "feature/limit"} <= set(group_names(there))
