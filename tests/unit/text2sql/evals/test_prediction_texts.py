"""Which lines, tables and fields of predictions are SQL, headers, indexes or prose."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.files import Paired
from jaxrl_sql.text2sql.evals.predictions import pair, read_predictions
from jaxrl_sql.text2sql.evals.submission import write_submission
from jaxrl_sql.types import Example, InputError

QUESTIONS = [Example(f"q{i}", "shop" if i < 2 else "zoo", "x.sqlite", "?", "SELECT 'right'") for i in range(3)]
IDS = [item.uid for item in QUESTIONS]


def pair_file(path: Path, content: str | bytes, field: str = "", **options: bool) -> Paired:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return pair(read_predictions(path, field), QUESTIONS, IDS, **options)


def refusal(path: Path, content: str | bytes, field: str = "", **options: bool) -> str:
    with pytest.raises(InputError) as caught:
        pair_file(path, content, field, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


def json_lines(*pairs: tuple[object, object]) -> str:
    return "".join(json.dumps({"id": uid, "sql": sql}) + "\n" for uid, sql in pairs)


QUERIES = [f"SELECT {i} FROM t" for i in range(20)]


def read_texts(path: Path, lines: list[str], field: str = "") -> list[str | None]:
    path.write_text("".join(f"{line}\n" for line in lines))
    return [prediction.sql for prediction in read_predictions(path, field).entries]


NO_ANSWERS = ["None", "error", "unknown", "EXPLAIN", "Sorry;", "PRAGMA foreign_keys;", "show tables;", ";", "N/A"]
PROSE = ["no tables match; cannot answer", "Sorry, unknown", "NO_SQL", "invalid query", "Unanswerable"]


@pytest.mark.parametrize("field", ["", "sql"])
@pytest.mark.parametrize("answer", [*NO_ANSWERS, *PROSE, ""])
def test_first_answer_without_a_query_is_no_header(answer: str, field: str, tmp_path: Path) -> None:
    lines = [f"{answer}\tshop", "SELECT 1\tshop", "SELECT 2\tzoo"]
    content = "".join(f"{line}\n" for line in lines)
    expected = [answer or None, "SELECT 1", "SELECT 2"]
    assert list(pair_file(tmp_path / "p", content, field).sqls.values()) == expected
    bare = f"{answer}\nSELECT 1;\nSELECT 2;\n"
    assert list(pair_file(tmp_path / "p", bare, field).sqls.values()) == [answer or None, "SELECT 1;", "SELECT 2;"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_table_without_known_names_is_not_read_as_lines(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    assert "--field NAME selects the field of the SQL" in refusal(
        path, f"my_sql{mark}name\nSELECT 1{mark}a\nSELECT 2{mark}b\n"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "FROM t SELECT a", "FROM (SELECT 1) SELECT a", "Where is the table?", "```", ") AS a", "Group by is needed",
        "union of a and b", "join t ON x", "From the schema I cannot tell", "FROM t", "Order of rows", "And b = 2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("index", [0, 7])
def test_line_starting_with_a_query_fragment_is_one_answer(answer: str, index: int, tmp_path: Path) -> None:
    lines = [*QUERIES[:index], answer, *QUERIES[index + 1 :]]
    assert read_texts(tmp_path / "p", lines) == lines
    (tmp_path / "p").write_text(json.dumps(["SELECT 1", answer, "SELECT 2"]))
    assert [prediction.sql for prediction in read_predictions(tmp_path / "p").entries] == [
        "SELECT 1",
        answer,
        "SELECT 2",
    ]
    numbered = {str(i): sql for i, sql in enumerate(lines)}
    written = write_submission("spider", tmp_path, [(uid, "shop") for uid in numbered], numbered)
    assert [prediction.sql for prediction in read_predictions(written[-1]).entries] == lines
    named = "".join(f"{sql}\t{db_id}\n" for sql, db_id in (("SELECT 1", "shop"), (answer, "shop"), ("SELECT 2", "zoo")))
    assert list(pair_file(tmp_path / "p", named).sqls.values()) == ["SELECT 1", answer, "SELECT 2"]


@pytest.mark.parametrize("line", ["FROM t{} SELECT a", "FROM t{}", "FROM (SELECT {}) SELECT a"])
def test_duckdb_lines_may_start_with_from(line: str, tmp_path: Path) -> None:
    lines = [line.format(i) for i in range(5)]
    assert read_texts(tmp_path / "p", lines) == lines


PARTS = ["LIMIT 1", "AND b = 2", "OR b = 2", "ON t.a = u.a", "ORDER BY a", "INTERSECT SELECT b", "EXCEPT", "ORDER"]


@pytest.mark.parametrize("text", [*PARTS, "FROM (SELECT 1)", "FROM\tt", "OFFSET 2"])
def test_queries_over_several_lines_are_refused(text: str, tmp_path: Path) -> None:
    lines = ["SELECT a FROM t", text] * 6
    with pytest.raises(InputError, match="6 of 12 lines continue a query"):
        read_texts(tmp_path / "p", lines)
    assert read_texts(tmp_path / "p", lines, "sql") == lines


def test_word_in_line_1_may_be_a_header_if_it_is_one_line_too_many(tmp_path: Path) -> None:
    path = tmp_path / "p"
    whole = "Model\nSELECT 0\nSELECT 1\nSELECT 2\n"
    assert "line 1 may be a header, 'Model': --field 'Model' selects it" in refusal(path, whole)
    assert list(pair_file(path, whole, "Model").sqls.values()) == ["SELECT 0", "SELECT 1", "SELECT 2"]
    blank = "Model\nSELECT 0\n\nSELECT 2\n"
    assert "line 1 may be a header, 'Model'" in refusal(path, blank)
    assert list(pair_file(path, blank, "sql").sqls.values()) == ["Model", "SELECT 0", "SELECT 2"]
    assert "header" not in refusal(path, "Model\nSELECT 0\n")


STATEMENTS = [
    "```mysql\nSELECT 1\n```", "```postgresql\nSELECT 1\n```", "```duckdb\nSELECT 1\n```", "```tsql\nSELECT 1\n```",
    "PRAGMA table_info(t)", "EXPLAIN SELECT 1", "TABLE t", "VALUES ROW(1)", "PIVOT t ON a USING sum(b)", "DESCRIBE t",
    "CREATE TABLE x AS SELECT 1", "CREATE OR REPLACE TEMP VIEW x AS SELECT 1", "UPDATE t SET a = 1", "DELETE FROM t",
    "INSERT INTO t VALUES (1)", "INSERT OR IGNORE INTO t VALUES (1)", "DROP TABLE IF EXISTS t", "ALTER TABLE t ADD a",
    "SHOW TABLES", "SUMMARIZE t", "SET x = 1", "CALL f(1)", "MERGE INTO t USING u ON a", "REPLACE INTO t VALUES (1)",
    "# a comment\nSELECT 1", ";SELECT 1", "\ufeffSELECT 1", "\u200bSELECT 1", "SELECT*FROM t",
    "UNPIVOT t ON a INTO NAME n",
]  # fmt: skip


@pytest.mark.parametrize("sql", STATEMENTS)
def test_statements_of_any_kind_are_sql(sql: str, tmp_path: Path) -> None:
    assert list(pair_file(tmp_path / "p", json_lines(*((uid, sql) for uid in IDS))).sqls.values()) == [sql] * 3


@pytest.mark.parametrize("prose", ["Show me the table.", "Update your schema.", "Set it up first.", "Create a view?"])
def test_prose_starting_like_a_statement_is_no_sql(prose: str, tmp_path: Path) -> None:
    assert "3 of 3 texts do not start like SQL" in refusal(tmp_path / "p", json_lines(*((uid, prose) for uid in IDS)))


@pytest.mark.parametrize("name", ["index", "idx", "", "row_id"])
def test_empty_index_column_is_no_index(name: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    expected = ["SELECT 0", "SELECT 1", "SELECT 2"]
    for blank in (None, " "):
        entries = json.dumps([{name: blank, "sql": sql} for sql in expected])
        assert list(pair_file(path, entries).sqls.values()) == expected
    for head, row in ((f"question,sql,{name}", "q,{},"), (f"{name},sql", "{}.0,SELECT {}")):
        table = f"{head}\n" + "".join(row.format(sql if "q," in row else i, i) + "\n" for i, sql in enumerate(expected))
        assert list(pair_file(path, table).sqls.values()) == expected


@pytest.mark.parametrize("blank", [None, "", " "])
def test_error_for_empty_ids_suggests_a_fix(blank: str | None, tmp_path: Path) -> None:
    lines = json.dumps([{"qid": blank, "sql": f"SELECT {i}"} for i in range(3)])
    assert "remove qid, which is empty everywhere, to pair entry by entry" in refusal(tmp_path / "p", lines)
    some = json.dumps([{"qid": i or blank, "sql": f"SELECT {i}"} for i in range(3)])
    assert "empty everywhere" not in refusal(tmp_path / "p", some)


def test_tab_in_sql_separates_no_database(tmp_path: Path) -> None:
    path = tmp_path / "p"
    for form in ("SELECT a FROM\tt{}", "SELECT\ta\tFROM\tt{}", "SELECT a,\tb{}", "SELECT a LIMIT\t{}", "SELECT\tx{}"):
        lines = [form.format(i) for i in range(3)]
        assert list(pair_file(path, "\n".join(lines)).sqls.values()) == lines
    golds = [dataclasses.replace(question, db_id="my shop") for question in QUESTIONS]
    path.write_text("SELECT 1\tmy shop\nSELECT 2\tmy shop\nSELECT a FROM\tmy shop\n")
    assert list(pair(read_predictions(path), golds, IDS).sqls.values()) == [
        "SELECT 1", "SELECT 2", "SELECT a FROM\tmy shop",
    ]  # fmt: skip
    tables = ["SELECT a FROM\tzoo", "SELECT a FROM\tzoo", "SELECT 2\tzoo"]
    assert list(pair_file(path, "\n".join(tables)).sqls.values()) == [*tables[:2], "SELECT 2"]


@pytest.mark.parametrize("head", ["id,sql", "question_id;sql", "ID\tsql"])
def test_float_ids_of_a_pandas_predictions_table_are_whole_numbers(head: str, tmp_path: Path) -> None:
    mark = next(mark for mark in ",;\t" if mark in head)
    for ids, expected in (("2.0 0.0 1.0", "2 0 1"), ("2.0 0.1 1.1", "2.0 0.1 1.1"), ("2.0 1 0.0", "2.0 1 0.0")):
        table = f"{head}\n" + "".join(f"{uid}{mark}SELECT 1\n" for uid in ids.split())
        (tmp_path / "p").write_text(table)
        assert [prediction.uid for prediction in read_predictions(tmp_path / "p").entries] == expected.split()


ORDER_FIELDS = [
    "questionId", "question id", "question-id", "example_id", "row_id", "level_0", "__index_level_0__", "Index", "idx",
    "ExampleID", "sample_idx", "row number", "task_id", "no",
]  # fmt: skip


@pytest.mark.parametrize("name", ORDER_FIELDS)
def test_field_in_another_order_is_not_paired_by_position(name: str, tmp_path: Path) -> None:
    path, reason = tmp_path / "p", "does not count the entries: rename it to id"
    for order in ((2, 0, 1), ("a", "b", "c")):
        assert reason in refusal(path, json.dumps([{name: i, "sql": "SELECT 1"} for i in order]))
        assert reason in refusal(path, f"{name},sql\n" + "".join(f"{i},SELECT 1\n" for i in order))
    counted = json.dumps([{name: i, "sql": f"SELECT {i}"} for i in range(3)])
    assert list(pair_file(path, counted).sqls.values()) == ["SELECT 0", "SELECT 1", "SELECT 2"]
