"""Questions on a user's file: golds that return rows in one order for any valid file, or a one-line reason."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.synth import main
from jaxrl_sql.datagen.synth import read_database
from jaxrl_sql.datagen.synth.english import plural_of, singular_of, split_words
from jaxrl_sql.datagen.synth.part_sampler import NoFit, round_value
from jaxrl_sql.datagen.synth.spec import AnnotatedColumn
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.text2sql.env.dialect import normal_form
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.text2sql.schema.describe import read_descriptions

SHOP = """
CREATE TABLE "Order Details"(orderID INTEGER PRIMARY KEY, "select" TEXT, unitPrice REAL, orderedOn TEXT,
  customer_id INTEGER REFERENCES tblCustomers(id));
CREATE TABLE tblCustomers(id INTEGER PRIMARY KEY, fullName TEXT NOT NULL, home_city TEXT, "zip code" INTEGER, age INT);
CREATE TABLE empty_one(a, b);
CREATE VIEW seen AS SELECT * FROM tblCustomers;
"""


def make_shop(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHOP)
        cities = ("Oslo", "Rome", "Lima")
        people = [(i, f"Person {chr(65 + i % 26)}{i}", cities[i % 3], 1000 + i, 20 + i) for i in range(1, 41)]
        connection.executemany("INSERT INTO tblCustomers VALUES (?, ?, ?, ?, ?)", people)
        # Each third order has no customer: a count per customer must not count them as a group.
        orders = [
            (i, ("red", "blue")[i % 2], i * 1.5, f"2020-01-{1 + i % 28:02}", None if i % 3 == 0 else i % 30 + 1)
            for i in range(1, 101)
        ]
        connection.executemany('INSERT INTO "Order Details" VALUES (?, ?, ?, ?, ?)', orders)
        connection.commit()
    return path


def make(path: Path, out: Path, *more: str) -> list[dict[str, Any]]:
    assert main(["--db", str(path), "--out", str(out), *more]) == 0
    return [json.loads(line) for line in (out / "questions.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("own")
    return folder / "out", make(make_shop(folder / "my shop.sqlite"), folder / "out", "--n", "120")


def test_generated_folder_has_the_requested_number_of_questions(shop: tuple[Path, list[dict[str, Any]]]) -> None:
    out, lines = shop
    loaded = load_folder(out)
    assert len(loaded.examples) == len(lines) == 120
    assert not loaded.skipped
    assert {line["db_id"] for line in lines} == {"my shop"}
    counts = {
        grade: sum(line["difficulty"] == grade for line in lines) for grade in ("easy", "medium", "hard", "extra")
    }
    assert counts["easy"] >= 42
    assert min(counts.values()) >= 3
    assert all(line["difficulty"] == spider_level(line["sql"]) for line in lines)


def test_golds_return_rows_and_no_question_or_gold_is_repeated(shop: tuple[Path, list[dict[str, Any]]]) -> None:
    out, lines = shop
    with closing(sqlite3.connect(out / "databases/my shop/my shop.sqlite")) as connection:
        for line in lines:
            rows = connection.execute(line["sql"]).fetchall()
            assert rows, line
            assert not (len(rows) == 1 and all(value in (None, 0) for value in rows[0])), line
    assert len({line["question"].casefold() for line in lines}) == len(lines)
    assert len({normal_form(line["sql"]) for line in lines}) == len(lines)


def test_names_become_phrases_and_unusual_ones_are_quoted(shop: tuple[Path, list[dict[str, Any]]]) -> None:
    lines = shop[1]
    text = " ".join(line["question"] for line in lines)
    assert "order details" in text
    assert "customers" in text
    assert "unit price" in text
    assert "tbl" not in text
    assert not re.search("fullName|home_city", text)
    assert any('"Order Details"' in line["sql"] for line in lines)
    assert "empty one" not in text


def test_literals_occur_in_the_question(shop: tuple[Path, list[dict[str, Any]]]) -> None:
    seen = 0
    for line in shop[1]:
        for value in re.findall(r"'([^']*)'", line["sql"]):
            assert value.strip("%") in line["question"], line
            seen += 1
    assert seen > 10


def test_dangling_reference_is_only_joined(shop: tuple[Path, list[dict[str, Any]]]) -> None:
    """`GROUP BY customer_id` would count orders without a customer as a group; `NOT IN` would return no rows."""
    joined = [line for line in shop[1] if "JOIN" in line["sql"]]
    assert len(joined) > 5
    for line in shop[1]:
        if "customer_id" in line["sql"] and "JOIN" not in line["sql"]:
            raise AssertionError(line)


def test_sorted_lists_have_one_order(tmp_path: Path) -> None:
    path = tmp_path / "ties.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, label TEXT, kind TEXT, size INT, cost INT)")
        rows = [(i, f"thing{i}", "ab"[i % 2], i // 2, i) for i in range(60)]
        connection.executemany("INSERT INTO item VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
        for line in make(path, tmp_path / "out", "--n", "80", "--easy", "0", "--hard", "0", "--extra", "0"):
            result = re.fullmatch(r"SELECT (\w+) (FROM item.*) ORDER BY (\w+) (?:ASC|DESC)", line["sql"])
            if result:
                keys = connection.execute(f"SELECT {result[3]}, {result[1]} {result[2]}").fetchall()
                assert len({key for key, _ in keys}) == len(set(keys)), line
            limited = re.fullmatch(r"SELECT \w+ (FROM .* ORDER BY (\w+) \w+ LIMIT) (\d+)", line["sql"])
            if limited:
                cut = connection.execute(f"SELECT {limited[2]} {limited[1]} {int(limited[3]) + 1}").fetchall()
                assert len(set(cut)) == len(cut), line


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("", "holds no tables and no views"),
        ("CREATE TABLE a(x); CREATE TABLE b(y);", "nothing to ask about: empty (2)"),
        ("CREATE TABLE a(x); INSERT INTO a VALUES (NULL)", "NULL alone"),
        ("CREATE TABLE a(x); INSERT INTO a VALUES (x'00')", "holds blobs"),
        ("CREATE VIEW v AS SELECT NULL AS one", "NULL alone"),
    ],
)
def test_file_without_possible_questions_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, says: str
) -> None:
    path = tmp_path / "bare.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    assert main(["--db", str(path), "--out", str(tmp_path / "out"), "--n", "5"]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_databases_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and long enough to be looked at as one " * 40)
    for name in ("notes.txt", "missing.sqlite"):
        assert main(["--db", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
        assert name in capsys.readouterr().err


def test_broken_file_gives_data_or_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = make_shop(tmp_path / "whole.sqlite").read_bytes()
    rng = random.Random(3)
    codes = set()
    for number in range(12):
        broken = bytearray(whole)
        for _ in range(rng.choice((5, 50, 500))):
            broken[rng.randrange(100, len(broken) if number % 2 else 4096)] = rng.randrange(256)
        path = tmp_path / f"broken{number}.sqlite"
        path.write_bytes(bytes(broken[: rng.randrange(2000, len(broken))] if number % 4 == 3 else broken))
        code = main(["--db", str(path), "--out", str(tmp_path / f"out{number}"), "--n", "5"])
        output = capsys.readouterr().err
        assert code == 0 or (code == 2 and output.count("\n") == 1 and path.name in output)
        codes.add(code)
    assert 2 in codes


def test_nonempty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    assert main(["--db", str(make_shop(tmp_path / "a.sqlite")), "--out", str(tmp_path / "out")]) == 2


ODD = r"""
CREATE TABLE "weird ""name"" é"(
  "a b" TEXT, "1st" INT, "" INT, "group" TEXT, "x.y" REAL, "日本" INT, y INT, "#" TEXT, mixed, blob BLOB);
