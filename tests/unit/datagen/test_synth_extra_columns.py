"""Demonstrations add a column only if the query filters or sorts by a column that it does not select."""

from __future__ import annotations

import pytest

from jaxrl_sql.datagen.synth.extra_columns import add_column


@pytest.mark.parametrize(
    ("sql", "more"),
    [
        ("SELECT name FROM t WHERE age > 3", "SELECT name, age FROM t WHERE age > 3"),
        ("SELECT name, city FROM t WHERE NOT age > 3", "SELECT name, city, age FROM t WHERE NOT age > 3"),
        ("SELECT name FROM t ORDER BY pay DESC LIMIT 1", "SELECT name, pay FROM t ORDER BY pay DESC LIMIT 1"),
        # Sort columns have priority over filter columns.
        ("SELECT name FROM t WHERE age > 3 ORDER BY pay", "SELECT name, pay FROM t WHERE age > 3 ORDER BY pay"),
        ("SELECT age FROM t WHERE age > 3 AND pay = 1", "SELECT age, pay FROM t WHERE age > 3 AND pay = 1"),
        (
            "SELECT T1.a FROM x AS T1 JOIN y AS T2 ON T1.i = T2.i WHERE T2.b = 'FROM me'",
            "SELECT T1.a, T2.b FROM x AS T1 JOIN y AS T2 ON T1.i = T2.i WHERE T2.b = 'FROM me'",
        ),
        # A column of an inner query does not belong to the outer query.
        (
            "SELECT a FROM x WHERE i IN (SELECT j FROM y WHERE k = 1)",
            "SELECT a, i FROM x WHERE i IN (SELECT j FROM y WHERE k = 1)",
        ),
    ],
)
def test_add_column_adds_the_sort_or_filter_column(sql: str, more: str) -> None:
    assert add_column(sql) == more


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM t",
        "SELECT age FROM t WHERE age > 3",
        "SELECT COUNT(*) FROM t WHERE age > 3",
        "SELECT DISTINCT name FROM t WHERE age > 3",
        "SELECT city, COUNT(*) FROM t WHERE age > 3 GROUP BY city",
        "SELECT a FROM t WHERE b = 1 UNION SELECT a FROM t WHERE b = 2",
        "WITH c AS (SELECT a FROM t) SELECT a FROM c WHERE b = 1",
    ],
)
def test_add_column_returns_none_without_a_candidate(sql: str) -> None:
    assert add_column(sql) == ""
