"""Reasoning texts derived from queries: inner queries first, and every part of the query mentioned."""

from __future__ import annotations

import pytest

from jaxrl_sql.datagen.reasoning import reason

CASES = {
    "SELECT name FROM singer": "singer: name",
    "SELECT DISTINCT grade FROM officers": "officers: different grade",
    "SELECT COUNT(*) FROM cars WHERE color = 'red' AND doors > 2": "cars where color = 'red' AND doors > 2: COUNT(*)",
    "SELECT T2.crop FROM a AS T1 JOIN b AS T2 ON T1.x = T2.id WHERE T1.y < 3": "a, b where y < 3: crop",
    "SELECT a, SUM(b) FROM t GROUP BY a HAVING SUM(b) > 1": "t by a with SUM(b) > 1: a, SUM(b)",
    "SELECT a FROM t ORDER BY b DESC, c ASC LIMIT 3": "t sort b DESC, c ASC top 3: a",
    "SELECT a FROM t WHERE b > (SELECT AVG(b) FROM t)": "t: AVG(b); then t where b > that: a",
    "SELECT a FROM t WHERE id IN (SELECT t_id FROM u WHERE c = 1)": "u where c = 1: t_id; then t where id IN that: a",
    "SELECT a FROM t EXCEPT SELECT a FROM t WHERE b = 1": "t: a but not t where b = 1: a",
    "SELECT a FROM t WHERE id IN (SELECT x FROM u UNION SELECT y FROM v)": ("u: x or v: y; then t where id IN that: a"),
    "WITH c AS (SELECT COUNT(*) AS n FROM w GROUP BY d) SELECT AVG(n) FROM c": (
        "w by d: COUNT(*) AS n; then c: AVG(n)"
    ),
    "SELECT a FROM (SELECT a FROM t WHERE b = 2) WHERE a > 1": "t where b = 2: a; then that where a > 1: a",
    "SELECT a FROM t WHERE b > (SELECT MIN(b) FROM u WHERE c IN (SELECT c FROM v))": (
        "v: c; then u where c IN that: MIN(b); then t where b > that: a"
    ),
    "INSERT INTO t VALUES (1)": "",
    "no query at all (": "",
    "": "",
}


@pytest.mark.parametrize("sql", CASES)
def test_reasoning_mentions_every_part_of_the_query(sql: str) -> None:
    assert reason(sql) == CASES[sql]
