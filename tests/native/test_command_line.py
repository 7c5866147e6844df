"""`python -m sqlexec_rs`: its output, streams and exit codes."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor, Limits, bench, cli, join_url, running, split_url
from sqlexec_rs.progress import watch

MARK = "\t----- bird -----\t"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("databases")
    for db_id in ("shop", "zoo"):
        for variant in ("", "_2"):
            path = folder / db_id / f"{db_id}{variant}.sqlite"
            path.parent.mkdir(exist_ok=True)
            connection = sqlite3.connect(path)
            connection.execute("CREATE TABLE item(id INTEGER, name TEXT, photo BLOB, price REAL)")
            rows = [(1, "nail", b"\x00\xff", 0.5), (2, 'a "saw"', None, float("inf")), (3, "tab\there", b"", None)]
            connection.executemany("INSERT INTO item VALUES (?, ?, ?, ?)", rows[: 3 if variant else 2])
            connection.commit()
            connection.close()
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command in this process."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse's exit on invalid arguments
        code = int(str(stop.code))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_prints_each_format(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    db, sql = root / "shop" / "shop.sqlite", "SELECT id, name, photo, price, id FROM item ORDER BY id"
    code, out, err = run(capsys, "run", db, sql)
    assert (code, err) == (0, "")
    assert out.splitlines()[2:] == [
        " 1 | nail    | x'00ff' |   0.5 |  1",
        ' 2 | a "saw" | NULL    |   inf |  2',
        "(2 rows)",
    ]
    assert run(capsys, "run", db, sql, "--format", "csv")[1] == (
        'id,name,photo,price,id\n1,nail,x\'00ff\',0.5,1\n2,"a ""saw""",,inf,2\n'
    )
    assert json.loads(run(capsys, "run", db, sql, "--format", "json")[1]) == {
        "columns": ["id", "name", "photo", "price", "id"],
        "rows": [[1, "nail", "x'00ff'", 0.5, 1], [2, 'a "saw"', None, "inf", 2]],
    }
    lines = [json.loads(line) for line in run(capsys, "run", db, sql, "--format", "jsonl")[1].splitlines()]
    assert lines[0] == {"id": 1, "name": "nail", "photo": "x'00ff'", "price": 0.5, "id_2": 1}


def test_run_prints_a_plan(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    db = root / "shop" / "shop.sqlite"
    endless = "WITH r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r"
    code, out, err = run(capsys, "run", db, endless, "--explain")
    assert (code, "SCAN r" in out, err) == (0, True, "")
    code, out, err = run(capsys, "run", db, "SELECT 1; SELECT 2", "--explain")
    assert (code, out, err) == (1, "", "forbidden: the text holds more than one SQL statement\n")


def test_run_prints_the_error_and_its_position(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    db = root / "shop" / "shop.sqlite"
    code, out, err = run(capsys, "run", db, "SELECT 'é',\n\tprise FROM item")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "schema_error: no such column: prise",
        "  \tprise FROM item",
        "  \t^",
        "hint: Did you mean item.price?",
    ]
    assert run(capsys, "run", db, "DELETE FROM item")[0] == 1
    assert run(capsys, "run", db, "SELECT * FROM item", "--max-rows", "1")[2] == "too_large: more than 1 rows\n"
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
    assert "over the time limit of 20 ms" in run(capsys, "run", db, endless, "--timeout-ms", "20")[2]
    assert run(capsys, "run", root / "missing.sqlite", "SELECT 1")[0] == 1


def test_run_reads_standard_input_and_writes_stored_bytes(root: Path) -> None:
    command = [sys.executable, "-m", "sqlexec_rs", "run", str(root / "shop" / "shop.sqlite"), "-", "--format", "csv"]
    sql = b"SELECT CAST(x'61ff' AS TEXT) AS t"
    done = subprocess.run(command, input=sql, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"t\na\xff\n", b"")
    command[-1] = "jsonl"  # always UTF-8
    done = subprocess.run(command, input=sql, capture_output=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout.decode())) == (0, {"t": "a\ufffd"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required"),
        (["run", "x.sqlite"], "the following arguments are required: SQL"),
        (["run", "x", "y", "--format", "xml"], "invalid choice: 'xml'"),
        (["run", "x", "y", "--max-rows", "0"], "must be a whole number above 0, not '0'"),
        (["score", "--pred", "p", "--gold", "g", "--db-root", "d", "--rules", "birds"], "no rule is named 'birds'"),
    ],
)
def test_wrong_arguments_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err


