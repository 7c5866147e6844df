"""Conversions of a result: Arrow data, data frames, text; and errors of failed queries."""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor, Outcome

COLUMNS = {
    "i": ("int64", [1, None, -(2**63)]),
    "r": ("float64", [0.5, None, 3.0]),
    "t": ("large_utf8", ["é", "", None]),
    "mixed": ("large_utf8", ["7", "0.1", "x"]),
    "b": ("large_binary", [b"\x00\xff", None, b""]),
    "damaged": ("large_binary", [b"a\xff", b"12", None]),
    "absent": ("null", [None, None, None]),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(i INTEGER, r, t VARCHAR(9), mixed ANY, b BLOB, damaged TEXT, absent)")
    rows = [
        (1, 0.5, "é", 7, b"\x00\xff", None, None),
        (None, None, "", 0.1, None, 12, None),
        (-(2**63), 3, None, "x", b"", None, None),
    ]
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute("UPDATE t SET damaged = CAST(x'61ff' AS TEXT) WHERE i = 1")
    connection.commit()
    connection.close()
    return path


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(threads=1) as ex:
        yield ex


@pytest.fixture
def outcome(executor: Executor, database: Path) -> Outcome:
    return executor.execute(database, "SELECT * FROM t")


def need(*names: str) -> list[Any]:
    """Import libraries that only these tests use, or skip."""
    return [pytest.importorskip(name, reason=f"{name} is not installed") for name in names]


def test_nanoarrow_reads_every_column(outcome: Outcome) -> None:
    (nanoarrow,) = need("nanoarrow")
    stream = nanoarrow.Array(outcome)
    assert stream.to_pylist() == [dict(zip(COLUMNS, row, strict=True)) for row in rows_of(COLUMNS)]
    schema = nanoarrow.Schema(outcome)
    types = [field.type.name.lower().replace("string", "utf8") for field in schema.fields]
    assert types == [kind.replace("float64", "double") for kind, _ in COLUMNS.values()]
    assert outcome.to_arrow().types == [kind for kind, _ in COLUMNS.values()]


def test_imported_arrow_data_outlives_the_outcome(executor: Executor, database: Path) -> None:
    (nanoarrow,) = need("nanoarrow")
    numbers = (
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 10000) SELECT x, 'n' || x FROM r"
    )
    array = nanoarrow.Array(executor.execute(database, numbers + " -- not kept by a name"))
    gc.collect()
    assert array.n_chunks == 1
    last = array.child(1)
    del array
    gc.collect()
    assert (len(last), last[9_999].as_py()) == (10_000, "n10000")


def test_an_arrow_table_can_be_imported_repeatedly(outcome: Outcome) -> None:
    (nanoarrow,) = need("nanoarrow")
    table = outcome.to_arrow()
    assert nanoarrow.Array(table).to_pylist() == nanoarrow.Array(table).to_pylist()
    assert (len(table), table.names) == (3, list(COLUMNS))
    unused = [table.__arrow_c_stream__(), *table.__arrow_c_array__(), table.__arrow_c_schema__()]
    assert len(unused) == 4
    del unused  # its capsule releases data that were not imported


def test_pyarrow_validates_the_data(outcome: Outcome) -> None:
    (pyarrow,) = need("pyarrow")
    table = pyarrow.table(outcome)
    table.validate(full=True)
    assert table.to_pydict() == {name: values for name, (_, values) in COLUMNS.items()}
    batch = pyarrow.record_batch(outcome)
    batch.validate(full=True)
    assert batch.num_rows == 3
    assert pyarrow.schema(outcome.to_arrow()).names == list(COLUMNS)


def test_empty_results_and_repeated_names(executor: Executor, database: Path) -> None:
    out = executor.execute(database, "SELECT i, i, t AS i, i AS i_2 FROM t WHERE 0")
    assert out.to_arrow().types == ["int64", "int64", "large_utf8", "int64"]
    assert out.to_arrow().names == ["i", "i", "i", "i_2"]
    assert out.to_arrow(unique_names=True).names == ["i", "i_3", "i_4", "i_2"]
    (nanoarrow,) = need("nanoarrow")
    assert len(nanoarrow.Array(out)) == 0


