"""Files of golds and predictions in the formats of Spider, BIRD and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs.files import Gold, InputError, read_golds
from sqlexec_rs.pairing import pair
from sqlexec_rs.predictions import read_predictions

MARK = "\t----- bird -----\t"


def write(path: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content, indent=4)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "SELECT 1\tshop\n\nSELECT 'a\tb'\t zoo \n",
            [("0", "SELECT 1", "shop", ""), ("1", "SELECT 'a\tb'", "zoo", "")],
        ),
        (
            [{"question_id": 7, "db_id": "shop", "SQL": "SELECT 1", "difficulty": "simple"}],
            [("7", "SELECT 1", "shop", "simple")],
        ),
        ([{"db_id": "shop", "query": "SELECT 1", "sql": {"from": []}}], [("0", "SELECT 1", "shop", "")]),
        (
            '{"id": "a", "db_id": "s", "sql": "SELECT 1"}\n\n{"id": "b", "db_id": "s", "sql": ["SELECT 2", "SELECT"]}',
            [("a", "SELECT 1", "s", ""), ("b", ["SELECT 2", "SELECT"], "s", "")],
        ),
        ('\ufeff{"id": 3, "db_id": "s", "sql": "SELECT 1"}', [("3", "SELECT 1", "s", "")]),
        ([{"question_id": 2.0, "db_id": "s", "SQL": "SELECT 1"}], [("2", "SELECT 1", "s", "")]),
    ],
)
def test_golds_of_each_format_are_read(tmp_path: Path, content: Any, expected: list[tuple[Any, ...]]) -> None:
    golds = read_golds(write(tmp_path / "gold", content))
    assert [(gold.uid, gold.sql, gold.db_id, gold.difficulty) for gold in golds] == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("SELECT 1\n\nSELECT 2\tshop\n\n", ["SELECT 1", None, "SELECT 2\tshop", None]),
        ({"0": f"SELECT 1{MARK}shop", "1": 0, "2": "SELECT 2"}, ["0:shop:SELECT 1", "1::None", "2::SELECT 2"]),
        (json.dumps({"0": f"SELECT 1{MARK}shop"}), ["0:shop:SELECT 1"]),
        ('{"id": 1, "sql": "SELECT 1"}\n{"id": 2, "sql": null}', ["1::SELECT 1", "2::None"]),
        ('{"id": 1, "sql": "SELECT 1"}', ["1::SELECT 1"]),
        ([{"pred": "SELECT 1"}, {"pred": "SELECT 2", "db_id": "s"}], ["SELECT 1", "SELECT 2"]),
    ],
)
def test_predictions_of_each_format_are_read(tmp_path: Path, content: Any, expected: list[str | None]) -> None:
    predictions = read_predictions(write(tmp_path / "pred", content))
    assert [
        f"{entry.uid}:{entry.db_id}:{entry.sql}" if predictions.has_ids else entry.sql for entry in predictions.entries
    ] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"id": 1, "sql": "SELECT 1"}\n{"id": 2, "sql": }\n',
            r"pred: 1 of 2 lines are not JSON \(line 2\): Expecting value: line 1 column 18",
        ),
        ('{\n"0": "SELECT 1",\n"1": \n}', r"pred: not JSON: Expecting value: line 4"),
        ('[\n{"sql": "SELECT 1"},\n]', r"pred: not JSON: .*line \d"),
        ('{"id": 1, "text": "SELECT 1"}\n{"id": 2, "text": "x"}', r"pred: 2 of 2 have no sql or SQL or query \(line 1"),
        ('{"id": 1, "sql": 3}', r"pred: 1 of 1 hold SQL that is neither text nor null \(line 1\)"),
        ("[3]", r"pred: 1 of 1 are not JSON objects \(entry 0\)"),
        (
            '{"id": 1, "sql": "a"}\n{"id": 1, "sql": "b"}',
            r"1 ids are repeated \(1 at line 1 and line 2\)",
        ),
        ('{"id": 1, "sql": "a"}\n{"sql": "b"}', r"pred: 1 of 2 have no id or question_id or instance_id \(line 2\)"),
        ("", r"pred: no predictions in it"),
    ],
)
def test_a_malformed_prediction_is_reported_with_its_position(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_predictions(write(tmp_path / "pred", content))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("SELECT 1\tshop\nSELECT 2\n", r"gold:2: no tab between the SQL and its database"),
        ('{"id": 1, "sql": "SELECT 1"}', r"gold:1: no db_id"),
        ('[{"db_id": "s", "sql": {}}]', r"gold: entry 0: no SQL under"),
        ('{"a": "b"}', r"gold: entry a: a gold must be a JSON object"),
        (
            [{"id": None, "db_id": "s", "sql": "SELECT 1"}],
            r"gold: entry 0: its id is None, which is neither text nor a w",
        ),
        (
            [{"id": ["a"], "db_id": "s", "sql": "SELECT 1"}],
            r"gold: entry 0: its id is \['a'\], which is neither text nor",
        ),
        ("\n\n", r"gold: no golds"),
    ],
)
def test_a_malformed_gold_is_reported_with_its_position(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_golds(write(tmp_path / "gold", content))


def test_an_unreadable_file_is_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing: No such file"):
        read_golds(tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b"SELECT '\xe9'\tshop")
    with pytest.raises(InputError, match="latin: not UTF-8 at byte 8"):
        read_golds(tmp_path / "latin")


def golds(*uids: str) -> list[Gold]:
    return [Gold(uid, "shop", "SELECT 'right'", "", f"gold:{i}") for i, uid in enumerate(uids)]


def match_predictions(gold: list[Gold], path: Path, content: Any, **options: bool) -> dict[str, str | None]:
    """Return the SQL of each gold's prediction."""
    predictions = read_predictions(write(path, content))
    return pair(predictions, gold, [item.uid for item in gold], **options).sqls