GOLDS: list[dict[str, Any]] = [
    {"question_id": 4, "db_id": "shop", "SQL": "SELECT count(*) FROM item", "difficulty": "simple"},
    {"question_id": 5, "db_id": "zoo", "SQL": "SELECT name FROM item", "difficulty": "challenging"},
    {"question_id": 6, "db_id": "zoo", "SQL": "SELECT DISTINCT id FROM item", "difficulty": "simple"},
    {"question_id": 7, "db_id": "zoo", "SQL": "SELECT absent FROM item", "difficulty": "moderate"},
]


def test_score_matches_bird_and_spider(capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(GOLDS), encoding="utf-8")
    predicted = ["SELECT 2", "SELECT name FROM item ORDER BY 1", "SELEC", "SELECT 1"]
    bird = {str(i): f"{sql}{MARK}{gold['db_id']}" for i, (sql, gold) in enumerate(zip(predicted, GOLDS, strict=True))}
    (tmp_path / "predict_dev.json").write_text(json.dumps(bird, indent=4), encoding="utf-8")
    files = ["--pred", tmp_path / "predict_dev.json", "--gold", tmp_path / "dev.json", "--db-root", root]
    code, out, err = run(capsys, "score", *files, "--rules", "bird,test_suite", "--out", tmp_path / "out.json")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["database", "n", "bird", "test_suite"],
        ["shop", "1", "100.0", "0.0"],  # the variant has three items
        ["zoo", "3", "33.3", "33.3"],
        [],
        ["difficulty"],
        ["simple", "2", "50.0", "0.0"],
        ["moderate", "1", "0.0", "0.0"],
        ["challenging", "1", "100.0", "100.0"],
        [],
        ["all", "4", "50.0", "25.0"],
        [],
        ["predictions:", "ok", "3,", "syntax_error", "1"],
        ["note:", f"{files[1]}:", *"4 predictions, read as BIRD's JSON object, paired by BIRD's numbers".split()],
        "note: 1 golds do not run, so nothing matches them".split(),
    ]
    assert "scored: 4 of 4 distinct items in" in err
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["all"] == {"n": 4, "bird": 0.5, "test_suite": 0.25}
    assert [(item["id"], item["pred_status"], item["gold_status"], item["bird"]) for item in report["items"]] == [
        ("4", "ok", "ok", 1.0),
        ("5", "ok", "ok", 1.0),
        ("6", "syntax_error", "ok", 0.0),
        ("7", "ok", "schema_error", 0.0),
    ]
    # The same in Spider's format: one per line.
    gold_lines = "".join(f"{gold['SQL']}\t{gold['db_id']}\n" for gold in GOLDS)
    (tmp_path / "gold.sql").write_text(gold_lines, encoding="utf-8")
    (tmp_path / "pred.txt").write_text("\n".join(predicted) + "\n", encoding="utf-8")
    files = ["--pred", tmp_path / "pred.txt", "--gold", tmp_path / "gold.sql", "--db-root", root]
    code, out, _ = run(capsys, "score", *files)
    assert code == 0
    assert "all       4   50.0" in out
    assert "difficulty" not in out


