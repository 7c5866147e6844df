"""The audit reports shared questions, SQL and databases, and uninformative golds, without false positives."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.audit import main
from jaxrl_sql.datagen.audit import QuestionSet, audit_golds, find_shared_databases
from jaxrl_sql.datagen.audit.overlap import mask
from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.env.executor import Executor

SCHEMA = "CREATE TABLE hero(id INTEGER PRIMARY KEY, name TEXT, power TEXT, age INT, city TEXT, score REAL)"


def make_set(folder: Path, questions: list[tuple[str, str, str]], script: str = SCHEMA, db_id: str = "heroes") -> Path:
    """Write a set of (id, question, SQL) with one database of six heroes."""
    path = folder / "databases" / db_id / f"{db_id}.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        if script == SCHEMA:
            rows = [(i, f"n{i}", "fire", 20 + i, "Rome", i / 2) for i in range(1, 7)]
            connection.executemany("INSERT INTO hero VALUES (?, ?, ?, ?, ?, ?)", rows)
            connection.commit()
    lines = [{"id": uid, "db_id": db_id, "question": text, "sql": sql} for uid, text, sql in questions]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def findings(out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the findings by kind and id."""
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for line in (out / "findings.jsonl").read_text().splitlines():
        record = json.loads(line)
        result.setdefault(record["kind"], {})[record["id"]] = record
    return result


def run_audit(tmp_path: Path, *arguments: str | Path) -> dict[str, dict[str, dict[str, Any]]]:
    assert main([*map(str, arguments), "--out", str(tmp_path / "audit")]) == 0
    return findings(tmp_path / "audit")


def test_audit_finds_training_questions_and_sql_in_other_spellings(tmp_path: Path) -> None:
    train = make_set(
        tmp_path / "train",
        [
            ("t1", "How many heroes are there?", "SELECT count(*) FROM hero"),
            (
                "t2",
                "List the names of all heroes that are older than 23 years.",
                "SELECT name FROM hero WHERE age > 23",
            ),
            ("t3", "Which cities?", "SELECT DISTINCT city FROM hero"),
        ],
    )
    target = make_set(
        tmp_path / "dev",
        [
            ("same", "how many HEROES are there", "SELECT COUNT( * )  FROM Hero -- all"),
            ("near", "List the names of all heroes that are older than 25 years.", "SELECT T1.name FROM hero T1"),
            ("masked", "Who?", "SELECT h.name FROM hero AS h WHERE h.age > 99 OR h.age > 3"),
            ("values", "Old ones?", "SELECT name FROM hero WHERE age > 24"),
            ("other", "Give the mean score of heroes in Rome today.", "SELECT avg(score) FROM hero"),
        ],
        "CREATE TABLE hero(id, name, age, other)",
        "others",
    )
    result = run_audit(tmp_path, "--train", train, "--eval", target, "--no-golds")
    assert {kind: set(ids) for kind, ids in result.items()} == {
        "question: same": {"same"},
        "question: nearly the same": {"near"},
        "sql: same": {"same"},
        "sql: same but for values": {"values"},
    }
    assert result["question: same"]["same"]["with"] == [{"set": "train", "id": "t1", "db_id": "heroes"}]
    assert result["question: nearly the same"]["near"]["share"] >= 0.8
    assert result["sql: same but for values"]["values"]["same_db_id"] is False


def test_repeated_questions_of_a_file_have_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_set(tmp_path / "set", [])
    train = folder / "train.csv"
    train.write_text(
        "question,sql\nHow many heroes?,SELECT count(*) FROM hero\nWho?,SELECT name FROM hero\n"
        "how many HEROES,SELECT COUNT( * ) FROM hero\nWho?,SELECT id FROM hero\n"
    )
    database = f"data.database={folder}/databases/heroes/heroes.sqlite"
    result = run_audit(tmp_path, "--train", train, database, "--no-golds")
    repeated = result["question: twice in the set"].values()
    assert [(finding["line"], finding["with"]["line"], finding["same_sql"]) for finding in repeated] == [
        (f"{train}:4", f"{train}:2", True),
        (f"{train}:5", f"{train}:3", False),
    ]
    assert "question: twice in the set" in capsys.readouterr().out


