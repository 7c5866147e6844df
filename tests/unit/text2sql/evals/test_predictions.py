"""Predictions are parsed by format and paired with their own questions, or refused."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.files import BIRD_MARK, Paired
from jaxrl_sql.text2sql.evals.predictions import pair, read_predictions
from jaxrl_sql.text2sql.evals.submission import NO_SQL_PLACEHOLDER, one_line, write_submission
from jaxrl_sql.types import Example, InputError

QUESTIONS = [Example(f"q{i}", "shop" if i < 2 else "zoo", "x.sqlite", "?", "SELECT 'right'") for i in range(3)]
IDS = [item.uid for item in QUESTIONS]
SQLS = ["SELECT 1", "SELECT a,\n b FROM t -- all", 'SELECT "x, y"']


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


def csv_of(header: str, mark: str) -> str:
    quoted = ['"' + sql.replace('"', '""') + '"' for sql in SQLS]
    return header + "\r\n" + "".join(f"{uid}{mark}{sql}\r\n" for uid, sql in zip(IDS, quoted, strict=True))


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (json_lines(*zip(IDS[::-1], SQLS[::-1], strict=True)), "JSON lines"),
        (json.dumps([{"question_id": uid, "query": s} for uid, s in zip(IDS, SQLS, strict=True)], indent=1), "list"),
        (json.dumps(dict(zip(IDS, SQLS, strict=True))), "JSON object of ids"),
        (csv_of("id,sql", ","), "table"),
        (csv_of("instance_id\tSQL", "\t"), "table"),
        (csv_of("id;sql", ";"), "table"),
        (csv_of(",id,sql", ",").replace("\nq", "\n0,q"), "table"),
        (csv_of("Unnamed: 0;id;sql", ";").replace("\nq", "\n0;q"), "table"),
        (json_lines(*zip(IDS, SQLS, strict=True)).replace('"id"', '"ID"'), "JSON lines"),
        ("\ufeff" + csv_of('"id","sql"', ","), "table"),
    ],
)
def test_files_with_ids_are_paired_by_id(content: str, form: str, tmp_path: Path) -> None:
    result = pair_file(tmp_path / "p", content)
    assert result.sqls == dict(zip(IDS, SQLS, strict=True))
    assert form in result.notes[0]
    assert len(result.notes) == 1


def test_birds_numbers_are_positions_if_the_databases_agree(tmp_path: Path) -> None:
    numbered = {str(i): f"{sql}{BIRD_MARK}{QUESTIONS[i].db_id}" for i, sql in enumerate(SQLS)}
    result = pair_file(tmp_path / "p.json", json.dumps(numbered))
    assert list(result.sqls.values()) == SQLS
    assert "BIRD's numbers" in result.notes[0]
    swapped = {**numbered, "0": numbered["2"], "2": numbered["0"]}
    assert "2 predictions are for another database (entry 0 is for zoo" in refusal(
        tmp_path / "p.json", json.dumps(swapped)
    )
    fewer = {key: numbered[key] for key in "01"}
    assert "none of its 2 ids is a question's" in refusal(tmp_path / "p.json", json.dumps(fewer))
    plain = dict(zip("012", SQLS, strict=True))
    assert "none of its 3 ids" in refusal(tmp_path / "p.json", json.dumps(plain)), (
        "positions without a database to check"
    )


def test_birds_placeholder_for_no_answer_is_no_sql(tmp_path: Path) -> None:
    result = pair_file(tmp_path / "p.json", json.dumps({"q0": 0, "q1": f"SELECT 1{BIRD_MARK}shop", "q2": " "}))
    assert result.sqls == {"q0": None, "q1": "SELECT 1", "q2": None}
    assert "2 predictions hold no SQL and count as wrong (q0, q2)" in result.notes[1]


def test_code_fences_are_reported(tmp_path: Path) -> None:
    result = pair_file(
        tmp_path / "p.json", json.dumps({"q0": "```sql\nSELECT 1\n```", "q1": "SELECT 1", "q2": "SELECT 2"})
    )
    assert result.sqls["q0"] == "```sql\nSELECT 1\n```"
    assert "1 predictions are in a code fence" in result.notes[1]
    assert "(q0)" in result.notes[1]


def test_missing_sql_for_an_unanswerable_question_is_not_wrong(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"q0": None, "q1": None, "q2": "SELECT 1"}))
    questions = [dataclasses.replace(QUESTIONS[0], answerable=False), *QUESTIONS[1:]]
    result = pair(read_predictions(tmp_path / "p.json"), questions, IDS)
    assert result.sqls["q0"] is None
    assert "1 predictions hold no SQL and count as wrong (q1)" in result.notes[1]


def test_lines_without_ids_are_paired_only_with_equal_counts(tmp_path: Path) -> None:
    path = tmp_path / "pred.sql"
    assert list(pair_file(path, "SELECT 1\tshop\r\nSELECT '\t'\nSELECT 3\tzoo\n").sqls.values()) == [
        "SELECT 1", "SELECT '\t'", "SELECT 3",
    ]  # fmt: skip
    blank = pair_file(path, "SELECT 1\n\nSELECT 3\n")
    assert list(blank.sqls.values()) == ["SELECT 1", None, "SELECT 3"]
    assert "1 predictions hold no SQL" in blank.notes[1]
    skipped = pair_file(path, "SELECT 1\n\nSELECT 2\n\nSELECT 3\n")
    assert list(skipped.sqls.values()) == ["SELECT 1", "SELECT 2", "SELECT 3"]
    assert "2 blank lines skipped" in skipped.notes[0]
    for wrong in ("SELECT 1\nSELECT 2\n", "SELECT 1\n" * 4):
        assert "lines for 3 questions" in refusal(path, wrong, allow_missing=True, allow_extra=True)
    assert "1 predictions are for another database" in refusal(path, "SELECT 1\tzoo\nSELECT 2\nSELECT 3\n")
    assert list(pair_file(path, json.dumps(SQLS)).sqls.values()) == SQLS


def test_lines_keep_their_position_after_an_unjudged_question(tmp_path: Path) -> None:
    path = tmp_path / "pred.sql"
    path.write_text("SELECT 0\nSELECT 1\nSELECT 2\n")
    result = pair(read_predictions(path), [QUESTIONS[0], QUESTIONS[2]], IDS)
    assert result.sqls == {"q0": "SELECT 0", "q2": "SELECT 2"}
    assert "1 predictions are for questions that cannot be judged and are skipped (q1)" in result.notes[1]


def test_lines_for_another_set_are_not_column_names(tmp_path: Path) -> None:
    path = tmp_path / "pred.sql"
    assert "3 predictions are for another database (line 1 is for SHOP," in refusal(
        path, "SELECT 1\tSHOP\nSELECT 2\tSHOP\nSELECT 3\tcars\n"
    )
    assert list(pair_file(path, "SELECT 1\tAS b\nSELECT 2\tshop\nSELECT 3\tzoo\n").sqls.values()) == [
        "SELECT 1\tAS b", "SELECT 2", "SELECT 3",
    ]  # fmt: skip


@pytest.mark.parametrize("gold", ["sql", "SQL", "query"])
def test_gold_field_is_not_used_as_the_prediction(gold: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    entries = [{"id": uid, gold: "SELECT gold", "pred_sql": sql} for uid, sql in zip(IDS, SQLS, strict=True)]
    assert list(pair_file(path, json.dumps(entries)).sqls.values()) == SQLS
    table = f"id,{gold},pred_sql\n" + "".join(f"{uid},gold,SELECT {uid}\n" for uid in IDS)
    assert list(pair_file(path, table).sqls.values()) == [f"SELECT {uid}" for uid in IDS]
    vague = [{"id": uid, gold: "SELECT gold", "prediction": "SELECT 1"} for uid in IDS]
    assert f"3 of 3 hold different SQL in {gold} and prediction" in refusal(path, json.dumps(vague))
    answer = refusal(path, table.replace("pred_sql", "prediction"))
    assert f"3 of 3 hold different SQL in {gold.lower()} and prediction (line 2, line 3, line 4)" in answer
    same = [{"id": uid, gold: "SELECT 1", "prediction": "SELECT 1"} for uid in IDS]
    assert list(pair_file(path, json.dumps(same)).sqls.values()) == ["SELECT 1"] * 3


NAMES = ("generated_sql", "predicted_query", "predict_sql", "model_output", "pred_query", "query", "SQL", "Predicted")


@pytest.mark.parametrize("name", NAMES)
def test_two_sql_fields_are_refused_unless_one_is_selected(name: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    entries = [
        {"id": uid, "question": "With?", "sql": "SELECT x", name: sql} for uid, sql in zip(IDS, SQLS, strict=True)
    ]
    whole = json.dumps(entries)
    message = f"hold different SQL in sql and {name} (entry 0, entry 1, entry 2): --field NAME selects"
    assert message in refusal(path, whole)
    assert f"of the fields id, question, sql, {name}" in refusal(path, whole)
    assert list(pair_file(path, whole, name).sqls.values()) == SQLS
    assert list(pair_file(path, whole, "sql").sqls.values()) == ["SELECT x"] * 3
    assert "3 of 3 have no answer (entry 0, entry 1, entry 2)" in refusal(path, whole, "answer")
    fenced = [{**entry, name: "```sql\nSELECT\n  x;\n```", "gold_sql": "SELECT y"} for entry in entries]
    assert list(pair_file(path, json.dumps(fenced)).sqls.values()) == ["SELECT x"] * 3, (
        "the same SQL, and a gold selected by name"
    )
    if name.lower() != "sql":
        table = f"id,sql,{name}\n" + "".join(f"{uid},SELECT x,SELECT y\n" for uid in IDS)
        assert f"3 of 3 hold different SQL in sql and {name.lower()}" in refusal(path, table)
        assert list(pair_file(path, table, name).sqls.values()) == ["SELECT y"] * 3


def test_missing_answers_are_not_filled_with_golds(tmp_path: Path) -> None:
    entries = [{"id": uid, "sql": "SELECT gold", "pred_sql": sql} for uid, sql in zip(IDS, SQLS, strict=True)]
    del entries[1]["pred_sql"]
    message = refusal(tmp_path / "p", json.dumps(entries))
    assert (
        "1 of 3 have no pred_sql (entry 1); --field NAME selects the field of the SQL, of the fields id, sql" in message
    )


def test_golds_are_no_predictions_unless_their_field_is_selected(tmp_path: Path) -> None:
    path, gold = tmp_path / "p", QUESTIONS[0].gold_sql
    for whole in (
        json_lines(*((uid, f"{gold} ;") for uid in IDS)),
        json.dumps(dict.fromkeys(IDS, gold)),
        f"{gold}\n" * 3,
        "id,sql\n" + "".join(f"{uid},{gold}\n" for uid in IDS),
    ):
        assert "3 of 3 texts are the golds themselves" in refusal(path, whole)
        assert "--field sql scores these" in refusal(path, whole)
        assert len(pair_file(path, whole, "sql").sqls) == 3
    assert len(pair_file(path, json_lines((IDS[0], gold), (IDS[1], gold), (IDS[2], "SELECT 1"))).sqls) == 3
    assert "has no field names: --field can only be sql" in refusal(path, f"{gold}\n" * 3, "query")


def test_table_is_not_read_as_lines(tmp_path: Path) -> None:
    """A header and a row for all questions but one have as many lines as there are questions."""
    path = tmp_path / "p.csv"
    for header in ("id,model_sql", "key,answer", "question,my_sql"):
        assert "--field NAME selects the field of the SQL" in refusal(path, f"{header}\nq0,SELECT 1\nq1,SELECT 2\n")
    assert "2 entries without ids for 3 questions" in refusal(path, "sql\nSELECT 1\nSELECT 2\n")
    assert list(pair_file(path, "sql,db_id\nSELECT 1,shop\n,shop\nSELECT 3,zoo\n").sqls.values()) == [
        "SELECT 1", None, "SELECT 3",
    ]  # fmt: skip
    assert "1 predictions are for another database" in refusal(path, "sql,db_id\nSELECT 1,shop\n,zoo\nSELECT 3,zoo\n")
    assert "header repeats sql" in refusal(path, "id,sql,SQL\nq0,a,b\n")
    assert len(pair_file(path, "SELECT a, id\nselect name,id\nWITH x,id\n").sqls) == 3


def test_lines_with_id_tab_and_sql_need_no_header(tmp_path: Path) -> None:
    path, sqls = tmp_path / "p", ["SELECT 1", "(SELECT 2)", "with x as (SELECT 3) select * from x"]
    pairs = zip(IDS[::-1], sqls[::-1], strict=True)
    tabbed = pair_file(path, "".join(f"{uid}\t{sql}\r\n" for uid, sql in pairs))
    assert tabbed.sqls == dict(zip(IDS, sqls, strict=True))
    assert "lines of an id, a tab and SQL, paired by id" in tabbed.notes[0]
    assert "1 of 3 questions have no prediction (q2)" in refusal(path, "q0\tSELECT 1\nq1\tSELECT 2\n")
    assert "3 of 3 texts do not start like SQL" in refusal(
        path, "q0\tSELECT 1\tshop\nq1\tSELECT 1\tshop\nq2\tSELECT 1\tzoo\n"
    )
    assert "for another database (line 1 is for a/0" in refusal(path, "SELECT 1\ta/0\n\ta/1\nSELECT 3\ta/2\n")


OTHER_FORMATS = [
    ("q0: SELECT 1\nq1: SELECT 2\nq2: SELECT 3\n", "3 of 3 texts do not start like SQL (line 1: 'q0: SELECT 1')"),
    ("id|sql\nq0|SELECT 1\nq1|SELECT 2\n", "3 of 3 texts do not start like SQL (line 1: 'id|sql')"),
    ("q0,SELECT 1\nq1,SELECT 2\nq2,SELECT 3\n", "3 of 3 texts do not start like SQL"),
    ("q0;SELECT 1\nq1;SELECT 2\nq2;SELECT 3\n", "3 of 3 texts do not start like SQL"),
    ("   id  sql\n0  q0  SELECT 1\n1  q1  SELECT 2\n", "3 of 3 texts do not start like SQL"),
    ("sep=;\nq0;SELECT 1\nq1;SELECT 2\n", "3 of 3 texts do not start like SQL"),
    ("1. SELECT 1\n2. SELECT 2\n3. SELECT 3\n", "3 of 3 texts do not start like SQL"),
    ("SELECT 1\nFROM t;\nSELECT 2\n", "1 of 3 lines continue a query (line 2)"),
    ("SELECT (\n  SELECT 1\n) AS a\n", "1 of 3 lines continue a query (line 3)"),
    ("SELECT a FROM t\nleft outer join u USING (a)\nSELECT 3\n", "1 of 3 lines continue a query (line 2)"),
    ("```sql\nSELECT 1\n```\n", "2 of 3 lines continue a query (line 1, line 3)"),
    (
        "Predicted SQL\nSELECT 1\nSELECT 2\n",
        "line 1 may be a header, 'Predicted SQL': --field 'Predicted SQL' selects it",
    ),
    (json.dumps(["no", "idea", "SELECT 3"]), "2 of 3 texts do not start like SQL (entry 0: 'no')"),
    (
        json.dumps(dict.fromkeys(IDS, "I do not know.")),
        "a JSON object of ids and SQL, 3 of 3 texts do not start like SQL",
    ),
    (json_lines(*((uid, f"The answer is {uid}.") for uid in IDS)), "JSON lines with ids, 3 of 3 texts do not"),
    (b"PAR1\0\0\0", "a Parquet file: write it as JSON lines"),
    (b"PK\x03\x04\0\0", "a zip archive or an Excel workbook"),
    (b"\x1f\x8b\x08\0", "a gzip file: unpack it"),
]


@pytest.mark.parametrize(("content", "reason"), OTHER_FORMATS)
def test_other_formats_are_refused_with_the_reason(content: str | bytes, reason: str, tmp_path: Path) -> None:
    message = refusal(tmp_path / "p", content)
    assert reason in message
    assert "write it as UTF-8" not in message


def test_texts_without_sql_are_scored_among_sql_or_in_a_selected_field(tmp_path: Path) -> None:
    path = tmp_path / "p"
    assert list(pair_file(path, "SELECT 1\nI do not know.\n/* a */ SELECT 3\n").sqls.values())[1] == "I do not know."
    assert list(pair_file(path, "no\nno idea\nnone\n", "sql").sqls.values()) == ["no", "no idea", "none"]
    assert list(pair_file(path, "Predicted SQL\nSELECT 0\nSELECT 1\nSELECT 2\n", "Predicted SQL").sqls.values()) == [
        "SELECT 0", "SELECT 1", "SELECT 2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index"])
def test_index_without_ids_must_count_the_entries(name: str, tmp_path: Path) -> None:
    def table(*index: object) -> str:
        return f"{name},sql\n" + "".join(f"{value},SELECT {i}\n" for i, value in enumerate(index))

    path = tmp_path / "p"
    for index in ((0, 1, 2), (1, 2, 3)):
        assert list(pair_file(path, table(*index)).sqls.values()) == ["SELECT 0", "SELECT 1", "SELECT 2"]
    for index in (("q2", "q0", "q1"), (2, 0, 1)):
        assert "does not count the entries: rename it to id" in refusal(path, table(*index))


@pytest.mark.parametrize("number", ["2.0", "2e0", "2", '" 2 "'])
def test_whole_numbers_are_ids_in_any_spelling(number: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_text(f'{{"id": {number}, "sql": "SELECT 2"}}\n{{"id": 1, "sql": "SELECT 1"}}\n')
    assert [prediction.uid for prediction in read_predictions(tmp_path / "p").entries] == ["2", "1"]


@pytest.mark.parametrize("value", ["null", "NaN", '""', "[0]", '{"a": 0}', "true", "2.5", "1e16", "Infinity"])
def test_unusable_id_does_not_cause_pairing_by_position(value: str, tmp_path: Path) -> None:
    lines = "".join(f'{{"id": {value}, "sql": "SELECT {i}"}}\n' for i in range(3))
    reason = "have no id" if value in ("null", "NaN", '""') else "have an id that is neither text nor a whole number"
    assert f"3 of 3 {reason}" in refusal(tmp_path / "p", lines)


def test_first_question_of_a_repeated_id_has_its_own_prediction(tmp_path: Path) -> None:
    """BIRD's mini-dev has two repeated ids."""
    path, order = tmp_path / "p", ["q0", "q1", "q1", "q2"]
    sqls = [f"SELECT {i}" for i in range(4)]
    numbered = {str(i): f"{sqls[i]}{BIRD_MARK}{'zoo' if i == 3 else 'shop'}" for i in (2, 3, 0, 1)}
    entries = json.dumps([{"sql": sql} for sql in sqls])
    for content in ("\n".join(sqls), "\n\n".join(sqls), json.dumps(sqls), entries, json.dumps(numbered)):
        path.write_text(content)
        result = pair(read_predictions(path), QUESTIONS, order)
        assert result.sqls == {"q0": "SELECT 0", "q1": "SELECT 1", "q2": "SELECT 3"}
        assert result.notes[-1].endswith("1 ids are shared by several questions, of which the first is judged (q1)")
    path.write_text(json_lines(*zip(IDS, sqls, strict=False)))
    by_id = pair(read_predictions(path), QUESTIONS, order)
    assert by_id.notes[-1].endswith("the first is judged: a prediction may be for another of them (q1)")