def test_score_skips_missing_predictions_and_strips_distinct(
    capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "gold.sql").write_text("SELECT count(DISTINCT 1) FROM item\tshop\nSELECT 1\tshop\n", encoding="utf-8")
    (tmp_path / "pred.json").write_text('{"0": "SELECT count(1) FROM item"}', encoding="utf-8")
    files = ["--pred", tmp_path / "pred.json", "--gold", tmp_path / "gold.sql", "--db-root", root]
    code, out, err = run(capsys, "score", *files)
    assert (code, out) == (2, "")
    assert "1 of 2 questions have no prediction (1): --allow-missing skips them" in err
    code, out, _ = run(capsys, "score", *files, "--allow-missing")
    assert (code, "all       1   0.0" in out) == (0, True)
    assert "1 questions have no prediction and are skipped (1)" in out
    assert "all       1  100.0" in run(capsys, "score", *files, "--allow-missing", "--strip-distinct")[1]
    (tmp_path / "pred.json").write_text('{"0": "SELECT count(1) FROM item", "1": null}', encoding="utf-8")
    out = run(capsys, "score", *files)[1]
    assert "all       2   0.0" in out
    assert "1 predictions hold no SQL and count as wrong (1)" in out


def test_score_refuses_files_in_one_line(capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path) -> None:
    (tmp_path / "gold.sql").write_text("SELECT 1\tshop\nSELECT 1\tcircus\n", encoding="utf-8")
    (tmp_path / "pred.jsonl").write_text('{"id": 0, "sql": "SELECT 1"}\n{"id": 1, "sql"}\n', encoding="utf-8")
    files = ["--pred", tmp_path / "pred.jsonl", "--gold", tmp_path / "gold.sql", "--db-root", root]
    code, out, err = run(capsys, "score", *files)
    assert (code, out) == (2, "")
    message = "1 of 2 lines are not JSON (line 2): Expecting ':' delimiter: line 1 column 16 (char 15)"
    assert err == f"sqlexec_rs: {tmp_path / 'pred.jsonl'}: {message}\n"
    (tmp_path / "pred.jsonl").write_text("SELECT 1\nSELECT 2\n", encoding="utf-8")
    code, _, err = run(capsys, "score", *files)
    assert (code, err.count("\n")) == (2, 1)
    assert "gold.sql:2: " in err
    assert "circus.sqlite does not exist" in err
    assert run(capsys, "score", "--pred", "no", "--gold", "no", "--db-root", root)[0] == 2


def test_bench_measures_up_to_the_requested_threads(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "bench", "--threads", "2", "--seconds", "0.01")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines] == ["threads", "1", "2"]
    assert all(int(figure.replace(",", "")) > 0 for line in lines[1:] for figure in line[1:])


def test_bench_queries_run(tmp_path: Path) -> None:
    path = bench.make_database(tmp_path / "bench.sqlite")
    with Executor(threads=1) as ex:
        statuses = [ex.execute(path, make(n)).status for make in (bench._tiny, bench._mixed) for n in range(10)]
    assert statuses == ["ok"] * 10 + (["ok"] * 4 + ["schema_error"]) * 2