def test_pandas_gets_numbers_as_numbers(executor: Executor, outcome: Outcome, database: Path) -> None:
    (pandas,) = need("pandas")
    frame = outcome.to_pandas()
    assert [str(kind) for kind in frame.dtypes[["i", "r", "b"]]] == ["Int64", "float64", "object"]
    for name, (_, values) in COLUMNS.items():
        got = [None if pandas.isna(value) else value for value in frame[name]]
        assert got == values, name
    frame = executor.execute(database, "SELECT 1 AS a, 2 AS a").to_pandas()
    assert (list(frame.columns), frame.to_numpy().tolist(), str(frame.dtypes.iloc[0])) == (
        ["a", "a"],
        [[1, 2]],
        "int64",
    )
    assert executor.execute(database, "SELECT 1 AS a WHERE 0").to_pandas().shape == (0, 1)


def test_polars_gets_the_same_columns(executor: Executor, outcome: Outcome, database: Path) -> None:
    (polars,) = need("polars")
    frame = outcome.to_polars()
    assert frame.to_dict(as_series=False) == {name: values for name, (_, values) in COLUMNS.items()}
    assert frame.schema["mixed"] == polars.String
    assert executor.execute(database, "SELECT 1 AS a, 2 AS a").to_polars().to_dicts() == [{"a": 1, "a_2": 2}]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_named_by_the_error(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=f"pip install {library}"):
        getattr(outcome, f"to_{library}")()


def test_a_failure_has_no_table(executor: Executor, database: Path) -> None:
    wrong = executor.execute(database, "SELECT absnet FROM t")
    for export in (wrong.to_arrow, wrong.to_pandas, wrong.to_polars, wrong.__arrow_c_stream__):
        with pytest.raises(ValueError, match="no table: schema_error: no such column: absnet"):
            export()
    assert wrong.column_types == []


def test_text_is_aligned_and_truncated(executor: Executor, outcome: Outcome, database: Path) -> None:
    text = str(executor.execute(database, "SELECT i, t, b FROM t WHERE i > 0"))
    assert text == "i | t | b\n--+---+--------\n1 | é | x'00ff'\n(1 row)"
    assert outcome.pretty(max_rows=1).endswith("\n(3 rows, 1 shown)")
    assert max(map(len, outcome.pretty(max_width=30).splitlines())) <= 30
    assert repr(outcome) == "<Outcome ok: 3 rows, 7 columns>"
    wrong = executor.execute(database, "SELECT absnet FROM t")
    assert str(wrong) == "schema_error: no such column: absnet. Did you mean t.absent?"
    assert repr(wrong) == f"<Outcome {wrong}>"
    assert len(repr(executor.execute(database, f"SELECT {'x' * 500} FROM t"))) < 120


def test_declared_types_are_reported(outcome: Outcome, executor: Executor, database: Path) -> None:
    assert outcome.column_types == ["INTEGER", None, "VARCHAR(9)", "ANY", "BLOB", "TEXT", None]
    assert executor.execute(database, "SELECT i + 1, t AS u FROM t").column_types == [None, "VARCHAR(9)"]


def test_hints_suggest_near_names_and_keep_the_status(executor: Executor, database: Path) -> None:
    cases = [
        ("SELECT mixd FROM t", "schema_error", "Did you mean t.mixed?"),
        ("SELECT x.DAMAGE FROM t AS x", "schema_error", "Did you mean x.damaged?"),
        ("SELECT * FROM main.tt", "schema_error", None),  # two letters are near everything
        ("SELECT i FROM t AS a, t AS b", "schema_error", "Did you mean a.i or b.i?"),
        ("SELECT quite_another_thing FROM t", "schema_error", None),
        ("SELEC mixd FROM t", "syntax_error", None),
        ("SELECT mixed FROM t", "ok", None),
    ]
    for sql, status, hint in cases:
        out = executor.execute(database, sql)
        assert (out.status, out.hint) == (status, hint), sql


def test_the_module_only_needs_numpy() -> None:
    needs = [name for name in requires("sqlexec-rs") or [] if "extra ==" not in name]
    assert [name.split(">")[0] for name in needs] == ["numpy"]


def rows_of(columns: dict[str, tuple[str, list[Any]]]) -> list[tuple[Any, ...]]:
    return list(zip(*(values for _, values in columns.values()), strict=True))
