"""MySQL's expressions on MariaDB, and their translations on SQLite: equal values."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import jaxrl_sql
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.dialect import find_untranslated_part, to_sqlite
from jaxrl_sql.text2sql.env.executor import Outcome, make_executor
from sqlexec_rs.servers import Server

ROWS = """
INSERT INTO v VALUES
  (1, 7,    '007',      'a.b.c',   '2024-01-31', '2024-01-31 23:59:59', 1.5,   10.25,  '31/01/2024'),
  (2, -3,   'x_y',      'a,b,c',   '2023-01-01', '2023-01-01 00:00:00', -2.25, -0.5,   '01/01/2023'),
  (3, 0,    '7abc',     'a%b',     '2020-02-29', '2020-02-29 12:30:05', 0.0,   0.0,    '29/02/2020'),
  (4, NULL, NULL,       NULL,      NULL,         NULL,                  NULL,  NULL,   NULL),
  (5, 12,   'desk-fan', '',        '2021-12-31', '2021-12-31 01:02:03', 99.99, 1234.5, '31/12/2021'),
  (6, 1,    '10',       'l\\\\r',  '2022-01-02', '2022-01-02 13:00:00', 4.35,  7.0,    '02/01/2022'),
  (7, NULL, 'zz',       NULL,      '2024-12-31', NULL,                  NULL,  99.95,  '31/12/2024');
