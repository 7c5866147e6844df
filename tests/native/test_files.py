"""Files of golds and predictions as Spider, BIRD and others write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs.files import Gold, InputError, Prediction, match, read_golds, read_predictions

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
    ],
)
def test_golds_of_every_form(tmp_path: Path, content: Any, expected: list[tuple[Any, ...]]) -> None:
    golds = read_golds(write(tmp_path / "gold", content))
    assert [(gold.uid, gold.sql, gold.db_id, gold.difficulty) for gold in golds] == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("SELECT 1\n\nSELECT 2\tshop\n\n", [(None, "SELECT 1", None), (None, "", None), (None, "SELECT 2", None)]),
        (
            {"0": f"SELECT 1{MARK}shop", "1": 0, "2": "SELECT 2"},
            [("0", "SELECT 1", "shop"), ("1", None, None), ("2", "SELECT 2", None)],
        ),
        (json.dumps({"0": f"SELECT 1{MARK}shop"}), [("0", "SELECT 1", "shop")]),
        ('{"id": 1, "sql": "SELECT 1"}\n{"id": 2, "sql": null}', [("1", "SELECT 1", None), ("2", None, None)]),
        ('{"id": 1, "sql": "SELECT 1"}', [("1", "SELECT 1", None)]),
        (
            [{"pred": "SELECT 1"}, {"pred": "SELECT 2", "db_id": "s"}],
            [(None, "SELECT 1", None), (None, "SELECT 2", "s")],
        ),
        ("", []),
    ],
)
def test_predictions_of_every_form(tmp_path: Path, content: Any, expected: list[tuple[Any, ...]]) -> None:
    predictions = read_predictions(write(tmp_path / "pred", content))
    assert [(one.uid, one.sql, one.db_id) for one in predictions] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "sql": "SELECT 1"}\n{"id": 2, "sql": }\n', r"pred:2: not JSON: Expecting value at column 18"),
        ('{\n"0": "SELECT 1",\n"1": \n}', r"pred:4: not JSON"),
        ('[\n{"sql": "SELECT 1"},\n]', r"pred:\d: not JSON"),
        ('{"id": 1, "text": "SELECT 1"}\n{"id": 2, "text": "x"}', r"pred:1: no SQL under sql, SQL"),
        ('{"id": 1, "sql": 3}', r"pred:1: sql must be text or null"),
        ("[3]", r"pred: entry 0: a prediction must be a JSON object"),
        ('{"id": 1, "sql": "a"}\n{"id": 1, "sql": "b"}', r"pred:2: id 1 stands at .*pred:1 already"),
        ('{"id": 1, "sql": "a"}\n{"sql": "b"}', r"pred: some predictions have an id and some have none"),
    ],
)
def test_a_malformed_prediction_says_where(tmp_path: Path, content: str, message: str) -> None:
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
        ("\n\n", r"gold: no golds"),
    ],
)
def test_a_malformed_gold_says_where(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_golds(write(tmp_path / "gold", content))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing: No such file"):
        read_golds(tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b"SELECT '\xe9'\tshop")
    with pytest.raises(InputError, match="latin: not UTF-8 at byte 8"):
        read_golds(tmp_path / "latin")


def golds(*uids: str) -> list[Gold]:
    return [Gold(uid, "shop", "SELECT 1", "", f"gold:{i}") for i, uid in enumerate(uids)]


def predictions(*uids: str | None, sql: str = "SELECT 1", db_id: str | None = None) -> list[Prediction]:
    return [Prediction(uid, sql, db_id, f"pred:{i}") for i, uid in enumerate(uids)]


def matched(gold: list[Gold], predicted: list[Prediction]) -> tuple[list[int | None], str]:
    """Return the place of each gold's prediction, and the note."""
    found, note = match(gold, predicted, Path("pred"))
    return [None if one is None else predicted.index(one) for one in found], note


def test_predictions_find_their_golds() -> None:
    assert matched(golds("a", "b"), predictions("b", "a")) == ([1, 0], "")
    assert matched(golds("a", "b"), predictions("b")) == (
        [None, 0],
        "1 of 2 predictions are missing and count as wrong",
    )
    assert matched(golds("a"), predictions("b", "a")) == ([1], "1 predictions are for no gold and are left out")
    # BIRD numbers its predictions by place, whatever the questions' own numbers are.
    assert matched(golds("11", "1", "40"), predictions("2", "0", "1")) == ([1, 2, 0], "")
    assert matched(golds("1", "0"), predictions("0", "1")) == ([1, 0], "")
    assert matched(golds("0", "1", "2"), predictions(None, None))[0] == [0, 1, None]
    assert matched(golds("0"), [])[0] == [None]


def test_blank_lines_are_skipped_as_spider_does_or_count() -> None:
    blank = Prediction(None, "", None, "pred:9")
    one, two = predictions(None, None)
    assert matched(golds("0", "1"), [one, blank, two])[0] == [0, 2]
    assert matched(golds("0", "1", "2"), [one, blank, two])[0] == [0, 1, 2]


def test_what_cannot_belong_together_is_refused() -> None:
    with pytest.raises(InputError, match="pred: no id is one of the golds'; the first is x"):
        match(golds("a"), predictions("x"), Path("pred"))
    with pytest.raises(InputError, match="pred: 2 predictions for 1 golds"):
        match(golds("0"), predictions(None, None), Path("pred"))
    with pytest.raises(InputError, match="pred:0: is for zoo, but gold:0 is for shop"):
        match(golds("a"), predictions("a", db_id="zoo"), Path("pred"))
    with pytest.raises(InputError, match="two golds have the same id"):
        match(golds("a", "a"), predictions("a"), Path("pred"))