CREATE VIRTUAL TABLE notes USING fts5(body);
INSERT INTO notes VALUES ('some words'), ('other words');
CREATE TABLE norow(k TEXT PRIMARY KEY, v INT) WITHOUT ROWID;
CREATE TABLE made(a INT, b INT GENERATED ALWAYS AS (a * 2) VIRTUAL);
CREATE TABLE node(id INTEGER PRIMARY KEY, up INT REFERENCES node(id), size INT, gone INT REFERENCES nowhere(id));
CREATE VIEW broken AS SELECT * FROM nothing_here;
"""


def test_unusual_files_give_questions(tmp_path: Path) -> None:
    path = tmp_path / "odd [1] %.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(ODD)
        for i in range(30):
            row = (f"it's {i}", i, i, "xyz"[i % 3], i / 7, i, i % 5, f"#{i}", (i, "t")[i % 2], b"\xff")
            connection.execute(f'INSERT INTO "weird ""name"" é" VALUES ({",".join("?" * 10)})', row)
            # Text that is not UTF-8, as in old files.
            connection.execute("INSERT INTO norow VALUES (CAST(? AS TEXT), ?)", (b"caf\xe9" + bytes([65 + i]), i))
            connection.execute("INSERT INTO made(a) VALUES (?)", (i,))
            connection.execute("INSERT INTO node VALUES (?, ?, ?, NULL)", (i + 1, max(i, 1), i))
        connection.commit()
    lines = make(path, tmp_path / "out", "--n", "60")
    assert len(lines) == 60
    assert any('"weird ""name"" é"' in line["sql"] for line in lines)
    assert not any("caf" in line["sql"] or "mixed" in line["sql"] or "blob" in line["sql"] for line in lines)
    assert len(load_folder(tmp_path / "out").examples) == 60


@pytest.mark.slow
def test_wide_database_with_undeclared_references_gives_questions(tmp_path: Path) -> None:
    path = tmp_path / "many.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT, level INT)")
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", [(i, f"c{i}", i % 7) for i in range(1, 31)])
        for number in range(300):
            connection.execute(f"CREATE TABLE t{number}_sales(sale_no INT, customer_id INT, amount INT)")
            rows = [(i, i % 30 + 1, i * number) for i in range(40)]
            connection.executemany(f"INSERT INTO t{number}_sales VALUES (?, ?, ?)", rows)
        connection.commit()
    lines = make(path, tmp_path / "out", "--n", "40", "--hard", "50")
    assert len(lines) == 40
    assert sum("JOIN customers" in line["sql"] for line in lines) > 5


def test_descriptions_name_columns_and_links_point_to_the_file(tmp_path: Path) -> None:
    path = make_shop(tmp_path / "shop.sqlite")
    (tmp_path / "database_description").mkdir()
    (tmp_path / "database_description/tblCustomers.csv").write_bytes(
        b"\xef\xbb\xbforiginal_column_name,column_name,column_description\r\nage,,age in years\r\n"
        b"home_city,home town,\r\nfullName,,Name; null until known\r\n"
    )
    lines = make(path, tmp_path / "out", "--n", "80", "--link")
    text = " ".join(line["question"] for line in lines)
    assert "age in years" in text
    assert "home town" in text
    assert "until known" not in text
    assert "full name" in text
    link = tmp_path / "out/databases/shop/shop.sqlite"
    assert link.is_symlink()
    assert link.resolve() == path.resolve()
    make(path, tmp_path / "copy", "--n", "5")
    copied = read_descriptions(tmp_path / "copy/databases/shop/shop.sqlite")
    assert copied.of("tblCustomers", "age") == "age in years"


def test_natural_names_in_spiders_format_are_used(tmp_path: Path) -> None:
    (tmp_path / "database/shop").mkdir(parents=True)
    path = make_shop(tmp_path / "database/shop/shop.sqlite")
    record = {
        "db_id": "shop",
        "table_names_original": ["tblCustomers"],
        "column_names_original": [[-1, "*"], [0, "home_city"]],
        "column_names": [[-1, "*"], [0, "town of birth"]],
    }
    (tmp_path / "tables.json").write_text(json.dumps([record]))
    assert "town of birth" in " ".join(line["question"] for line in make(path, tmp_path / "out", "--n", "80"))
    assert read_descriptions(tmp_path / "out/databases/shop/shop.sqlite").of("tblCustomers", "home_city")


def test_write_ahead_log_is_copied_and_the_file_is_unchanged(tmp_path: Path) -> None:
    path = make_shop(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE tblCustomers SET home_city = 'Bonn'")
        writer.commit()
        before = path.read_bytes()
        make(path, tmp_path / "out", "--n", "10")
        assert path.read_bytes() == before
    with closing(sqlite3.connect(tmp_path / "out/databases/shop/shop.sqlite")) as copy:
        assert copy.execute("SELECT DISTINCT home_city FROM tblCustomers").fetchall() == [("Bonn",)]


def test_same_seed_generates_the_same_questions(tmp_path: Path) -> None:
    path = make_shop(tmp_path / "shop.sqlite")
    first, second = (make(path, tmp_path / name, "--n", "30") for name in ("a", "b"))
    assert first == second
    other = make(path, tmp_path / "c", "--n", "30", "--seed", "1", "--mysql-share", "1")
    assert len({line["question"] for line in other} & {line["question"] for line in first}) < 10
    assert sum(line.get("dialect") == "mysql" for line in other) > 10


@pytest.mark.parametrize(
    ("name", "message", "many"),
    [
        ("orderDate", "order date", "order dates"),
        ("HTTPCode", "http code", "http codes"),
        ("tbl_user_accounts", "user accounts", "user accounts"),
        ("Cities", "cities", "cities"),
        ("bus", "bus", "buses"),
        ("Campuses", "campuses", "campuses"),
        ("analysis", "analysis", "analyses"),
        ("cars_data", "cars data", "cars data records"),
        ("staff", "staff", "staff"),
        ("Member_of_club", "member of club", "members of club"),
        ("Students_in_Detention", "students in detention", "students in detention"),
        ("Products_Booked", "products booked", "products booked"),
        ("Lives_in", "lives in", "lives in records"),
        ("user_feed", "user feed", "user feeds"),
        ("y", "y", "ys"),
        ("#!", "#!", "#!"),
        ("日本", "日本", "日本"),
    ],
)
def test_words_of_names(name: str, message: str, many: str) -> None:
    assert split_words(name) == message
    assert plural_of(singular_of(split_words(name))) == many


@pytest.mark.parametrize(
    ("many", "item"),
    [
        ("sizes", "size"),
        ("status", "status"),
        ("camera lens", "camera lens"),
        ("debate people", "debate person"),
        ("assets in events", "asset in events"),
        ("documents to be destroyed", "document to be destroyed"),
    ],
)
def test_singulars_of_tables(many: str, item: str) -> None:
    assert singular_of(many) == item


GIZMOS = """
CREATE TABLE gizmo(zorp INTEGER PRIMARY KEY, blip INT, frob TEXT, tok INT, wattage INT, age INT, "top" INT,
  active INT, abandoned_yn TEXT, hasLid TEXT, has_spares INT, mood REAL, verdict TEXT, paid REAL, batch_no INT,
  label TEXT);
