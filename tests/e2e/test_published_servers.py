"""Benchmarks published for servers: their dumps are loaded and their golds judged there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jaxrl_sql.commands.copy import main as copy
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.text2sql.benchmarks import load_benchmark
from sqlexec_rs.servers import Server

# In the form that pg_dump and mysqldump write, with an owner that does not exist here.
DUMPS = {
    "postgresql": """SET client_encoding = 'UTF8';
CREATE TABLE public.customers (customerid bigint NOT NULL, segment text, joined date);
ALTER TABLE public.customers OWNER TO somebody_else;
COPY public.customers (customerid, segment, joined) FROM stdin;
1\tSME\t2012-08-24
2\tLAM\t\\N
3\tSME\t2013-01-02
\\.
ALTER TABLE ONLY public.customers ADD CONSTRAINT customers_pkey PRIMARY KEY (customerid);
""",
    "mysql": """/*!40101 SET NAMES utf8mb4 */;
DROP TABLE IF EXISTS `customers`;
CREATE TABLE `customers` (`customerid` bigint NOT NULL, `segment` text, `joined` date, PRIMARY KEY (`customerid`));
LOCK TABLES `customers` WRITE;
INSERT INTO `customers` VALUES (1,'SME','2012-08-24'),(2,'LAM',NULL),(3,'SME','2013-01-02');
UNLOCK TABLES;
""",
}
GOLDS = {
    "postgresql": "SELECT segment, to_char(joined, 'YYYY') FROM customers WHERE joined IS NOT NULL",
    "mysql": "SELECT `segment`, DATE_FORMAT(`joined`, '%Y') FROM `customers` WHERE `joined` IS NOT NULL",
}
NAMES = {"postgresql": "postgresql", "mysql": "mariadb"}


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def loaded(
    request: pytest.FixtureRequest, start_server: Callable[[str, str], Server], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, str]:
    """Return the dialect, and the owner's and reader's URLs of a database loaded from a dump."""
    dialect = request.param
    server = start_server(NAMES[dialect], "SELECT 1;")
    dump = tmp_path_factory.mktemp("dump") / "BIRD_dev.sql"
    dump.write_text(DUMPS[dialect])
    owner, reader = (urlsplit(url)._replace(path="/bird").geturl() for url in (server.owner, server.reader))
    assert copy(["--from", str(dump), "--to", owner, "--reader", urlsplit(reader).username or ""]) == 0
    return dialect, owner, reader


def mini_dev(folder: Path, dialect: str) -> Path:
    """Write a small BIRD mini-dev in its published format."""
    path = folder / "dev_databases" / "debit_card" / "debit_card.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (CustomerID INTEGER PRIMARY KEY, Segment TEXT, Joined DATE)")
    record = {
        "question_id": 1471,
        "db_id": "debit_card",
        "question": "Which years?",
        "evidence": "",
        "difficulty": "simple",
    }
    for name, sql in (("sqlite", "SELECT 1"), (dialect, GOLDS[dialect])):
        (folder / f"mini_dev_{name}.json").write_text(json.dumps([{**record, "SQL": sql}]))
    return folder


def judge(folder: Path, split: str, sql: str, out: Path, *more: str) -> int:
    predictions = out.with_suffix(".jsonl")
    predictions.write_text(json.dumps({"id": load_benchmark(folder, split).examples[0].uid, "sql": sql}) + "\n")
    files = ["--predictions", str(predictions), "--field", "sql", "--out", str(out)]
    return evaluate(["--data", str(folder), "--split", split, *files, "run.display=none", *more])


@pytest.mark.servers
def test_mini_dev_is_judged_on_its_server(
    loaded: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dialect, _, reader = loaded
    folder, split = mini_dev(tmp_path / "minidev", dialect), f"mini_dev_{dialect}"
    password = urlsplit(reader).password or ""
    key, where = f"executor.databases.{dialect}", reader.replace(f":{password}@", "@")
    rewritten = GOLDS[dialect].replace("WHERE joined IS NOT NULL", "WHERE NOT joined IS NULL")
    assert judge(folder, split, rewritten, tmp_path / "none") == 2
    assert f"1471 runs on {'PostgreSQL' if dialect == 'postgresql' else 'MySQL'}: {key}" in capsys.readouterr().err
    assert judge(folder, split, rewritten, tmp_path / "told", f"{key}={reader}") == 2
    output = capsys.readouterr().err
    assert "holds the password of reader: remove it" in output
    assert password not in output
    monkeypatch.setenv({"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD"}[dialect], password)
    for sql, right in ((rewritten, 1.0), ("SELECT segment FROM customers", 0.0)):
        out = tmp_path / f"right{right:g}"
        assert judge(folder, split, sql, out, f"{key}={where}") == 0
        (record,) = map(json.loads, (out / "records.jsonl").read_text().splitlines())
        assert (record["scores"]["bird"], record["status"], record["gold_status"]) == (right, "ok", "ok")
        assert password not in (out / "config.yaml").read_text()


@pytest.mark.servers
def test_a_failed_dump_leaves_no_tables(
    loaded: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect, owner, _ = loaded
    dump = tmp_path / "broken.sql"
    dump.write_text(DUMPS[dialect] + "INSERT INTO nowhere VALUES (1);\n")

    def refusal(*arguments: str) -> str:
        assert copy(arguments) == 2
        output = capsys.readouterr().err
        assert output.count("\n") == 1
        assert (urlsplit(owner).password or "?") not in output
        return output

    other = urlsplit(owner)._replace(path="/other").geturl()
    assert "nowhere" in refusal("--from", str(dump), "--to", other)
    dump.write_text(DUMPS[dialect])
    assert "not empty" in refusal("--from", str(dump), "--to", owner)
    assert copy(["--from", str(dump), "--to", other]) == 0  # no table of it remains
    assert "no such file" in refusal("--from", str(tmp_path / "no.sql"), "--to", other)
    assert "name it" in refusal("--from", str(dump), "--to", urlsplit(owner)._replace(path="").geturl())
    assert "name it" in refusal("--from", str(dump), "--to", "duckdb:files")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "loading a dump needs" in refusal("--from", str(dump), "--to", other)


def test_defog_questions_for_postgresql_are_a_split(tmp_path: Path) -> None:
    (tmp_path / "databases").mkdir()
    with closing(sqlite3.connect(tmp_path / "databases" / "academic.db")) as connection:
        connection.execute("CREATE TABLE author (aid INTEGER)")
    for engine, sql in (("sqlite", "SELECT 1"), ("postgres", "SELECT 2::int; SELECT 3")):
        text = f"db_name,query_category,question,query\nacademic,group_by,How many?,{sql}\n"
        (tmp_path / f"questions_gen_{engine}.csv").write_text(text)
    (usual,) = load_benchmark(tmp_path).examples
    (other,) = load_benchmark(tmp_path, "questions_gen_postgres").examples
    assert (usual.dialect, usual.engine_url, usual.gold_sql) == ("sqlite", "", "SELECT 1")
    assert (other.dialect, other.gold_sql, other.other_golds) == ("postgresql", "SELECT 2::int", ("SELECT 3",))
    assert other.engine_url