def test_submission_lacks_the_second_question_of_a_repeated_id(tmp_path: Path) -> None:
    questions, sqls = (
        [("q0", "shop"), ("q1", "shop"), ("q1", "zoo"), ("q2", "zoo")],
        {"q0": "SELECT 0", "q1": "SELECT 1"},
    )
    for form in ("spider", "bird", "spider2"):
        written = write_submission(form, tmp_path, questions, sqls)
        assert [prediction.uid for prediction in read_predictions(written[0]).entries] == IDS
        if form != "spider2":
            assert [prediction.sql for prediction in read_predictions(written[1]).entries] == [
                "SELECT 0", "SELECT 1", NO_SQL_PLACEHOLDER, NO_SQL_PLACEHOLDER,
            ]  # fmt: skip
    assert (tmp_path / "submission/q1.sql").read_text() == "SELECT 1\n"


def test_missing_or_surplus_predictions_are_refused_or_reported(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    fewer = json_lines(("q0", "SELECT 1"))
    assert "2 of 3 questions have no prediction (q1, q2)" in refusal(path, fewer)
    assert "--allow-missing" in refusal(path, fewer, allow_extra=True)
    result = pair_file(path, fewer, allow_missing=True)
    assert (result.sqls, result.missing) == ({"q0": "SELECT 1"}, ("q1", "q2"))
    more = json_lines(*((f"q{i}", "SELECT 1") for i in range(9)))
    assert "6 of 9 predictions match no question (q3, q4, q5, …)" in refusal(path, more, allow_missing=True)
    assert pair_file(path, more, allow_extra=True).extra == 6
    both = refusal(path, json_lines(("q0", "SELECT 1"), ("x", "SELECT 1")))
    assert "2 of 3 questions" in both
    assert "1 of 2 predictions" in both


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json_lines(("q0", "a"), ("q1", "b"), ("q0", "c")), "1 ids are repeated (q0 at line 1 and line 3)"),
        ('{"q0": "a", "q1": "b", "q0": "c"}', "1 ids are repeated (q0)"),
        (json_lines(("q0", "a")) + "oops\n" + json_lines(("q1", "b")) + "{\n", "2 of 4 lines are not JSON (line 2, "),
        ('[{"id": "q0", "sql": "a"}, 3]', "1 of 2 are not JSON objects (entry 1)"),
        (
            '{"id": "q0", "answer": "a"}\n{"sql": "b"}\n',
            "1 of 2 have no sql or SQL or query (line 1); 1 of 2 have no id",
        ),
        (json_lines(("q0", 7)), "1 of 1 hold SQL that is neither text nor null (line 1)"),
        ('[{"id": "q0"', "not JSON"),
        ('{\n "q0": "a",\n', "not JSON"),
        ('{"q0": {"a": 1}, "q1": "b"}', "1 of 2 ids hold nested JSON instead of SQL (q0)"),
        (b"SELECT 'caf\xe9'\nSELECT 2\nSELECT 3\n", "not UTF-8 in 1 lines (line 1)"),
        ("SELECT 1\nSELECT 2\n".encode("utf-16"), "UTF-16"),
        ("", "no predictions in it"),
        ("\n\n\n", "no predictions in it"),
        ("[]", "no predictions in it"),
        ("id,sql\nq0,SELECT 1, 2\nq1,SELECT 2\n", "1 of 2 rows do not have the 2 columns of the header (line 2)"),
        ("id,sql\nq0,SELECT 1\n,SELECT 2\n", "1 of 2 have no id or question_id or instance_id (line 3)"),
        ('id,sql\nq0,"SELECT 1\n', "not CSV"),
    ],
)
def test_unreadable_file_is_reported_with_counts_and_positions(
    content: str | bytes, message: str, tmp_path: Path
) -> None:
    assert message in refusal(tmp_path / "p", content)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_predictions(tmp_path / "nowhere")
    (tmp_path / "results").mkdir()
    with pytest.raises(InputError, match=r"no <id>\.sql"):
        read_predictions(tmp_path / "results")