CREATE TABLE part(pk INTEGER PRIMARY KEY, zorp INT, grams REAL, main_gizmo INT, sold_on_date_of TEXT);
"""


def make_gizmos(path: Path) -> Path:
    """Make unusual names: blip, frob, tok and the zorp of part name rows; active to verdict are flags."""
    rng = random.Random(0)
    toks, tops = rng.sample(range(10_000_000, 99_999_999), 60), rng.sample(range(60_000), 60)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(GIZMOS)
        for i in range(60):
            numbers = (i + 1, 501 + i, f"{rng.getrandbits(128):032x}", toks[i], rng.randint(1, 40) * 5, 20 + i, tops[i])
            flags = (i % 2, "YN"[i % 3 == 0], ("true", "false")[i % 4 == 0], int(i % 5 == 0), float(i % 7 == 0))
            others = ("no" if i % 9 else "yes", rng.randint(1, 9), i % 4, f"Gizmo {chr(65 + i % 26)}{i}")
            connection.execute(f"INSERT INTO gizmo VALUES ({','.join('?' * 16)})", (*numbers, *flags, *others))
            row = (i, i % 17 + 1, rng.random() * 9, i % 11 + 5, f"2020-02-{i % 28 + 1:02}")
            connection.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?)", row)
        connection.commit()
    return path


def test_keys_and_flags_are_detected_by_their_values(tmp_path: Path) -> None:
    path = make_gizmos(tmp_path / "gizmos.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        database = read_database.read_database(path, "gizmos", lambda sql: connection.execute(sql).fetchall())
    kinds = {f"{table.name}.{column.name}": column.kind for table in database.joined.tables for column in table.columns}
    ids = {"gizmo.blip", "gizmo.frob", "gizmo.tok", "part.zorp", "part.main_gizmo"}
    assert {name for name, kind in kinds.items() if kind == "id"} == ids
    assert "sold on date of" in {column.words for table in database.joined.tables for column in table.columns}
    # Unique values are not sufficient for a key: the name of age is a measure, and top is unordered with wide gaps.
    assert {kinds[f"gizmo.{name}"] for name in ("wattage", "age", "top")} == {"int"}
    bools = {name for name, kind in kinds.items() if kind == "bool"}
    assert bools == {f"gizmo.{name}" for name in ("active", "abandoned_yn", "hasLid", "has_spares")}
    assert {kinds[f"gizmo.{name}"] for name in ("mood", "verdict", "batch_no")} == {"category"}


def test_keys_are_not_aggregated_and_flags_have_their_own_phrases(tmp_path: Path) -> None:
    lines = make(make_gizmos(tmp_path / "gizmos.sqlite"), tmp_path / "out", "--n", "250")
    named = r"(T\d\.)?(zorp|blip|frob|tok|active|abandoned_yn|hasLid|has_spares|mood|verdict|batch_no|pk|main_gizmo)\b"
    tested_flags = set()
    for line in lines:
        sql, text = line["sql"], line["question"]
        assert not re.search(rf"(AVG|SUM|MIN|MAX)\({named}|ORDER BY {named}|{named} ([<>]=?|BETWEEN|LIKE) ", sql), line
        for flag, value in re.findall(r"(active|abandoned_yn|hasLid|has_spares) = ('?\w+'?)", sql):
            printed = {"active": "active", "abandoned_yn": "abandoned", "hasLid": "a lid", "has_spares": "spares"}[flag]
            holds = value in ("1", "'Y'", "'true'")
            some, none = (
                f"that (are|have) {printed}|with {printed}",
                f"that (are|do) not (have )?{printed}|without {printed}",
            )
            assert re.search(some if holds else none, text), line
            tested_flags.add((flag, holds))
    assert len(tested_flags) >= 6
    assert any("AVG(top)" in line["sql"] for line in lines)


def test_numbers_of_many_digits_are_rounded_in_questions(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "m.sqlite")) as connection:
        connection.execute("CREATE TABLE sample(id INTEGER PRIMARY KEY, name TEXT, weight REAL, length REAL)")
        rows = [(i, f"Sample {chr(64 + i % 26)}{i}", i / 7 + 1e-9, 1e6 / i) for i in range(1, 61)]
        connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    lines = make(tmp_path / "m.sqlite", tmp_path / "out", "--n", "40")
    literals = [text for line in lines for text in re.findall(r"(?:[<>]=?|BETWEEN|AND) (\d+(?:\.\d+)?)", line["sql"])]
    assert len(literals) >= 15
    assert max(len(text.replace(".", "").strip("0")) for text in literals) <= 4
    for line in lines:
        assert all(text in line["question"] for text in re.findall(r"\d+\.\d+", line["sql"]))
    assert not any(text.endswith(".0") for text in literals)


def test_rounded_number_splits_the_rows_like_the_value() -> None:
    rng = random.Random(0)
    for scale in (1e-3, 1.0, 1e6):
        # The distance between any two values is at least a thousandth of the largest, so four digits separate them.
        values = [(rank + rng.random() / 2) / 200 * scale * sign for rank in range(20, 200) for sign in (-1, 1)]
        column = AnnotatedColumn("c", "c", (), "real", tuple(values), digits=4)
        for value in rng.sample(values, 40):
            up, down = round_value(column, value, is_up=True), round_value(column, value, is_up=False)
            assert {x for x in values if x > up} == {x for x in values if x > value}
            assert {x for x in values if x <= up} == {x for x in values if x <= value}
            assert {x for x in values if x >= down} == {x for x in values if x >= value}
            assert {x for x in values if x < down} == {x for x in values if x < value}
            for number in (up, down):
                assert float(f"{number:.4g}") == number


@pytest.mark.parametrize(
    ("values", "value", "is_up", "number"),
    [
        ((1.23456789, 2.5, 3.75), 2.5, True, 2.5),
        ((10.5, 27.123456, 40.25), 27.123456, True, 28),
        ((10.5, 27.123456, 40.25), 27.123456, False, 27),
        ((284413, 284450, 310000, 400000), 284450, True, 290000),
        ((100.00001, 100.00002, 100.00003, 100.00004, 250.5), 100.00003, True, 110),  # of the neighbouring value
        ((7, 1234567, 9999999), 1234567, False, 1200000),
    ],
)
def test_rounded_number_is_the_shortest_that_splits_alike(
    values: tuple[float, ...], value: float, is_up: bool, number: float
) -> None:
    column = AnnotatedColumn("c", "c", (), "real", values, digits=4)
    result = round_value(column, value, is_up)
    assert (result, type(result)) == (number, type(number))


def test_values_without_a_short_separating_number_are_not_compared() -> None:
    column = AnnotatedColumn("c", "c", (), "real", tuple(100 + i / 1e7 for i in range(1, 20)), digits=4)
    with pytest.raises(NoFit):
        round_value(column, column.values[9], is_up=True)
