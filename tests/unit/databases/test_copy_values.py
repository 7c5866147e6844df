"""Copied databases: types, names and values as the engines' drivers read them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.copy import main
from jaxrl_sql.databases.copy.digest import TableDigest
from jaxrl_sql.databases.copy.names import new_names
from jaxrl_sql.databases.engines.kinds import column_stats, kind_of
from jaxrl_sql.databases.engines.tables import NameRules

INT64 = (-(2**63), 2**63 - 1)


CopyTarget = Any
"""A server or folder to copy to, `CopyTarget` of conftest.py."""

MakeFile = Callable[..., Path]
"""Makes a SQLite file in a folder by a script, and returns the folder."""

Refusal = Callable[[Sequence[str]], str]
"""Returns the one line with which a command is refused."""


@pytest.mark.parametrize(
    ("declared", "values", "kind"),
    [
        ("VARCHAR(3)", [1, None, 2], "integer"),
        ("BOOLEAN", [0, 1, None], "integer"),
        ("INT", [2**63 - 1, -(2**63)], "integer"),
        ("INT", [1, 1.5], "real"),
        ("", [2**53, 0.5], "real"),
        ("INT", [1, "one"], "text"),
        ("REAL", ["", 1.5], "text"),
        ("DATE", ["2020-02-29", None], "date"),
        ("date time", ["2020-02-29", "0001-01-01"], "date"),
        ("DATE", ["2021-02-29", "2020-02-29"], "text"),
        ("DATE", ["2020-2-29"], "text"),
        ("DATE", ["20200229"], "text"),
        ("TEXT", ["2020-02-29"], "text"),
        ("DATETIME", ["2020-02-29 10:00:00"], "timestamp"),
        ("DATETIME", ["2020-02-29 10:00:00", "2020-02-29"], "text"),
        ("TIMESTAMP", ["2020-02-29 10:00:00.000"], "text"),
        ("TIMESTAMP", ["2020-02-29 24:00:00"], "text"),
        ("DATE", [20200229], "integer"),
        ("DATE", [], "text"),
        ("BOOL", [None], "integer"),
        ("DOUBLE", [], "real"),
        ("DECIMAL(3, 1)", [], "real"),
        ("CHARINT", [], "integer"),
        ("TEXT", [], "text"),
        ("", [None], "text"),
        ("BLOB", [], "blob"),
        ("TEXT", [b"\x00"], "blob"),
        ("TEXT", [b"\x00", "a", 1], "has both blobs and integers and texts"),
        ("", [2**53 + 1, 0.5], "has both reals and integers beyond 2^53, which no float represents"),
    ],
)
def test_column_type_follows_its_values(declared: str, values: list[Any], kind: str) -> None:
    assert (
        kind_of(declared, column_stats(values, counts_dates="date" in declared.lower() or "time" in declared.lower()))
        == kind
    )


def test_digests_are_equal_for_equal_rows_only() -> None:
    rows = [(1, "a", None), (2, "b", 0.5), (2, "b", 0.5), (3, b"c", float("inf"))]
    shuffled = random.Random(1).sample(rows, len(rows))
    whole = TableDigest().plus(rows)
    assert whole == TableDigest().plus(shuffled[:1]).plus(shuffled[1:])
    assert whole.rows == 4
    assert TableDigest().plus([(0.0,)]) == TableDigest().plus([(-0.0,)])
    others = [(1,), (1.0,), ("1",), (b"1",), (None,), ("",), ("N",), (2,), (-1,)]
    assert len({TableDigest().plus([row]) for row in others}) == len(others)
    assert TableDigest().plus([("a", "bc")]) != TableDigest().plus([("ab", "c")])
    assert TableDigest().plus([(1,), (1,)]) != TableDigest().plus([(2,), (2,)])
    assert TableDigest().plus([(1, 2)]) != TableDigest().plus([(12,)])


def test_names_are_made_valid_for_an_engine() -> None:
    rules = NameRules(12, counts_bytes=True, reserved=frozenset({"ctid"}))
    renamed, changed = new_names(["Name", "ÄB", "", "x ", "x", "ctid", "ééééééé"], "column", rules)
    assert renamed["Name"] == "name"
    assert renamed["ÄB"] == "Äb"
    assert renamed[""] == "column_3"
    assert renamed["x "] == "x"
    assert renamed["x"] not in ("x", "")
    assert renamed["ctid"] == "ctid_"
    assert all(len(name.encode()) <= 12 for name in renamed.values())
    assert len({*renamed.values()}) == len(renamed)
    assert changed == ["", "x ", "x", "ctid", "ééééééé"]


ODD = """
CREATE TABLE "Order Items" ("select" INTEGER PRIMARY KEY, "na""me" TEXT, "ta\tb" REAL, "back`tick" BLOB,
  "Größe" TEXT, "per%cent" INT, "col:on" TEXT, "back\\slash" TEXT, "q?m" TEXT);