def test_a_file_in_both_lists_is_audited_as_training_divides_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions_csv = make_set(tmp_path / "set", []) / "shop.csv"
    golds = [f"SELECT name FROM hero WHERE id = {i}" for i in range(8)]
    texts = [f"Which name has hero number {i} of the list?" for i in range(8)]
    lines = [f"{text},{gold}" for text, gold in zip(texts, golds, strict=True)]
    questions_csv.write_text("\n".join(["question,sql", *lines, f"Once more?,{golds[0]}"]) + "\n")
    database = f"data.database={questions_csv.parent}/databases/heroes/heroes.sqlite"
    result = run_audit(tmp_path, "--train", questions_csv, "--eval", questions_csv, database, "--no-golds")
    audited = json.loads((tmp_path / "audit/audit.json").read_text())
    assert (audited["train"], audited["eval"]) == (["shop.csv/train"], ["shop.csv/dev"])
    sizes = {name: entry["questions"] for name, entry in audited["sets"].items()}
    assert sizes == {f"shop.csv/{split}": len(load_split(questions_csv, split).examples) for split in ("train", "dev")}
    assert sum(sizes.values()) == 9
    assert "sql: same" not in result, "golds are on one side"
    assert f"shop.csv/dev: using {sizes['shop.csv/dev']} of the 9 questions" in capsys.readouterr().err


TABLES = "CREATE TABLE t(i INTEGER PRIMARY KEY, x, y TEXT); CREATE TABLE u(j INTEGER PRIMARY KEY, i, z)"


@pytest.mark.parametrize(
    ("item", "other", "is_same"),
    [
        ("SELECT a.x FROM t AS a WHERE a.y = 'p'", "select B.X from T B where B.Y = 'q'", True),
        ("SELECT x FROM t LIMIT 1", "SELECT x FROM t LIMIT 3", True),
        ("SELECT x FROM t WHERE y > 1", "SELECT x FROM t WHERE y < 1", False),
        ("SELECT a.x FROM t a JOIN u b ON a.i = b.i", "SELECT b.i FROM t a JOIN u b ON a.i = b.i", False),
        ("not sql at (all", "not sql at (all", True),
        ("SELECT x FROM t WHERE y = 'texas'", 'SELECT talias0.x FROM t AS talias0 WHERE talias0.y = "Ohio"', True),
        ('SELECT x FROM t WHERE y = "p q"', "SELECT t.x FROM t WHERE t.y = 'p'", True),
        ("SELECT x FROM t WHERE y = x", "SELECT x FROM t WHERE y = 'x'", False),
        ('SELECT "x" FROM t', "SELECT [t].x FROM t", True),
        ("SELECT a.z FROM t JOIN u AS a ON a.i = t.i", "SELECT z FROM t JOIN u ON t.i = u.i", True),
        (
            "SELECT x FROM t WHERE i = (SELECT max(i) FROM t)",
            "SELECT a.x FROM t AS a WHERE a.i = (SELECT max(b.i) FROM t AS b)",
            True,
        ),
        (
            "SELECT a.x FROM t a WHERE EXISTS (SELECT 1 FROM u b WHERE b.i = a.i)",
            "SELECT a.x FROM t a WHERE EXISTS (SELECT 1 FROM u b WHERE b.i = b.j)",
            False,
        ),
        (
            "SELECT d.n FROM (SELECT x, count(*) AS n FROM t GROUP BY x) AS d WHERE d.n > 3",
            "SELECT m FROM (SELECT x AS k, count(*) AS m FROM t GROUP BY x) WHERE m > 1",
            True,
        ),
        ("SELECT a.n FROM (SELECT x AS n, y AS m FROM t) a", "SELECT a.n FROM (SELECT x AS m, y AS n FROM t) a", False),
        ("WITH w AS (SELECT x AS a FROM t) SELECT a FROM w", "WITH w AS (SELECT x FROM t) SELECT w.x FROM w", True),
        ("SELECT x AS foo FROM t", "SELECT x FROM t", True),
        ("SELECT x AS foo, y FROM t ORDER BY foo", "SELECT x AS bar, y FROM t ORDER BY bar", True),
        ("SELECT x AS foo, y AS bar FROM t ORDER BY foo", "SELECT x AS foo, y AS bar FROM t ORDER BY bar", False),
        ("SELECT x FROM t ORDER BY y ASC", "SELECT x FROM t ORDER BY y", True),
        ("SELECT x FROM t ORDER BY y DESC", "SELECT x FROM t ORDER BY y", False),
        ("SELECT t.* FROM t", "SELECT * FROM t", True),
        ("SELECT x FROM t WHERE y = 'p' AND i > 3", "SELECT x FROM t WHERE i > 7 AND y = 'a'", True),
        ("SELECT x FROM t WHERE y = 'p' OR i > 3", "SELECT x FROM t WHERE y = 'p' AND i > 3", False),
        ("SELECT x FROM t, u WHERE t.i = u.i AND z = 1", "SELECT x FROM t JOIN u ON u.i = t.i WHERE z = 2", True),
        ("SELECT x FROM t JOIN u ON u.i = t.i AND z = 1", "SELECT x FROM t JOIN u ON u.i = t.i WHERE z = 2", True),
        (
            "SELECT x FROM t LEFT JOIN u ON u.i = t.i AND z = 1",
            "SELECT x FROM t LEFT JOIN u ON u.i = t.i WHERE z = 1",
            False,
        ),
        ("SELECT x FROM t WHERE i IN (1, 2)", "SELECT x FROM t WHERE i IN (3, 4, 5)", True),
        ("SELECT x FROM t WHERE i IN (1, 2)", "SELECT x FROM t WHERE i IN (SELECT i FROM u)", False),
        ("SELECT x FROM t WHERE i > -3", "SELECT x FROM t WHERE i > 3", True),
        ("SELECT x FROM t UNION SELECT y AS foo FROM t", "SELECT x FROM t UNION SELECT y FROM t", True),
    ],
)
def test_masked_sql_differs_in_more_than_values(item: str, other: str, is_same: bool, tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES)
    assert (mask(item, str(path)) == mask(other, str(path))) == is_same


