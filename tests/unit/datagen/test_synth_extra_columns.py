"""Demonstrations with an extra column, only where a query filters or sorts by one that it does not show."""

from __future__ import annotations

import pytest

from jaxrl_sql.datagen.synth.extra_columns import add_column


@pytest.mark.parametrize(
    ("sql", "more"),
    [
        ("SELECT name FROM t WHERE age > 3", "SELECT name, age FROM t WHERE age > 3"),
        ("SELECT name, city FROM t WHERE NOT age > 3", "SELECT name, city, age FROM t WHERE NOT age > 3"),
        ("SELECT name FROM t ORDER BY pay DESC LIMIT 1", "SELECT name, pay FROM t ORDER BY pay DESC LIMIT 1"),
        # What it is sorted by comes before what it is filtered by.
        ("SELECT name FROM t WHERE age > 3 ORDER BY pay", "SELECT name, pay FROM t WHERE age > 3 ORDER BY pay"),
        ("SELECT age FROM t WHERE age > 3 AND pay = 1", "SELECT age, pay FROM t WHERE age > 3 AND pay = 1"),
        (
            "SELECT T1.a FROM x AS T1 JOIN y AS T2 ON T1.i = T2.i WHERE T2.b = 'FROM me'",
            "SELECT T1.a, T2.b FROM x AS T1 JOIN y AS T2 ON T1.i = T2.i WHERE T2.b = 'FROM me'",
        ),
        # The column of an inner query is not one of the outer.
        (
            "SELECT a FROM x WHERE i IN (SELECT j FROM y WHERE k = 1)",
            "SELECT a, i FROM x WHERE i IN (SELECT j FROM y WHERE k = 1)",
        ),
    ],
)
def test_a_column_more(sql: str, more: str) -> None:
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
def test_no_column_to_add(sql: str) -> None:
    assert add_column(sql) == ""