def test_a_closed_output_pipe_is_no_error(root: Path) -> None:
    sql = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 200000) SELECT x FROM r"
    command = [sys.executable, "-m", "sqlexec_rs", "run", str(root / "shop" / "shop.sqlite"), sql, "--format", "csv"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (0, b"")
    process.stderr.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_progress_is_a_bar_on_a_terminal_only(root: Path, stream: io.StringIO) -> None:
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
    db = root / "shop" / "shop.sqlite"
    with Executor(threads=2, limits=Limits(timeout_ms=500)) as ex:
        watch(ex.submit([(db, endless), (db, "SELECT 1")]), "scored", stream)
    text = stream.getvalue()
    assert "scored: 2 of 2 distinct items in" in text
    assert text.endswith(" s\n")
    assert ("\rscored: " in text) == ("░" in text) == stream.isatty()


EVIL, SHOWN = "\x1b[31mEVIL\x9b2J\u202e", r"\x1b[31mEVIL\x9b2J\u202e"


def test_control_characters_are_escaped_on_terminals_only(
    capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path
) -> None:
    db = root / "shop" / "shop.sqlite"
    code, out, err = run(capsys, "run", db, f"SELECT '{EVIL}' AS \"{EVIL}\"")
    assert (code, err) == (0, "")
    assert out.count(r"\u{1b}[31mEVIL\u{9b}2J\u{202e}") == 2
    assert not set(out) & set(EVIL[:1] + EVIL[-1:])
    code, out, err = run(capsys, "run", db, f"SELECT '{EVIL}', nme FROM item")
    assert (code, out) == (1, "")
    assert SHOWN in err
    assert "\x1b" not in err
    line, caret = next((line, err.splitlines()[i + 1]) for i, line in enumerate(err.splitlines()) if "FROM" in line)
    assert line[caret.index("^") :].startswith("nme")
    assert SHOWN in run(capsys, "run", tmp_path / f"{EVIL}.sqlite", "SELECT 1")[2]
    for form in ("csv", "json", "jsonl"):
        out = run(capsys, "run", db, f"SELECT '{EVIL}' AS a", "--format", form)[1]
        assert (EVIL if form == "csv" else EVIL[1:]) in out


def test_score_escapes_the_names_of_databases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / f"{EVIL}.sqlite").close()
    (tmp_path / "gold.jsonl").write_text(json.dumps({"db_id": EVIL, "query": "SELECT 1", "difficulty": EVIL}))
    (tmp_path / "pred.jsonl").write_text(json.dumps({"id": "0", "sql": "SELECT 2"}))
    wanted = ("--pred", tmp_path / "pred.jsonl", "--gold", tmp_path / "gold.jsonl", "--db-root", tmp_path)
    code, out, err = run(capsys, "score", *wanted)
    assert (code, out.count(SHOWN)) == (0, 2), err
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("oracle://u:s3cret@h", "not the URL of a database server"),
        ("mysql://u:s3/cret@h", "its port must be a number"),
        ("mysql://u:s3cret@h?speed=1", 'unknown option "speed"'),
        ("mysql://u:s3cret@h?roles=0", "roles=0"),
    ],
)
def test_score_refuses_a_bad_url_without_its_password(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, root: str, reason: str
) -> None:
    (tmp_path / "gold.jsonl").write_text(json.dumps({"db_id": "shop", "query": "SELECT 1"}))
    (tmp_path / "pred.jsonl").write_text(json.dumps({"id": "0", "sql": "SELECT 2"}))
    files = ("--pred", tmp_path / "pred.jsonl", "--gold", tmp_path / "gold.jsonl", "--db-root", root)
    code, out, err = run(capsys, "score", *files)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert "s3" not in err


@pytest.mark.parametrize(
    ("url", "database", "expected"),
    [
        ("mariadb://a%3Ab@[::1]:5?sslmode=disable", "a/b", "mysql://a%3Ab@[::1]:5/a%2Fb?sslmode=disable"),
        (
            "postgres://ann:s%3F@%2FRun/x?sslrootcert=/r%26",
            "y",
            "postgresql://ann:s%3F@%2FRun:5432/y?sslrootcert=/r%26",
        ),
    ],
)
def test_replacing_the_database_of_a_url_keeps_the_other_parts(url: str, database: str, expected: str) -> None:
    engine, host, port, user, password, _, options = split_url(url)
    assert join_url(engine, host, port, user, password, database, options) == expected
    assert split_url(expected) == (engine, host, port, user, password, database, options)


def test_json_output_contains_only_valid_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [float("inf"), float("-inf"), float("nan"), 2**60, b"\xff"]
    assert [*map(running._json, cells)] == ["inf", "-inf", "nan", 2**60, "x'ff'"]