CREATE TABLE "it's" (a TEXT, b);
CREATE TABLE empty (i INT, t TEXT, r REAL, b BLOB, d DATE, n NUMERIC, x);
CREATE TABLE "100%s" ("%s" INT);
"""
ODD_ROWS: dict[str, Sequence[Sequence[Any]]] = {
    '"Order Items"': [
        (1, "a\tb\nc\r\\N\\", 0.1, b"\x00\xff\\", "naïve ☃ 🎉", INT64[0], "'", '"', "a?"),
        (2, None, None, None, None, None, None, None, None),
        (3, "", 5e-324, b"", "NULL", INT64[1], "\\N", "\\\\", "%s %%"),
        (4, " x ", 1.7976931348623157e308, b"\\x00", "ÄÖ", 0, "\x01\x7f", "/*", "--"),
        (5, "x", -0.0, bytes(range(256)), "x" * 70_000, -1, "{}", "$$", ";"),
        (6, "\ufeffb\u2028", 1 / 3, b"\n", "é" * 300, 7, "e\u0301", "\U0010ffff", "\u200b"),
    ],
    '"it\'s"': [("a", 1), ("b", "two"), ("c", 2.5), ("d", None), ("e", 1e300)],
    '"100%s"': [(1,), (1,), (2,)],
}


def test_unusual_names_and_values_are_copied_unchanged(tmp_path: Path, target: CopyTarget, make_file: MakeFile) -> None:
    source = make_file(tmp_path / "in", "odd one's", ODD, ODD_ROWS)
    assert main(target.arguments(source)) == 0
    quoted = '"order items"' if target.engine != "mariadb" else "`order items`"
    rows = target.fetch("odd one's", f"SELECT * FROM {quoted}")
    assert sorted(rows) == sorted(map(tuple, ODD_ROWS['"Order Items"']))
    quoted = '"it\'s"' if target.engine != "mariadb" else "`it's`"
    mixed = target.fetch("odd one's", f"SELECT a, b FROM {quoted}")
    assert sorted(mixed) == [("a", "1"), ("b", "two"), ("c", "2.5"), ("d", None), ("e", "1e+300")]
    entry = target.entry("odd one's")
    assert entry["tables"]["Order Items"]["rows"] == 6
    assert entry["tables"]["empty"]["rows"] == 0
    assert [kind["type"] for kind in entry["tables"]["empty"]["columns"].values()] == [
        "integer", "text", "real", "blob", "text", "real", "text",
    ]  # fmt: skip
    assert entry["notes"] == ["it's.b: 3 numbers and 1 text, all copied as texts"]


def test_rows_of_many_chunks_are_copied(tmp_path: Path, target: CopyTarget, make_file: MakeFile) -> None:
    rows = [(i, f"row {i}", i / 7 if i % 3 else None) for i in range(12_345)]
    source = make_file(tmp_path / "in", "long", "CREATE TABLE t (i INT, s TEXT, r REAL)", {"t": rows})
    assert main(target.arguments(source)) == 0
    assert sorted(target.fetch("long", "SELECT * FROM t")) == rows


def test_infinities_are_kept_or_rejected(
    tmp_path: Path, target: CopyTarget, make_file: MakeFile, refusal: Refusal
) -> None:
    rows = [(float("inf"),), (float("-inf"),), (1,)]
    source = make_file(tmp_path / "in", "far", "CREATE TABLE t (r REAL)", {"t": rows})
    if target.engine == "mariadb":
        message = refusal(target.arguments(source))
        assert "t.r has 2 values equal to infinity, which MariaDB cannot hold" in message
        assert main(target.arguments(source, "--replace")) == 0
        assert sorted(target.fetch("far", "SELECT r FROM t"))[::2] == [
            (-1.7976931348623157e308,),
            (1.7976931348623157e308,),
        ]
    else:
        assert main(target.arguments(source)) == 0
        assert sorted(target.fetch("far", "SELECT r FROM t")) == [(float("-inf"),), (1.0,), (float("inf"),)]


def test_unsupported_text_is_rejected_or_replaced(
    tmp_path: Path, target: CopyTarget, make_file: MakeFile, refusal: Refusal
) -> None:
    script = "CREATE TABLE t (a TEXT, b TEXT); INSERT INTO t VALUES ('a' || char(0) || 'b', CAST(X'61FF' AS TEXT))"
    source = make_file(tmp_path / "in", "bytes", script)
    message = refusal(target.arguments(source))
    assert (
        "with the character NUL" in message
        if target.engine == "postgresql"
        else "t.b has 1 value with invalid UTF-8" in message
    )
    assert "--replace" in message
    assert main(target.arguments(source, "--replace")) == 0
    nul = "\ufffd" if target.engine == "postgresql" else "\0"
    assert target.fetch("bytes", "SELECT a, b FROM t") == [(f"a{nul}b", "a\ufffd")]
    assert any("is replaced" in line for line in target.entry("bytes")["notes"])


def test_column_without_a_fitting_type_is_rejected_or_omitted(
    tmp_path: Path, target: CopyTarget, make_file: MakeFile, refusal: Refusal
) -> None:
    folder = make_file(tmp_path / "in", "a", "CREATE TABLE u (x INT)", {"u": [(1,)]})
    make_file(folder, "b", "CREATE TABLE T (K INTEGER PRIMARY KEY, V)", {"t": [(1, b"x"), (2, "x")]})
    message = refusal(target.arguments(folder))
    assert "T.V has both blobs and texts" in message
    assert "--leave-out 'T.V'" in message
    assert not (target.out / "manifest.json").exists()  # nothing is written before the whole database is checked
    assert main(target.arguments(folder, "--leave-out", "t.v")) == 0
    assert sorted(target.fetch("b", "SELECT * FROM t")) == [(1,), (2,)]
    assert target.entry("b")["notes"] == ["T.V is omitted, with its keys"]
    assert "no database has this column" in refusal(target.arguments(folder, "--leave-out", "t.w", "--prefix", "other"))