def test_predictions_are_matched_to_golds(tmp_path: Path) -> None:
    path = tmp_path / "pred"
    assert match_predictions(golds("a", "b"), path, {"b": "SELECT 2", "a": "SELECT 1"}) == {
        "a": "SELECT 1",
        "b": "SELECT 2",
    }
    assert match_predictions(golds("a", "b"), path, {"b": "SELECT 2"}, allow_missing=True) == {"b": "SELECT 2"}
    assert match_predictions(golds("a"), path, {"b": "SELECT 2", "a": "SELECT 1"}, allow_extra=True) == {
        "a": "SELECT 1"
    }
    # BIRD numbers its predictions by position, independent of the questions' ids.
    bird = {str(i): f"SELECT {i}{MARK}shop" for i in (2, 0, 1)}
    assert match_predictions(golds("11", "1", "40"), path, bird) == {
        "11": "SELECT 0",
        "1": "SELECT 1",
        "40": "SELECT 2",
    }
    assert match_predictions(golds("1", "0", "2"), path, bird) == {"1": "SELECT 1", "0": "SELECT 0", "2": "SELECT 2"}
    objects = [{"sql": "SELECT 0", "db_id": "shop"}, {"sql": None}]
    assert match_predictions(golds("x", "y"), path, objects) == {"x": "SELECT 0", "y": None}


def test_blank_lines_are_skipped_or_counted(tmp_path: Path) -> None:
    lines = "SELECT 1\n\nSELECT 2\n"
    assert [*match_predictions(golds("0", "1"), tmp_path / "pred", lines).values()] == ["SELECT 1", "SELECT 2"]
    assert [*match_predictions(golds("0", "1", "2"), tmp_path / "pred", lines).values()] == [
        "SELECT 1",
        None,
        "SELECT 2",
    ]


@pytest.mark.parametrize(
    ("uids", "content", "message"),
    [
        ("a", {"x": "SELECT 1"}, "pred: none of its 1 ids is a question's: they are x, and the questions' a"),
        ("0", "SELECT 1\nSELECT 2\n", "pred: 2 lines for 1 questions"),
        ("012", "SELECT 1\nSELECT 2\n", "pred: 2 lines for 3 questions"),
        ("012", [{"sql": "SELECT 1"}, {"sql": "SELECT 2"}], "pred: 2 entries without ids for 3 questions"),
        ("a", [{"id": "a", "sql": "SELECT 1", "db_id": "zoo"}], "entry 0 is for zoo, question a for shop"),
        ("ab", {"a": "SELECT 1"}, "1 of 2 questions have no prediction .b.: --allow-missing"),
        ("a", {"a": "SELECT 1", "b": "SELECT 1"}, "1 of 2 predictions match no question .b.: --allow-extra"),
    ],
)
def test_mismatched_golds_and_predictions_are_refused(tmp_path: Path, uids: str, content: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        match_predictions(golds(*uids), tmp_path / "pred", content)


def test_golds_with_duplicate_ids_are_refused(tmp_path: Path) -> None:
    twice = [{"id": "a", "db_id": "shop", "sql": "SELECT 1"}] * 2
    with pytest.raises(InputError, match=r"gold: 1 ids are repeated \(a\)"):
        read_golds(write(tmp_path / "gold", twice))
