"""MySQL queries on SQLite: a translated query returns the rows of a hand-written SQLite query."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.env.dialect import find_untranslated_part, from_sqlite, normal_form, to_sqlite
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.types import InputError

SCRIPT = """
CREATE TABLE sale(id INTEGER PRIMARY KEY, item TEXT, price REAL, pieces INTEGER, sold TEXT, "paid by" TEXT);
INSERT INTO sale VALUES
  (1, 'Ørsted''s lamp', 12.5, 3, '2023-12-31 23:59:59', 'ann'),
  (2, 'desk-top-fan',  -3.97, 0, '2024-01-31 10:05:09', NULL),
  (3, 'chair',        99.999, 7, '2024-02-29 00:00:00', 'Bob'),
  (4, 'chair',          10.0, 2, '2024-12-01 08:30:00', 'bob'),
  (5, NULL,             NULL, 4, '2022-07-04 16:45:00', 'ann');
CREATE TABLE visit(who TEXT, day TEXT, until TEXT);
INSERT INTO visit VALUES ('ann', '2024-01-31', '2024-03-01'), ('bob', '2023-05-15', '2024-05-14'),
  ('eve', '2020-02-29', '2019-12-31');
"""

# A model's MySQL query, and a person's SQLite query.
CASES = [
    ("SELECT `paid by` FROM `sale` WHERE `id` = 3", 'SELECT "paid by" FROM sale WHERE id = 3'),
    ("SELECT id FROM sale ORDER BY id LIMIT 1, 2", "SELECT id FROM sale WHERE id IN (2, 3) ORDER BY id"),
    ('SELECT id FROM sale WHERE item = "chair"', "SELECT id FROM sale WHERE item = 'chair'"),
    (
        r"SELECT id FROM sale WHERE item = 'Ørsted\'s lamp'",
        "SELECT id FROM sale WHERE item = 'Ørsted''s lamp'",
    ),
    (
        "SELECT CONCAT(item, ': ', pieces, '!') FROM sale",
        "SELECT item || ': ' || pieces || '!' FROM sale",
    ),
    ("SELECT IFNULL(item, 'none') FROM sale", "SELECT coalesce(item, 'none') FROM sale"),
    (
        "SELECT IF(pieces > 2, 'many', 'few') FROM sale",
        "SELECT CASE WHEN pieces > 2 THEN 'many' ELSE 'few' END FROM sale",
    ),
    (
        "SELECT id FROM sale WHERE YEAR(sold) = 2024 AND MONTH(sold) < 12",
        "SELECT id FROM sale WHERE sold >= '2024-01-01' AND sold < '2024-12-01'",
    ),
    (
        "SELECT DAY(sold) + 1, DAYOFMONTH(sold), HOUR(sold), MINUTE(sold), SECOND(sold) * 2 FROM sale WHERE id = 2",
        "SELECT 32, 31, 10, 5, 18",
    ),
    (
        "SELECT YEAR(sold), COUNT(*) FROM sale GROUP BY YEAR(sold) HAVING COUNT(*) > 1",
        "SELECT 2024, 3",
    ),
    (
        "SELECT EXTRACT(YEAR FROM sold), QUARTER(sold) FROM sale WHERE id IN (4, 5)",
        "SELECT * FROM (VALUES (2024, 4), (2022, 3))",
    ),
    (
        "SELECT DAYOFWEEK(day), WEEKDAY(day), DAYNAME(day), MONTHNAME(day), DAYOFYEAR(day) FROM visit LIMIT 1",
        "SELECT 4, 2, 'Wednesday', 'January', 31",
    ),
    (
        "SELECT DATE_FORMAT(sold, '%Y-%m'), DATE_FORMAT(sold, '%d/%m/%Y %H:%i:%s') FROM sale WHERE id = 2",
        "SELECT '2024-01', '31/01/2024 10:05:09'",
    ),
    (
        "SELECT DATE_FORMAT(sold, '%W the %e of %M, %y (%a, %b, %c)') FROM sale WHERE id = 5",
        "SELECT 'Monday the 4 of July, 22 (Mon, Jul, 7)'",
    ),
    (
        "SELECT DATE_ADD(day, INTERVAL 1 DAY), day + INTERVAL 2 WEEK, day - INTERVAL 1 YEAR FROM visit LIMIT 2, 1",
        "SELECT '2020-03-01', '2020-03-14', '2019-02-28'",
    ),
    (
        "SELECT DATE_ADD(day, INTERVAL 1 MONTH), day - INTERVAL 1 HOUR, LAST_DAY(day) FROM visit WHERE who = 'ann'",
        "SELECT '2024-02-29', '2024-01-30 23:00:00', '2024-01-31'",
    ),
    (
        "SELECT DATE_SUB(sold, INTERVAL pieces - 4 DAY) FROM sale WHERE id = 3",
        "SELECT '2024-02-26 00:00:00'",
    ),
    ("SELECT DATEDIFF(until, day) FROM visit", "SELECT * FROM (VALUES (30), (365), (-60))"),
    ("SELECT DATEDIFF('2024-01-02 01:00:00', '2024-01-01 23:00:00')", "SELECT 1"),
    (
        "SELECT TIMESTAMPDIFF(YEAR, day, until), TIMESTAMPDIFF(MONTH, day, until) FROM visit",
        "SELECT * FROM (VALUES (0, 1), (0, 11), (0, -1))",
    ),
    (
        "SELECT TIMESTAMPDIFF(DAY, day, until), WEEK(day) FROM visit",
        "SELECT * FROM (VALUES (30, 4), (365, 20), (-60, 8))",
    ),
    ("SELECT TIMESTAMPDIFF(HOUR, '2024-01-01 23:30:00', '2024-01-02 01:00:00')", "SELECT 1"),
    (
        "SELECT LEFT(item, 2), RIGHT(item, 3), MID(item, 2, 3), SUBSTRING(item, -2) FROM sale WHERE id = 3",
        "SELECT 'ch', 'air', 'hai', 'ir'",
    ),
    ("SELECT RIGHT('ab', 5), RIGHT('ab', 0), LEFT('ab', 5)", "SELECT 'ab', '', 'ab'"),
    ("SELECT LENGTH(item), CHAR_LENGTH(item) FROM sale WHERE id = 1", "SELECT 14, 13"),
    ("SELECT LOCATE('a', item), LOCATE('a', item, 4) FROM sale WHERE id = 3", "SELECT 3, 0"),
    (
        "SELECT SUBSTRING_INDEX(item, '-', 1), SUBSTRING_INDEX(item, '-', -1) FROM sale WHERE id IN (2, 3)",
        "SELECT * FROM (VALUES ('desk', 'fan'), ('chair', 'chair'))",
    ),
    ("SELECT pieces / 2, pieces DIV 2, pieces MOD 2 FROM sale WHERE id = 3", "SELECT 3.5, 3, 1"),
    ("SELECT pieces / 0 FROM sale WHERE id = 3", "SELECT NULL"),
    ("SELECT TRUNCATE(price, 1), TRUNCATE(price, 0) FROM sale WHERE id = 2", "SELECT -3.9, -3.0"),
    ("SELECT GREATEST(1, pieces), LEAST(pieces, 5) FROM sale WHERE id = 3", "SELECT 7, 5"),
    ("SELECT FORMAT(1234567.891, 2)", "SELECT '1,234,567.89'"),
    ("SELECT VARIANCE(pieces), VAR_SAMP(pieces) FROM sale WHERE id IN (3, 4)", "SELECT 6.25, 12.5"),
    ("SELECT VAR_SAMP(pieces) FROM sale WHERE id = 3", "SELECT NULL"),
    (
        "SELECT FLOOR(price), CEIL(price), CEILING(pieces) FROM sale WHERE id IN (1, 2)",
        "SELECT * FROM (VALUES (12, 13, 3), (-4, -3, 0))",
    ),
    ("SELECT COUNT(DISTINCT item, price) FROM sale", "SELECT 4"),
    (
        "SELECT GROUP_CONCAT(DISTINCT item ORDER BY item SEPARATOR ' + ') FROM sale WHERE id > 1",
        "SELECT 'chair + desk-top-fan'",
    ),
    ("SELECT GROUP_CONCAT(id ORDER BY id DESC SEPARATOR ';') FROM sale", "SELECT '5;4;3;2;1'"),
    (
        "SELECT id FROM sale WHERE item <=> NULL OR ISNULL(price)",
        "SELECT id FROM sale WHERE item IS NULL",
    ),
    ("SELECT id FROM sale WHERE id > 2 XOR pieces > 2", "SELECT id FROM sale WHERE id IN (1, 4)"),
    ("SELECT id FROM sale WHERE id = 1 || id = 2 && pieces = 9", "SELECT 1"),
    ("SELECT id FROM sale WHERE item REGEXP '^chai' OR item RLIKE 'fan$'", "SELECT id FROM sale WHERE id IN (2, 3, 4)"),
    (
        "SELECT item FROM sale WHERE pieces > 1 ORDER BY FIELD(item, 'chair') DESC, id LIMIT 1",
        "SELECT 'chair'",
    ),
    (
        "(SELECT item FROM sale WHERE id = 3) UNION (SELECT item FROM sale ORDER BY price DESC LIMIT 1)",
        "SELECT 'chair'",
    ),
    (
        "SELECT STRAIGHT_JOIN v.who FROM visit v STRAIGHT_JOIN sale s ON s.`paid by` = v.who WHERE s.id = 5",
        "SELECT 'ann'",
    ),
    (
        "SELECT CAST(pieces AS CHAR), CONVERT('12', SIGNED), CAST(sold AS DATE) FROM sale WHERE id = 4",
        "SELECT '2', 12, '2024-12-01'",
    ),
    ("SELECT UNIX_TIMESTAMP(sold) FROM sale WHERE id = 3", "SELECT 1709164800"),
    ("SELECT item, SUM(pieces = 7) FROM sale # the rest of the line\nWHERE id = 3 GROUP BY item;", "SELECT 'chair', 1"),
    (
        "SELECT CAST(2.7 AS SIGNED), CAST(-2.7 AS SIGNED INTEGER), CAST('2.7' AS SIGNED), CONVERT(99.9, SIGNED)",
        "SELECT 3, -3, 2, 100",
    ),
    ("SELECT CAST(price AS UNSIGNED), CAST(NULL AS SIGNED) FROM sale WHERE id = 3", "SELECT 100, NULL"),
    (
        "SELECT ROUND(1250, -2), ROUND(-1249.5, -2), ROUND(price, 1), ROUND(price) FROM sale WHERE id = 3",
        "SELECT 1300.0, -1200.0, 100.0, 100.0",
    ),
    (
        "SELECT GROUP_CONCAT(DISTINCT CONCAT(item, ',') ORDER BY item SEPARATOR ' + ') FROM sale WHERE id > 1",
        "SELECT 'chair, + desk-top-fan,'",
    ),
    ("SELECT `date`, `glob`, `total` FROM (SELECT 1 AS `date`, 2 AS `glob`, 3 AS total) AS t", "SELECT 1, 2, 3"),
    (
        "SELECT 'rowid', 'sqlite_master', \"a == b GLOB\" FROM visit LIMIT 1",
        "SELECT 'rowid', 'sqlite_master', 'a == b GLOB'",
    ),
    ("SELECT MAX(IF(pieces > 2, pieces, 0)), DATE(CONCAT('2024-01-0', 1)) FROM sale", "SELECT 7, '2024-01-01'"),
    ("SELECT YEAR(NOW()) >= 2024, CURDATE() > '2024-01-01'", "SELECT 1, 1"),
]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("dialect") / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
    return str(path)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with make_executor(ExecutorConfig(threads=1)) as executor:
        yield executor


@pytest.mark.parametrize(("mysql", "sqlite"), CASES, ids=[mysql[:60] for mysql, _ in CASES])
def test_translated_queries_return_the_rows_of_hand_written_ones(
    db: str, executor: Executor, mysql: str, sqlite: str
) -> None:
    translated = to_sqlite(mysql, "mysql")
    assert translated is not None
    got, want = executor.execute(db, translated), executor.execute(db, sqlite)
    assert (got.status, want.status) == ("ok", "ok"), (translated, got.error, want.error)
    if any(isinstance(cell, float) for row in want.rows for cell in row):
        assert got.rows == [pytest.approx(row) for row in want.rows], translated
    else:
        assert sorted(map(repr, got.rows)) == sorted(map(repr, want.rows)), translated


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "   ",
        "SELEC id FROM sale",
        "SELECT id FROM sale; SELECT id FROM visit",
        "SELECT 'open FROM sale",
        "SHOW TABLES",
        "SELECT " + "(" * 2000 + "1" + ")" * 2000,
        "SELECT * FROM",
        "I cannot answer that.",
        "SELECT YEAR() FROM sale",
        "SELECT DATE_ADD() FROM sale",
    ],
    ids=lambda sql: sql[:20],
)
def test_text_other_than_one_statement_has_no_translation(sql: str) -> None:
    assert to_sqlite(sql, "mysql") is None


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA table_info(sale)",
        "SELECT name FROM sqlite_master",
        "SELECT sql FROM `sqlite_schema`",
        "SELECT name FROM pragma_table_info('sale')",
        "SELECT rowid FROM sale",
        "SELECT STRFTIME('%Y', sold) FROM sale",
        "SELECT julianday(sold) FROM sale",
        "SELECT PRINTF('%d', id) FROM sale",
        "SELECT TOTAL(pieces) FROM sale",
        "SELECT IIF(id > 1, 1, 0) FROM sale",
        "SELECT typeof(id) FROM sale",
        "SELECT DATETIME(sold) FROM sale",
        "SELECT id FROM sale WHERE item GLOB 'c*'",
        "SELECT id FROM sale WHERE id == 1",
        "SELECT CAST(id AS TEXT) FROM sale",
        "SELECT CAST(price AS INTEGER) FROM sale",
        "SELECT CAST(price AS INT) FROM sale",
        "SELECT CAST((SELECT id AS DATE FROM sale) AS BLOB) FROM sale",
        "SELECT DATE(sold, '+1 month') FROM sale",
        "SELECT TIME(sold, 'start of day') FROM sale",
        "SELECT MAX(id, pieces) FROM sale",
        "SELECT id FROM sale WHERE item LIKE BINARY 'C%'",
        "SELECT id FROM sale WHERE BINARY item = 'chair'",
        "SELECT ROUND(price, pieces) FROM sale",
        "SELECT who FROM visit v FULL OUTER JOIN sale s ON s.id = 1",
        "SELECT id FROM sale ORDER BY price NULLS LAST",
        "SELECT id FROM sale ORDER BY item COLLATE NOCASE",
        "SELECT COUNT(*) FILTER (WHERE id > 1) FROM sale",
    ],
)
def test_queries_without_an_equal_sqlite_form_have_no_translation(sql: str) -> None:
    assert to_sqlite(sql, "mysql") is None


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT SHA3_OF(item) FROM sale", "SHA3_OF"),
        ("SELECT BIT_COUNT(pieces) FROM sale", "BIT_COUNT"),
        ("SELECT UUID()", "UUID"),
        ("SELECT RAND() FROM sale", "RAND"),
        ("SELECT JSON_EXTRACT(item, '$.a') FROM sale", "JSON_EXTRACT"),
        ("SELECT item->>'$.a' FROM sale", "item"),
        ("SELECT REGEXP_REPLACE(item, 'a', 'b') FROM sale", "REGEXP_REPLACE"),
        ("SELECT item REGEXP '^[a-z]+[0-9]+$' FROM sale", "the regular expression"),
        ("SELECT item REGEXP who FROM sale, visit", "REGEXP"),
        ("SELECT CONVERT_TZ(sold, 'UTC', 'CET') FROM sale", "CONVERT_TZ"),
        ("SELECT QUOTE(item) FROM sale", "QUOTE"),
        ("SELECT SOUNDEX(item) FROM sale", "SOUNDEX"),
        ("SELECT CHAR(300)", "CHAR"),
        ("SELECT TRIM('ab' FROM item) FROM sale", "TRIM"),
        ("SELECT WEEK(sold, 4) FROM sale", "WEEK"),
        ("SELECT EXTRACT(MICROSECOND FROM sold) FROM sale", "EXTRACT"),
        ("SELECT DATE_FORMAT(sold, '%f') FROM sale", "DATE_FORMAT"),
        ("SELECT STR_TO_DATE(item, '%b %e') FROM sale", "STR_TO_DATE"),
        ("SELECT DATE_ADD(sold, INTERVAL '1:30' MINUTE_SECOND) FROM sale", "INTERVAL"),
        ("SELECT sold FROM sale WHERE sold > 20240131", "20240131"),
        ("SELECT sold FROM sale WHERE sold > '2024-1-31'", "2024-1-31"),
        ("SELECT sold FROM sale WHERE sold > '2024-01-5 10:00:00'", "2024-01-5"),
        ("SELECT sold FROM sale WHERE TIME(sold) < '7:00:00'", "7:00:00"),
        ("SELECT item REGEXP '^[0-9.]+(\\\\.[0-9]+)?$' FROM sale", "the regular expression"),
        ("SELECT YEAR('20240131')", "20240131"),
        ("SELECT YEAR(20240131)", "a number used as a date"),
        ("SELECT YEAR('2023-02-29')", "2023-02-29"),
        ("SELECT CURDATE() - 1", "a date or time used as a number"),
        ("SELECT CAST(item AS JSON) FROM sale", "JSON"),
        ("SELECT 0x41", "x'41'"),
        ("SELECT b'101'", "b'101'"),
        ("SELECT ~pieces FROM sale", "~pieces"),
        ("SELECT pieces << 1 FROM sale", "<<"),
        ("SELECT 18446744073709551615", "63 bits"),
        ("SELECT item, COUNT(*) FROM sale GROUP BY item WITH ROLLUP", "ROLLUP"),
        ("SELECT id FROM sale WHERE id = ANY (SELECT 1)", "ANY"),
        ("SELECT id FROM sale WHERE id IN (1, 'a')", "IN"),
        ("SELECT id FROM sale WHERE (id, pieces) < (1, 2)", "an order of rows"),
        ("SELECT id FROM sale WHERE (id, pieces) = (1, 2, 3)", "rows of different lengths"),
        ("SELECT id FROM sale WHERE (id, pieces) IN (SELECT id FROM sale)", "rows of different lengths"),
        ("SELECT REVERSE(COUNT(*)) FROM sale", "REVERSE of COUNT"),
        ("SELECT SUBSTRING_INDEX(MAX(item) OVER (), 'a', 2) FROM sale", "SUBSTRING_INDEX of MAX"),
        ("SELECT id FROM sale EXCEPT ALL SELECT 1", "EXCEPT ALL"),
        ("SELECT v.a FROM (SELECT id FROM sale) AS v(a)", "derived table"),
        ("SELECT item COLLATE utf8mb4_bin FROM sale", "COLLATE"),
        ("SELECT @x", "@x"),
        ("SELECT /*! 1 + */ 2", "a comment"),
        ("SELECT STRFTIME('%Y', sold) FROM sale", "STRFTIME"),
    ],
)
def test_unsupported_query_is_refused_by_name(sql: str, name: str) -> None:
    assert to_sqlite(sql, "mysql") is None
    assert name in find_untranslated_part(sql, "mysql")


@pytest.mark.parametrize("value", ["YEAR(CONCAT(pieces, ''))", "CAST(-pieces AS UNSIGNED)", "-1 | pieces"])
def test_untranslatable_value_is_a_runtime_error(db: str, executor: Executor, value: str) -> None:
    translated = to_sqlite(f"SELECT {value} FROM sale", "mysql")
    assert translated is not None
    assert executor.execute(db, translated).status == "runtime_error"


def test_case_insensitive_equality_is_not_emulated(db: str, executor: Executor) -> None:
    translated = to_sqlite("SELECT id FROM sale WHERE `paid by` = 'bob'", "mysql")
    assert translated is not None
    assert executor.execute(db, translated).rows == [(4,)]


def test_sqlite_is_unchanged_and_an_unknown_dialect_is_refused() -> None:
    odd = "select  'a' -- as it stands; even this"
    assert to_sqlite(odd, "sqlite") == odd
    assert from_sqlite(odd, "sqlite") == odd
    for translate in (to_sqlite, from_sqlite):
        with pytest.raises(InputError, match="oracle"):
            translate("SELECT 1", "oracle")


def test_long_queries_are_translated_in_time() -> None:
    start_time = time.process_time()
    translated = to_sqlite("SELECT a FROM t WHERE " + " AND ".join(["YEAR(a) = 1"] * 1000), "mysql")
    assert translated is not None
    assert translated.count("STRFTIME") == 1000
    assert time.process_time() - start_time < 20


@pytest.mark.parametrize(
    ("sqlite", "names", "mysql"),
    [
        ("SELECT \"paid by\" || '!' FROM sale", (), "SELECT CONCAT(`paid by`, '!') FROM sale"),
        ('SELECT id FROM sale WHERE "Item" = "chair"', ("id", "item"), "SELECT id FROM sale WHERE `Item` = 'chair'"),
        ('SELECT count(*) AS "n" FROM sale ORDER BY "n"', ("id",), "SELECT COUNT(*) AS `n` FROM sale ORDER BY `n`"),
        (
            "SELECT CAST(strftime('%Y', sold) AS INTEGER) FROM sale",
            (),
            "SELECT CAST(DATE_FORMAT(sold, '%Y') AS SIGNED) FROM sale",
        ),
        ("SELECT iif(a, 1, 2) FROM t LIMIT 3 OFFSET 2", (), "SELECT IF(a, 1, 2) FROM t LIMIT 3 OFFSET 2"),
    ],
)
def test_golds_are_translated_to_mysql(sqlite: str, names: tuple[str, ...], mysql: str) -> None:
    assert from_sqlite(sqlite, "mysql", names) == mysql


def test_unparsed_gold_has_no_translation() -> None:
    assert from_sqlite("SELECT FROM WHERE", "mysql") is None


@given(
    st.lists(
        st.sampled_from(
            "SELECT FROM WHERE ( ) , a t 'x' \"y\" ` * - / = AND XOR REGEXP UNION LIMIT 1 CASE WHEN END INTERVAL YEAR( "
            "DATE_ADD( DATE_FORMAT( TRUNCATE( COUNT( DISTINCT GROUP_CONCAT( FIELD( ; -- /* \\ @ ? { [ := é \x00".split(
                " "
            )
        ),
        max_size=20,
    )
)
@settings(max_examples=100, deadline=None)
def test_noise_never_raises_an_error(tokens: list[str]) -> None:
    sql = " ".join(["SELECT", *tokens])
    assert isinstance(to_sqlite(sql, "mysql"), str | None)
    assert isinstance(from_sqlite(sql, "mysql", ("a",)), str | None)
    assert normal_form(sql)


@pytest.mark.parametrize(
    ("item", "other", "equal"),
    [
        ("select  a from T -- why", "SELECT A\nFROM t;", True),
        ("SELECT a FROM t WHERE b = 'X'", "SELECT a FROM t WHERE b = 'x'", False),
        ('SELECT a FROM t WHERE b = "X"', 'SELECT a FROM t WHERE b = "x"', False),
        ("SELECT COUNT(*) FROM t", "select count( * ) from t", True),
        ("SELECT a FROM t", "SELECT a, b FROM t", False),
        ("not sql at all;  ", " not sql at all", True),
        ("PRAGMA table_info(t)", "PRAGMA table_info(u)", False),
        ("DESCRIBE t", "DESCRIBE u", False),
        ("SELECT 1_000 + 1_0.2_5", "SELECT 1000 + 10.25", True),
        ("SELECT 1_000", "SELECT 1 AS _000", False),
        ("SELECT a AS b_1, '1_000' FROM t_1", "SELECT a AS b1, '1000' FROM t1", False),
        ("SELECT 0x1F, 0XfF_fF", "SELECT 31, 65535", True),
        ("SELECT 0x1F", "SELECT x'1F'", False),
        ("SELECT x'aB'", "SELECT X'Ab'", True),
        ("SELECT 1E3, 2.5E-1_0", "SELECT 1e3, 2.5e-10", True),
        ("SELECT 1e3", "SELECT 1000", False),
        ("SELECT '1E3'", "SELECT '1e3'", False),
        ("SELECT 9223372036854775808", "SELECT 9223372036854775807", False),
        ("SELECT a FROM t INDEXED BY i WHERE a = 1", "SELECT a FROM t WHERE a = 1", True),
        ("SELECT a FROM t AS u NOT INDEXED", "SELECT a FROM t AS u", True),
        ("SELECT indexed FROM t", "SELECT a FROM t", False),
    ],
)
def test_normal_form_finds_copies(item: str, other: str, equal: bool) -> None:
    assert (normal_form(item) == normal_form(other)) is equal


@pytest.mark.parametrize(
    "number",
    ["1_000", "0x1F", "0xFF_FF", "0xFFFFFFFFFFFFFFFF", "1e3", "1E+3", "2.5e-1", ".5", "5.", "1_0.5_0", "1e1_0"],
)
def test_normal_form_keeps_the_value_of_a_number(number: str, tmp_path: Path) -> None:
    with Executor(threads=1) as executor:
        path = tmp_path / "d.sqlite"
        sqlite3.connect(path).close()
        outcomes = executor.execute_many([(path, f"SELECT {number}"), (path, normal_form(f"SELECT {number}"))])
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    assert outcomes[0].rows == outcomes[1].rows
    assert outcomes[0].rows[0][0].__class__ is outcomes[1].rows[0][0].__class__


@pytest.mark.parametrize("engine", ["postgresql", "mysql", "duckdb"])
def test_numbers_and_hints_of_sqlite_are_translated_for_another_engine(engine: str) -> None:
    assert from_sqlite("SELECT 1_000 FROM t INDEXED BY i WHERE a = 0x1F", engine) == "SELECT 1000 FROM t WHERE a = 31"


@pytest.mark.data
def test_real_golds_translated_to_mysql_and_back_keep_their_rows(real_data: Path, executor: Executor) -> None:
    examples = load_split(real_data, "spider_dev", 0).examples
    columns: dict[str, set[str]] = {}
    for path in {example.db_path for example in examples}:
        with closing(sqlite3.connect(path)) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            result = (connection.execute(f'PRAGMA table_info("{table}")') for table in tables)
            columns[path] = {row[1].lower() for rows in result for row in rows}
    there = [from_sqlite(e.gold_sql, "mysql", columns[e.db_path]) for e in examples]
    back = [to_sqlite(sql, "mysql") if sql else None for sql in there]
    assert None not in back
    scores = executor.score_many(
        [e.db_path for e in examples], [sql or "" for sql in back], [e.gold_sql for e in examples], rules=("bird",)
    )
    others = {e.gold_sql for e, score in zip(examples, scores["bird"], strict=True) if score != 1.0}
    # The column is text: MySQL compares it with a number as numbers, SQLite as texts.
    assert others == {"SELECT count(*) FROM CARS_DATA WHERE horsepower  >  150;"}