COLUMNS = "id INTEGER PRIMARY KEY, name TEXT, power TEXT, age INT, city TEXT"


@pytest.mark.parametrize(
    ("script", "db_id", "kind"),
    [
        (SCHEMA, "renamed", "database: same file"),
        (
            SCHEMA.replace("hero", "HERO").replace("score", '"SCORE"') + "; CREATE INDEX i ON HERO(age)",
            "x",
            "same schema",
        ),
        (f"CREATE TABLE hero({COLUMNS}, fame REAL); CREATE TABLE extra(a, b)", "x", "nearly the same schema"),
        ("CREATE TABLE villain(a, b, c, d, e, f)", "heroes", "same name, other schema"),
        ("CREATE TABLE villain(a, b, c, d, e, f)", "villains", ""),
        ("CREATE TABLE hero(id, name)", "small", ""),
    ],
)
def test_audit_finds_training_databases(tmp_path: Path, script: str, db_id: str, kind: str) -> None:
    train = make_set(tmp_path / "train", [("t", "q", "SELECT 1")])
    target = make_set(tmp_path / "dev", [("e", "other", "SELECT 2, 3")], script, db_id)
    result = run_audit(tmp_path, "--train", train, "--eval", target, "--no-golds")
    kinds = [name for name in result if name.startswith("database")]
    assert [name.removeprefix("database: ") for name in kinds] == ([kind.removeprefix("database: ")] if kind else [])
    if kinds:
        assert set(result[kinds[0]]) == {db_id}


def test_databases_with_the_same_name_are_distinguished_by_path(tmp_path: Path) -> None:
    """A set in several dialects has such databases: one per dialect."""
    empty = make_set(tmp_path / "empty", [], "CREATE TABLE villain(name)") / "databases/heroes/heroes.sqlite"
    heroes = make_set(tmp_path / "a", [("a", "q", "SELECT name FROM hero")])
    villains = make_set(tmp_path / "b", [("b", "q", "SELECT name FROM villain")], "CREATE TABLE villain(name, age)")
    (first,), (second,) = (load_benchmark(folder).examples for folder in (heroes, villains))
    both = QuestionSet("both", (dataclasses.replace(first, suite=(first.db_path, str(empty))), second))
    assert both.databases == [("heroes", first.db_path), ("heroes", second.db_path)]
    trained = QuestionSet("train", load_benchmark(make_set(tmp_path / "train", [("t", "q", "SELECT 1")])).examples)
    result = [
        (shared_database.kind, shared_database.details["questions"])
        for shared_database in find_shared_databases([trained], both)
    ]
    assert result == [("database: same file", 1), ("database: same name, other schema", 1)]
    with Executor() as executor:
        issues = audit_golds(executor, both)
    assert [item.id for item in issues if item.kind == "suite: gold fails on a variant"] == ["a"]