@pytest.mark.parametrize("form", ["jsonl", "spider", "bird", "ehrsql", "spider2"])
def test_submission_round_trips(form: str, tmp_path: Path) -> None:
    sqls: dict[str, str | None] = {"q0": "SELECT 1", "q1": "SELECT a,\n\tb -- all; of\nFROM t", "q2": None}
    written = write_submission(form, tmp_path, [(item.uid, item.db_id) for item in QUESTIONS], sqls)
    lines = pair(read_predictions(written[0]), QUESTIONS, IDS).sqls
    assert lines == sqls
    flat = {"q1": "SELECT a, b   FROM t"} if form == "spider" else {}
    again = pair(read_predictions(written[-1]), QUESTIONS, IDS).sqls
    assert again == (sqls if form in ("jsonl", "ehrsql") else {**sqls, **flat, "q2": NO_SQL_PLACEHOLDER})


def test_query_on_one_line_is_equivalent() -> None:
    sql = "SELECT '--' AS \"a\tb\", -- first\n 'x''\ny' /* and\n more */ , [c d]\nFROM (SELECT 1 AS [c d])"
    flat = one_line(sql)
    assert "\n" not in flat
    assert "\t" not in flat
    (item,), (other,) = (sqlite3.connect(":memory:").execute(text).fetchall() for text in (sql, flat))
    assert item == ("--", "x'\ny", 1)
    assert other == ("--", "x' y", 1)
