"""Values, columns and parameters on each engine, compared with its driver."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest

from sqlexec_rs import Executor

# DuckDB expressions and their values here; `...` is the value of duckdb's fetchall.
DUCKDB: list[tuple[str, Any]] = [
    ("NULL", ...),
    ("true", 1),
    ("(-128)::TINYINT", ...),
    ("255::UTINYINT", ...),
    ("9223372036854775807", ...),
    ("18446744073709551615::UBIGINT", float(2**64 - 1)),
    ("(2::HUGEINT) ** 100", float(2**100)),
    ("5::HUGEINT", ...),
    ("12345678901234567890123::BIGNUM", ...),
    ("0.5::FLOAT", ...),
    ("1e-7::DOUBLE", ...),
    ("'Infinity'::DOUBLE", ...),
    ("'-Infinity'::DOUBLE", ...),
    ("1.50::DECIMAL(8, 2)", 1.5),
    ("7.00::DECIMAL(8, 2)", 7),
    ("-0.25::DECIMAL(8, 2)", -0.25),
    ("0::DECIMAL(38, 10)", 0),
    ("0.0000000001::DECIMAL(38, 10)", 1e-10),
    ("10000000000000000000.00::DECIMAL(38, 2)", 1e19),
    ("''", ...),
    ("'é' || chr(0)", ...),
    ("'\\x00\\xFF'::BLOB", ...),
    ("DATE '2020-02-01'", "2020-02-01"),
    ("'infinity'::DATE", "9999-12-31"),
    ("DATE '1001-01-01 (BC)'", ...),
    ("TIME '10:00:00.5'", "10:00:00.500000"),
    ("TIMESTAMP '2020-02-01 10:00:00'", "2020-02-01 10:00:00"),
    ("TIMESTAMP_NS '2020-02-01 10:00:00.123456789'", "2020-02-01 10:00:00.123456"),
    ("INTERVAL '1 month 2 days 3 seconds'", "32 days, 0:00:03"),
    ("'b1f5a5f0-0000-4000-8000-000000000000'::UUID", "b1f5a5f0-0000-4000-8000-000000000000"),
    ("'small'::size", ...),
    ("'101'::BIT", ...),
    ("'{\"a\": 1}'::JSON", ...),
    ("[1, NULL, 3]", "[1, null, 3]"),
    ("[1.50, 2]", "[1.5, 2]"),
    ("{'a': 1, 'b': DATE '2020-02-01'}", '{"a": 1, "b": "2020-02-01"}'),
    ("MAP {'é': [true]}", '{"é": [true]}'),
    ("union_value(n := 2)", ...),
]
# Expressions whose values equal the driver's; the first four also have its types.
POSTGRESQL = [
    "NULL::text", "true", "false", "1::smallint", "-5", "9223372036854775807", "0.5::real", "1e-7::float8",
    "'Infinity'::float8", "1.50::numeric", "7.00::numeric", "''::text", "'é'", "'\\x00ff'::bytea", "''::bytea",
    "'a'::char(3)", "3::oid",
]  # fmt: skip
MARIADB = [
    "NULL", "true", "false", "CAST(-5 AS SIGNED)", "9223372036854775807", "0.5e0", "1e-7", "'é'", "''", "X'00FF'",
    "CAST('a' AS BINARY)", "1.50", "7.00", "YEAR('2020-01-01')", "JSON_ARRAY(1)", "b'101'", "CAST(1.1 AS FLOAT)",
    "CONCAT(1, 'a')", "ELT(1, 'x')",
]  # fmt: skip


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_duckdb_values_match_the_driver_or_the_table(executor: Executor, database: Any) -> None:
    sql = "SELECT " + ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(DUCKDB))
    (theirs,) = database.fetch(sql)
    outcome = executor.execute(database.url, sql)
    assert outcome.error is None
    for (text, wanted), ours, their in zip(DUCKDB, outcome.rows[0], theirs, strict=True):
        assert (ours, type(ours)) == ((their, type(their)) if wanted is ... else (wanted, type(wanted))), text
    ((nan,),) = executor.execute(database.url, "SELECT 'NaN'::DOUBLE").rows
    assert math.isnan(nan)


@pytest.mark.parametrize(
    ("engine", "expressions"), [("postgresql", POSTGRESQL), ("mariadb", MARIADB)], indirect=["engine"]
)
def test_server_values_match_the_driver(executor: Executor, database: Any, expressions: list[str]) -> None:
    sql = "SELECT " + ", ".join(expressions)
    (theirs,) = database.fetch(sql)
    (ours,) = executor.execute(database.url, sql).rows
    assert list(ours) == [bytes(value) if isinstance(value, memoryview) else value for value in theirs]
    assert [type(value) for value in ours[:4]] == [type(None), int, int, int]


# Values without a type here, as texts of the server.
TEXTS = {
    "postgresql": {
        "date '2020-02-01'": "2020-02-01",
        "timestamp '2020-02-01 10:00'": "2020-02-01 10:00:00",
        "timestamptz '2020-02-01 10:00+02'": "2020-02-01 08:00:00+00",
        "interval '1 day 2 s'": "1 day 00:00:02",
        "ARRAY[1, 2]": "{1,2}",
        "'{\"a\":1}'::jsonb": '{"a": 1}',
        "'b1f5a5f0-0000-4000-8000-000000000000'::uuid": "b1f5a5f0-0000-4000-8000-000000000000",
        "0.1::numeric": 0.1,
        "1e19::numeric": 1e19,
    },
    "mariadb": {
        "DATE '2020-02-01'": "2020-02-01",
        "TIMESTAMP '2020-02-01 10:00:00'": "2020-02-01 10:00:00",
        "TIME '10:00:00'": "10:00:00",
        "TIMESTAMP '2020-02-01 10:00:00.25'": "2020-02-01 10:00:00.25",
        "18446744073709551615": 2.0**64,
        "0.3": 0.3,
    },
}


@pytest.mark.parametrize("engine", TEXTS, indirect=True)
def test_values_without_a_type_are_texts_or_doubles(executor: Executor, db: str, engine: str) -> None:
    rows = executor.execute(db, "SELECT " + ", ".join(TEXTS[engine])).rows
    assert rows == [tuple(TEXTS[engine].values())]


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
@pytest.mark.skipif(importlib.util.find_spec("pytz") is None, reason="duckdb needs pytz for it")
def test_duckdb_times_with_a_zone_are_in_utc(executor: Executor, db: str) -> None:
    sql = "SELECT TIMESTAMPTZ '2020-02-01 10:00:00+02'"
    assert executor.execute(db, sql).rows == [("2020-02-01 08:00:00+00:00",)]


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_columns_of_each_type_match_the_driver(executor: Executor, database: Any) -> None:
    database.run("""
        CREATE TABLE every(a tinyint, b smallint unsigned, c mediumint, d bigint unsigned, e float, f double,
          g decimal(10, 3), h bit(9), i year, j char(3), k varchar(9), l text, m blob, n varbinary(4),
          o enum('x', 'y'), p set('u', 'v'), q json);
        INSERT INTO every VALUES (-1, 65535, 5, 9223372036854775807, 0.1, 0.1, 2.500, b'101', 2020, 'a', 'é', 'long',
          X'00FF', 'ab', 'y', 'u,v', '{"a": 1}');
        INSERT INTO every(a) VALUES (NULL);
    """)
    theirs = database.fetch("SELECT * FROM every")
    assert executor.execute(database.url, "SELECT * FROM every").rows == [tuple(row) for row in theirs]


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_each_query_has_its_columns(db: str) -> None:
    texts = [
        "SELECT id AS a, name AS b FROM item WHERE id = 1",
        "SELECT id AS a, name AS b FROM item WHERE id = 2",
        "SELECT 1 / 0 AS a FROM nothing",
        "SELECT name AS a, id AS b FROM item WHERE id = 2",
        "SELECT id AS a FROM item WHERE id = 2",
        "SELECT id AS a, name AS b FROM item WHERE id = 3",
    ]
    with Executor(threads=1) as executor:
        outcomes = [executor.execute(db, sql) for sql in texts]
    assert [(outcome.columns, outcome.rows) for outcome in outcomes if outcome.status == "ok"] == [
        (["a", "b"], [(1, "item 1")]),
        (["a", "b"], [(2, "item 2")]),
        (["a", "b"], [("item 2", 2)]),
        (["a"], [(2,)]),
        (["a", "b"], [(3, "item 3")]),
    ]


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_rows_of_the_duckdb_driver_can_be_a_gold(executor: Executor, database: Any) -> None:
    sql = "SELECT * FROM item"
    columns = ["id", "name", "price", "is_new", "since", "weight"]
    score = executor.score(database.url, sql, (columns, database.fetch(sql)), rules=("bird", "test_suite"))
    assert (score["bird"], score["test_suite"]) == (1.0, 1.0)
    outcome = executor.execute(database.url, sql)
    assert outcome.columns == columns
    assert outcome.column_types == ["INTEGER", "VARCHAR", "DECIMAL(8,2)", "BOOLEAN", "DATE", "DOUBLE"]


# A query with five parameters and its row, and queries with mismatched parameters and their statuses.
VALUES = [7, "é'", 0.25, b"\x00\xff", None]
PARAMETERS: dict[str, tuple[str, list[tuple[str, Any, str]]]] = {
    "duckdb": (
        "SELECT ? + 1, ?, ? * 2, ?, ?",
        [("SELECT ?", None, "runtime_error"), ("SELECT 1", [1], "runtime_error")],
    ),
    "postgresql": (
        "SELECT $1 + 1, $2::text, $3 * 2, $4, $5::text",
        [("SELECT $1::int", {"a": 1}, "runtime_error"), ("SELECT $1::int", None, "runtime_error")],
    ),
    "mariadb": (
        "SELECT ? + 1, ?, ? * 2, ?, ?",
        [
            ("SELECT ?", {"a": 1}, "runtime_error"),
            ("SELECT ?; DELETE FROM item", [1], "forbidden"),
        ],
    ),
}


def test_parameters_are_bound_by_position(executor: Executor, db: str, engine: str) -> None:
    sql, refused = PARAMETERS[engine]
    assert executor.execute(db, sql, parameters=VALUES).rows == [(8, "é'", 0.5, b"\x00\xff", None)]
    for text, parameters, status in refused:
        assert executor.execute(db, text, parameters=parameters).status == status, text
    if engine == "mariadb":
        assert executor.execute(db, "SELECT CONCAT(?, '\\'')", parameters=["é'"]).rows == [("é''",)]
        assert executor.execute(db, "SELECT ?, ?", parameters=[1]).status != "ok"
    if engine == "duckdb":
        assert executor.execute(db, "SELECT $a + $b", {"a": 1, "b": 2}).rows == [(3,)]


# Values beyond Python's years, times and integers, and their texts.
WIDE = [
    ("DATE '10000-01-01'", "10000-01-01"),
    ("DATE '5877641-06-23'", "5877641-06-23"),
    ("[DATE '10000-01-01']", '["10000-01-01"]'),
    ("MAP {DATE '10000-01-01': 1}", '{"10000-01-01": 1}'),
    ("TIMESTAMP '290309-12-22 (BC) 00:00:00'", "290309-12-22 (BC) 00:00:00"),
    ("TIMESTAMP_S '290000-01-01 00:00:00'", "290000-01-01 00:00:00"),
    ("TIMESTAMPTZ '10000-01-01 00:00:00+00'", "10000-01-01 00:00:00+00"),
    ("'-infinity'::TIMESTAMP", "0001-01-01 00:00:00"),
    ("TIME '24:00:00'", "24:00:00"),
    ("TIMETZ '10:00:00-15:59:59'", "10:00:00-15:59:59"),
    ("340282366920938463463374607431768211455::UHUGEINT", 2.0**128),
    ("bitstring('1', 8)", "00000001"),
    ("repeat('9', 5000)::BIGNUM", "9" * 5000),
    ("union_value(d := DATE '10000-01-01')", "10000-01-01"),
    ("INTERVAL (999999999) DAY", "999999999 days, 0:00:00"),
]
LONG_INTERVALS = [
    "INTERVAL (2147483647) MONTH",
    "INTERVAL (-2147483647) MONTH",
    "INTERVAL (1000000000) DAY",
    "[INTERVAL (2147483647) MONTH]",
    "MAP {INTERVAL (2147483647) MONTH: 1}",
    "union_value(n := INTERVAL (2147483647) MONTH)",
    "INTERVAL '1 month' * 999999999",
]


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_duckdb_values_beyond_python_ranges_are_text_or_an_error(executor: Executor, database: Any) -> None:
    outcome = executor.execute(database.url, "SELECT " + ", ".join(text for text, _ in WIDE))
    assert outcome.error is None
    assert outcome.rows == [tuple(value for _, value in WIDE)]
    for text in LONG_INTERVALS:
        outcome = executor.execute(database.url, f"SELECT {text}")
        assert (outcome.status, outcome.error) == (
            "runtime_error",
            "an INTERVAL has more than 999,999,999 days, the supported maximum: cast it to VARCHAR",
        )
        assert executor.execute(database.url, f"SELECT ({text})::VARCHAR").status == "ok"