"""
COLUMNS = {
    "mysql": "id INT PRIMARY KEY, n INT, s VARCHAR(20), p VARCHAR(20), d DATE, t DATETIME, x DOUBLE, y DECIMAL(8,2),"
    " u VARCHAR(20)",
    "sqlite": "id INTEGER PRIMARY KEY, n INTEGER, s TEXT, p TEXT, d TEXT, t TEXT, x REAL, y REAL, u TEXT",
}

# An expression per line, over the table `v`.
EXPRESSIONS = r"""
s = 7
s = '7'
s > 3
7 = s
s <> 0
s <=> 7
s IN (7, 10)
s NOT IN (7, 10)
s BETWEEN 6 AND 11
s BETWEEN (SELECT MIN(n) FROM v) AND 8
n < 10000000
n = '7'
n IN ('7', '12')
x > '1'
s > (SELECT AVG(n) FROM v)
n IN (SELECT s FROM v WHERE id IN (1, 6))
(n, id) IN ((7, 1), (12, 5), (1, 2))
(n, id) NOT IN ((7, 1), (12, 5), (1, 2))
(s, id) IN ((7, 1), (0, 2))
(n, s) IN (('7', 7))
(n, s) = (7, '007')
(n, s) <> (7, 7)
(n, id) <=> (NULL, 4)
(n, YEAR(d)) IN (SELECT n, MAX(id + 2019) FROM v GROUP BY n)
(s, id) IN (SELECT 7, 1)
(n, YEAR(d)) IN (SELECT w.n, YEAR(w.d) FROM v AS w WHERE w.id < 4)
(n > 3, id) IN ((1, 1), (0, 3))
s IN ('1', 7)
n IN ('7', 12, NULL)
YEAR(d) NOT IN ('2024', 2021)
CASE s WHEN 7 THEN 'seven' WHEN '10' THEN 'ten' WHEN 'zz' THEN 'z' END
CASE n WHEN 7 THEN 'seven' WHEN '12' THEN 'twelve' ELSE s END
COALESCE(n)
n > 10101010
s = '1234-5-67'
NULLIF(s, 7)
NULLIF(n, 0)
CASE s WHEN 7 THEN 'seven' WHEN 10 THEN 'ten' ELSE 'other' END
CASE WHEN n > 0 THEN 'more' ELSE 'less' END
n + 1
n - 10
n * 2.5
s + 1
-s
n / 2
n / 0
5 / 2
n DIV 2
n DIV 0
n MOD 2
x % 2
MOD(y, 3)
n % 0
n & 5
n XOR 1
n AND 1
n OR NULL
n && 0
n || 0
NOT n
!n
ABS(n)
SIGN(n)
ROUND(x)
ROUND(y, 1)
ROUND(1.005, 2)
ROUND(-2.675, 2)
ROUND(y * 0.1, 2)
FORMAT(2.675, 2)
ROUND(1250, -2)
ROUND(y, -1)
TRUNCATE(x, 1)
TRUNCATE(y, 0)
TRUNCATE(1234, -2)
FLOOR(x)
CEIL(x)
CEILING(y)
FLOOR(s)
POW(n, 2)
POWER(2, n)
SQRT(n)
EXP(n)
LN(n)
LOG(n)
LOG(2, n)
LOG10(n)
LOG2(n)
PI()
SIN(n)
COS(n)
TAN(n)
ASIN(n / 100)
ACOS(n / 100)
ATAN(n)
ATAN2(n, 2)
RADIANS(n)
DEGREES(n)
GREATEST(n, 5)
LEAST(n, x)
GREATEST('b', s)
CAST(x AS DECIMAL(10,1))
CAST(y AS DECIMAL)
CAST(s AS DECIMAL(5,2))
CAST(y AS DECIMAL(4,1))
CAST(2.6 AS DECIMAL)
CAST(x AS SIGNED)
CAST(s AS SIGNED)
CAST(ABS(x) AS UNSIGNED)
CAST(n AS CHAR)
CAST(s AS CHAR(2))
CAST(s AS DOUBLE)
CAST(t AS DATE)
CAST(d AS DATETIME)
CAST(t AS TIME)
CONVERT(s, SIGNED)
CONVERT(y, DECIMAL(6,1))
FORMAT(y, 2)
FORMAT(n, 0)
IF(n > 0, 'x', s)
IF(s, 1, 0)
IFNULL(n, -1)
COALESCE(s, p, '-')
ISNULL(s)
s IS NULL
n IS TRUE
CONCAT(s, '-', p)
CONCAT(n, s)
CONCAT(x, '%')
CONCAT(ROUND(x), '%')
CAST(x * 2 AS CHAR)
CONCAT(37.329732000000007e0, ',', 0.1e0 + 0.2e0)
CONCAT(20000000000000.25)
CONCAT(20000000000000.25e0 + x)
CONCAT(1e15 + 0, ' ', 1e14 + 0, ' ', 2e15 + 0.5e0, ' ', 1e100 + 0)
CONCAT(1234567890123456e0 + 0, ' ', 123456789012345680e0 + 0)
CONCAT(1e-5 + 0, ' ', 1.5e-7 + 0, ' ', -1e-10 + 0, ' ', 0.0001e0 + 0)
CONCAT(1.50, ' ', 007, ' ', .5)
CONCAT(x / 3, '')
CONCAT((SELECT AVG(x) FROM v), '')
CAST(x / 7 AS CHAR)
CAST(x * 1e15 AS CHAR)
CONCAT_WS(' ', x / 3, 1e16 + n)
ROUND(20000000000000.25e0, 2) - 20000000000000
ROUND(20000000000000 + n, 2) - 20000000000000
ROUND(4000000000000 * x, 2) - 4000000000000 * x
ROUND((SELECT AVG(x) FROM v), 1)
CAST(20000000000000.25e0 AS DECIMAL(20,2)) - 20000000000000
CAST(20000000000000 + n AS DECIMAL(20,1)) - 20000000000000
CAST(2000000000000000 + n AS DECIMAL(20,0)) - 2000000000000000
FORMAT(20000000000000.25e0, 2)
FORMAT(2000000000000000 + n, 0)
FORMAT(200000000000000 + n, 2)
CONCAT_WS('/', s, NULL, p)
CONCAT_WS(NULL, s, p)
CONCAT_WS('-', n, x, s)
LENGTH(s)
LENGTH('é')
CHAR_LENGTH('é')
CHARACTER_LENGTH(s)
OCTET_LENGTH(p)
UPPER(s)
LOWER(UPPER(s))
UCASE(s)
LCASE(s)
LEFT(s, 2)
LEFT(s, -1)
LEFT(s, n)
RIGHT(s, 2)
RIGHT(s, 0)
RIGHT(s, n)
SUBSTRING(s, 2)
SUBSTRING(s, 0)
SUBSTRING(s, -2)
SUBSTRING(s, -5, 2)
SUBSTRING(s, 2, 2)
SUBSTRING(s, n, 1)
SUBSTRING(s, 1, n)
SUBSTR(s FROM 2 FOR 1)
MID(s, 2, 3)
TRIM('  a ')
TRIM(LEADING '0' FROM s)
TRIM(BOTH 'x' FROM s)
TRIM(TRAILING 'c' FROM s)
LTRIM(' a ')
RTRIM(' a ')
REPLACE(s, '0', 'zero')
REPLACE(s, '', 'a')
INSTR(s, '7')
LOCATE('b', p)
LOCATE('b', p, 3)
POSITION('b' IN p)
LPAD(n, 3, '0')
LPAD(s, 5, 'ab')
LPAD(s, 2, '*')
LPAD(s, -1, '*')
RPAD(s, 6, 'ab')
RPAD(s, n, '.')
REPEAT(s, 2)
REPEAT(s, n)
REVERSE(s)
REVERSE(n)
SPACE(n)
ASCII(s)
ASCII('é')
ASCII('')
CHAR(65, 66)
HEX(n)
HEX(s)
HEX(255)
HEX(2.6)
ELT(n, 'a', 'b')
FIELD(s, '10', '007', 'x_y')
FIND_IN_SET('b', p)
FIND_IN_SET(p, p)
FIND_IN_SET('', p)
STRCMP(s, '10')
SUBSTRING_INDEX(p, '.', 1)
SUBSTRING_INDEX(p, '.', 2)
SUBSTRING_INDEX(p, '.', -1)
SUBSTRING_INDEX(p, ',', -2)
SUBSTRING_INDEX(p, '.', 9)
SUBSTRING_INDEX(p, '.', -9)
SUBSTRING_INDEX('a--b--c', '--', -1)
SUBSTRING_INDEX('a--b--c', '--', 2)
s LIKE '%_%'
s LIKE '%\_%'
s LIKE 'X%'
s NOT LIKE '%7%'
p LIKE '%|%%' ESCAPE '|'
p LIKE CONCAT('a', '\%', '%')
p LIKE '%\\\\%'
s REGEXP '^[0-9]'
s REGEXP '^[0-9]+$'
s REGEXP '^[^0-9]*$'
s REGEXP 'X'
s NOT REGEXP '_'
s RLIKE '^(00|x)'
s REGEXP 'fan$|^7'
s REGEXP '[[:alpha:]]'
s REGEXP '^.{3}$'
s REGEXP '^d.*n$'
s REGEXP 'b?c'
s REGEXP '[0-9]{2}'
p REGEXP 'a\\.b'
p REGEXP '^a[.,]'
s REGEXP '[a-f]+-'
CAST(x AS CHAR) REGEXP '^[0-9]+(\\.[0-9]+)?$'
CAST(x AS CHAR) REGEXP '^-?[0-9]+(\\.[0-9]+)?$'
CAST(x AS CHAR) REGEXP '^[-+]?\\d+[.]\\d+$'
s REGEXP '^[a-z]+(-[a-z]+)?$'
u REGEXP '^[0-9]+/[0-9/]+$'
s REGEXP '^[a-z]'
"a""b"
'it\'s'
'a' 'b'
'C:\dir'
'tab\there'
N'text'
TRUE + 1
YEAR(d)
QUARTER(d)
MONTH(t)
DAY(d)
DAYOFMONTH(t)
HOUR(t)
HOUR(d)
HOUR('10:11:12')
MINUTE(t)
SECOND(t)
DAYNAME(d)
MONTHNAME(d)
DAYOFWEEK(d)
WEEKDAY(d)
DAYOFYEAR(t)
LAST_DAY(d)
WEEK(d)
WEEK(d, 0)
WEEK(d, 1)
WEEK(d, 2)
WEEK(d, 3)
WEEK(d, 5)
WEEKOFYEAR(d)
YEARWEEK(d)
YEARWEEK(d, 1)
DATE(t)
TIME(t)
TIMESTAMP(d)
DATE '2024-01-31'
EXTRACT(YEAR FROM d)
EXTRACT(YEAR_MONTH FROM d)
EXTRACT(DAY_HOUR FROM t)
EXTRACT(HOUR_MINUTE FROM t)
EXTRACT(MINUTE FROM t)
EXTRACT(WEEK FROM d)
TO_DAYS(d)
FROM_DAYS(TO_DAYS(d) + 1)
UNIX_TIMESTAMP(t)
FROM_UNIXTIME(86400)
TIME_TO_SEC('01:00:05')
SEC_TO_TIME(3661)
SEC_TO_TIME(n)
DATE_FORMAT(t, '%Y-%m-%d %H:%i:%s')
DATE_FORMAT(t, '%W the %e of %M, %y (%a, %b, %c, %D)')
DATE_FORMAT(t, '%h %I %l %k %p %r %T')
DATE_FORMAT(d, '%x-%v %u %U %j %w %%')
DATE_FORMAT('2024-1-5', '%d.%m.%Y')
STR_TO_DATE('31/01/2024', '%d/%m/%Y')
STR_TO_DATE('Jan 5, 2024', '%b %e, %Y')
STR_TO_DATE('2024-01-31 10:11:12', '%Y-%m-%d %H:%i:%s')
STR_TO_DATE(u, '%d/%m/%Y')
STR_TO_DATE(t, '%Y-%m-%d %H:%i:%s')
DATE_ADD(d, INTERVAL 1 DAY)
DATE_ADD(d, INTERVAL 1 MONTH)
DATE_ADD(d, INTERVAL n DAY)
DATE_ADD(d, INTERVAL -1 YEAR)
DATE_ADD(t, INTERVAL 1 QUARTER)
DATE_SUB(d, INTERVAL 2 WEEK)
DATE_SUB(t, INTERVAL 90 MINUTE)
d + INTERVAL 1 HOUR
d - INTERVAL 1 MONTH
INTERVAL 1 DAY + d
ADDDATE(d, 3)
SUBDATE(d, INTERVAL 1 DAY)
TIMESTAMPADD(MONTH, 1, d)
DATEDIFF(d, '2022-06-01')
DATEDIFF(t, d)
TIMESTAMPDIFF(YEAR, d, '2024-06-01')
TIMESTAMPDIFF(MONTH, d, '2024-06-01')
TIMESTAMPDIFF(DAY, t, '2024-06-01')
TIMESTAMPDIFF(SECOND, d, t)
TIMESTAMPDIFF(HOUR, t, '2024-06-01')
d = '2024-01-31'
d BETWEEN '2021-01-01' AND '2023-12-31'
DATE(t) = d
YEAR(d) = '2024'
NOW() > '2024-01-01'
SYSDATE() > d
CURDATE() > d
CURRENT_DATE > d
CURRENT_TIMESTAMP > t
UTC_TIMESTAMP() > t
LOCALTIME() > t
ROW_NUMBER() OVER (ORDER BY id)
RANK() OVER (ORDER BY n)
DENSE_RANK() OVER (ORDER BY n DESC)
PERCENT_RANK() OVER (ORDER BY id)
CUME_DIST() OVER (ORDER BY id)
NTILE(2) OVER (ORDER BY id)
LAG(n) OVER (ORDER BY id)
LEAD(n, 2) OVER (ORDER BY id)
FIRST_VALUE(s) OVER (ORDER BY id)
LAST_VALUE(s) OVER (ORDER BY id)
NTH_VALUE(s, 2) OVER (ORDER BY id)
SUM(n) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
"""
QUERIES = r"""
SELECT COUNT(*), COUNT(n), COUNT(DISTINCT n, s), SUM(n), SUM(s), AVG(n), MIN(s), MAX(d) FROM v
SELECT STD(n), STDDEV(n), STDDEV_POP(n), STDDEV_SAMP(n), VARIANCE(n), VAR_POP(n), VAR_SAMP(n) FROM v
SELECT CAST(AVG(n)/3 AS DECIMAL(10,2)) FROM v
SELECT GROUP_CONCAT(s ORDER BY id DESC SEPARATOR '|'), GROUP_CONCAT(DISTINCT n ORDER BY n) FROM v
SELECT GROUP_CONCAT(DISTINCT p ORDER BY p SEPARATOR ' + ') FROM v WHERE s IS NOT NULL
SELECT GROUP_CONCAT(id, ':', s ORDER BY id) FROM v
SELECT REVERSE(MAX(s)), CONCAT(MAX(s), '!') FROM v
SELECT SUBSTRING_INDEX(GROUP_CONCAT(s ORDER BY id), ',', 2), SUBSTRING_INDEX(MAX(p), '.', -2) FROM v
SELECT n, SUBSTRING_INDEX(GROUP_CONCAT(id ORDER BY id DESC SEPARATOR '|'), '|', 2) FROM v GROUP BY n ORDER BY n
SELECT REVERSE(GROUP_CONCAT(s ORDER BY id)), SUBSTRING_INDEX(REVERSE(MIN(p)), '.', 2) FROM v GROUP BY n ORDER BY n
SELECT id AS k FROM v HAVING k > 3 ORDER BY k
SELECT n + 1 AS m, s FROM v WHERE id < 6 HAVING m > 1 AND s <> 'x' ORDER BY m
SELECT SUM(n) AS total FROM v HAVING total > 3
SELECT v.id, COUNT(w.id) AS n FROM v LEFT JOIN v w ON w.n = v.id GROUP BY v.id HAVING n = 0 ORDER BY v.id
SELECT n > 0 AS g, SUM(x) AS x FROM v GROUP BY g HAVING x > 50 ORDER BY g
SELECT id % 2 AS g, SUM(n) AS n FROM v GROUP BY g HAVING MAX(n) > 7 AND n > 3 ORDER BY g
SELECT id % 2 AS g, MAX(s) AS s FROM v GROUP BY g HAVING s = 'zz' OR s LIKE '%_y'
SELECT id % 3 AS n, COUNT(*) AS c FROM v GROUP BY n HAVING n > 0 AND c > 1 ORDER BY 1, 2
SELECT id % 2 AS g, SUM(n) AS n FROM v GROUP BY g HAVING n > (SELECT MIN(n) FROM v) ORDER BY g
SELECT id % 2 AS g, COUNT(*) AS n FROM v GROUP BY id % 2 HAVING (n + 1) BETWEEN 1 AND 4 ORDER BY g
SELECT COUNT(*) AS n FROM v HAVING n > 3
SELECT n > 0 AS sign, COUNT(*) AS c FROM v GROUP BY sign HAVING c > 1 ORDER BY c, sign
SELECT YEAR(d) AS y1, COUNT(*) FROM v GROUP BY YEAR(d) ORDER BY y1
SELECT n FROM v ORDER BY n
SELECT n FROM v ORDER BY n DESC LIMIT 1, 3
SELECT id FROM v ORDER BY id LIMIT 2 OFFSET 1
SELECT DISTINCT n > 0 FROM v ORDER BY 1
SELECT 1 + 1 FROM DUAL
SELECT id, CAST(x AS DECIMAL(10,1)), LEFT(s, n) FROM v ORDER BY id
SELECT id, SUM(n) OVER () AS total, CAST(MAX(x) OVER () AS DECIMAL) FROM v ORDER BY id
SELECT (SELECT COUNT(*) FROM v) + COUNT(*), (SELECT s FROM v WHERE id = 1) FROM v
SELECT RANK() OVER w, SUM(n) OVER w FROM v WINDOW w AS (ORDER BY id)
(SELECT id FROM v WHERE id < 3) UNION (SELECT id FROM v ORDER BY id DESC LIMIT 1) ORDER BY id
SELECT n FROM v UNION ALL SELECT id FROM v ORDER BY 1
SELECT id FROM v INTERSECT SELECT n FROM v ORDER BY 1
SELECT id FROM v EXCEPT SELECT n FROM v ORDER BY 1
SELECT a.id, b.id FROM v a LEFT JOIN v b ON a.n = b.id ORDER BY a.id
SELECT a.id, b.s FROM v a JOIN v b USING (id) WHERE b.s = 7 ORDER BY a.id
WITH c(k, l) AS (SELECT id, s FROM v) SELECT l FROM c WHERE k = 1
WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 4) SELECT i FROM r
SELECT id FROM v WHERE EXISTS (SELECT 1 FROM v w WHERE w.n = v.id) ORDER BY id
SELECT (SELECT MAX(n) FROM v) - n FROM v ORDER BY id
SELECT STRAIGHT_JOIN a.id FROM v a JOIN v b ON a.id = b.n WHERE b.s = '007' # a comment
"""


def lines(text: str) -> list[str]:
    """Return the lines of a table."""
    return text.strip("\n").split("\n")


def alike(left: object, right: object) -> bool:
    """Return whether two values are equal, for numbers up to MySQL's digits of an integer quotient.

    CHAR gives bytes on a server, and a text here.
    """
    left = left.decode() if isinstance(left, bytes) else left
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-4)
    return left == right


def test_documentation_lists_the_compared_functions() -> None:
    page = (Path(jaxrl_sql.__file__).parents[1] / "docs/reference/engines.md").read_text(encoding="utf-8")
    section = page.partition("## MySQL translated for SQLite")[2].partition("| windows |")
    table = section[0] + section[1] + section[2].split("\n")[0]
    listed = [name for cell in re.findall(r"\| `([A-Z0-9_ ]+)` \|", table) for name in cell.split()]
    called = set(re.findall(r"\b([A-Z][A-Z0-9_]+)(?=\()", EXPRESSIONS + QUERIES))
    assert len(listed) == len(set(listed)) > 100
    assert called - {"OVER", "DECIMAL", "USING", "EXISTS"} == set(listed)


def test_translated_values_equal_mariadbs(server_database: Callable[[str, str], Server], tmp_path: Path) -> None:
    path = tmp_path / "values.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        unescaped = ROWS.replace("\\\\", "\\")
        connection.executescript(f"CREATE TABLE v({COLUMNS['sqlite']}); {unescaped}")
    server = server_database("mariadb", f"CREATE TABLE v({COLUMNS['mysql']}); {ROWS}")
    queries = [f"SELECT {line} FROM v ORDER BY id" for line in lines(EXPRESSIONS)] + lines(QUERIES)
    with make_executor(ExecutorConfig(threads=1)) as executor:
        theirs = executor.execute_many([(server.reader, sql) for sql in queries])
        for database in ("", str(path)):
            translated = {sql: to_sqlite(sql, "mysql", database) for sql in queries}
            assert {
                sql: find_untranslated_part(sql, "mysql") for sql, there in translated.items() if there is None
            } == {}
            ours = executor.execute_many([(path, sql) for sql in translated.values()])
            assert differences(translated, theirs, ours) == {}


def differences(
    translated: Mapping[str, str | None], theirs: Sequence[Outcome], ours: Sequence[Outcome]
) -> dict[str, tuple[object, object, str | None]]:
    """Return the queries that failed or whose rows differ, with both engines' results."""
    others: dict[str, tuple[object, object, str | None]] = {}
    for sql, their, our in zip(translated, theirs, ours, strict=True):
        is_same = len(their.rows) == len(our.rows) and all(
            all(map(alike, row, other)) for row, other in zip(their.rows, our.rows, strict=True)
        )
        if (their.status, our.status) != ("ok", "ok") or not is_same:
            others[sql] = (their.error or their.rows, our.error or our.rows, translated[sql])
    return others