def test_golds_are_run_and_classified_by_result(tmp_path: Path) -> None:
    target = make_set(
        tmp_path / "dev",
        [
            ("good", "q good", "SELECT name FROM hero WHERE age = 23"),
            ("fails", "q fails", "SELECT nowhere FROM hero"),
            ("empty", "q empty", "SELECT name FROM hero WHERE age = 1"),
            ("zero", "q zero", "SELECT count(*) FROM hero WHERE age = 1"),
            ("one", "q one", "SELECT count(*) FROM hero WHERE age = 23"),
            ("null", "q null", "SELECT max(age) FROM hero WHERE age = 1"),
            ("ones", "q ones", "SELECT 1 FROM hero"),
            (
                "slow",
                "q",
                "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
            ),
        ],
    )
    result = run_audit(tmp_path, "--eval", target, "--timeout-ms", "300", "--threads", "1")
    assert set(result) == {
        "gold: fails", "gold: empty", "gold: times out", "gold: one row of 0 or NULL", "gold: matched by a constant",
    }  # fmt: skip
    assert result["gold: fails"]["fails"]["status"] == "schema_error"
    assert set(result["gold: empty"]) == {"empty"}
    assert set(result["gold: times out"]) == {"slow"}
    assert set(result["gold: one row of 0 or NULL"]) == {"zero", "null"}
    answers = {uid: record["answers"] for uid, record in result["gold: matched by a constant"].items()}
    assert set(answers) == {"empty", "zero", "one", "null", "ones"}
    assert set(answers["zero"]) >= {"0"}
    assert {"bird", "ex_b"} <= set(answers["zero"]["0"])
    assert "test_suite" in answers["empty"]["empty"]
    assert "refined" in answers["null"]["NULL"]
    assert "1" not in answers["null"]
    # Duplicate rows do not change a set of rows; they change a multiset.
    assert "bird" in answers["ones"]["1"]
    assert "refined" not in answers["ones"]["1"]
    output = json.loads((tmp_path / "audit/audit.json").read_text())
    assert output["sets"]["dev"]["constants"]["1"]["bird"] == 2


def test_suite_separates_golds_that_one_database_cannot(tmp_path: Path) -> None:
    target = make_set(
        tmp_path / "dev",
        [
            ("old", "q", "SELECT name FROM hero WHERE age > 20"),
            ("all", "q", "SELECT name FROM hero"),
            ("all again", "q", "SELECT  NAME from hero"),
            ("fixed", "q", "SELECT 7"),
            ("broken", "q", "SELECT name, age FROM hero WHERE abs(age) > 0"),
        ],
    )
    suite = tmp_path / "suite/databases/heroes"
    suite.mkdir(parents=True)
    for number, age in enumerate((1, -9223372036854775808)):
        copy = suite / f"v{number}.sqlite"
        shutil.copy(target / "databases/heroes/heroes.sqlite", copy)
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("INSERT INTO hero(name, age) VALUES ('young', ?)", (age,))
            connection.commit()
    result = run_audit(tmp_path, "--eval", target, "--suite", tmp_path / "suite")
    chance = result["suite: equal to another gold on one database"]
    assert set(chance) == {"old", "all", "all again"}
    assert set(chance["old"]["with"]) == {"all", "all again"}
    assert chance["all"]["with"] == ["old"]
    assert set(result["suite: gold never changes"]) == {"fixed", "old"}
    assert result["suite: gold fails on a variant"]["broken"]["statuses"] == ["runtime_error"]


def test_unusable_audit_inputs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = make_set(tmp_path / "dev", [("e", "q", "SELECT 1")])
    for arguments in ([], ["--eval", str(tmp_path / "none")], ["--eval", str(target), "--suite", str(tmp_path)]):
        assert main([*arguments, "--out", str(tmp_path / "audit")]) == 2
    assert main(["--eval", str(target), "--near-question", "0"]) == 2
    assert main(["--eval", str(target), "--train", f"{target}/../dev"]) == 2
    assert main(["--eval", str(target), f"{target}/../dev"]) == 2
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 6
    assert output[5] == f"error: audit: --eval names {target} twice"
    assert "databases/" in output[2]


@pytest.mark.parametrize("name", ["limit", "threads", "timeout-ms", "slow-ms"])
def test_negative_number_is_reported_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = make_set(tmp_path / "dev", [("e", "q", "SELECT 1")])
    assert main(["--eval", str(target), f"--{name}=-1", "--out", str(tmp_path / "audit")]) == 2
    assert f"audit: {name.replace('-', '_')} must be 0 or more, not -1" in capsys.readouterr().err


def test_skipped_lines_are_findings_and_the_table_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_set(tmp_path / "dev", [("e", "q", "SELECT 1 WHERE 0"), ("mute", "", "SELECT 1")])
    result = run_audit(tmp_path, "--eval", target)
    assert set(result["cannot be read"]) == {"mute"}
    table = capsys.readouterr().out
    assert "gold: empty" in table
    assert "100.0 %" in table


def test_replaced_bytes_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = make_set(tmp_path / "dev", [("e", "q", "SELECT 1")])
    (target / "questions.jsonl").unlink()
    (target / "dev.csv").write_bytes(b"question,sql\nWho\x92s?,SELECT 1\n")
    run_audit(tmp_path, "--eval", target / "dev.csv", "--no-golds")
    assert "dev.csv: dev.csv: 1 byte is not UTF-8, read as Windows-1252" in capsys.readouterr().err
