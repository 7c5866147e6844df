"""The files that text-to-SQL benchmarks use: golds and predictions, as Spider, BIRD and plain JSON lines write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

BIRD_MARK = "\t----- bird -----\t"
"""Stands between SQL and database in BIRD's predictions."""

_ID_KEYS = ("id", "question_id", "instance_id", "uid")
# Spider's `sql` is a parse tree, and its text stands under `query`: the first that is text counts.
_GOLD_KEYS = ("sql", "SQL", "query", "gold_sql", "gold")
_PREDICTION_KEYS = ("sql", "SQL", "query", "pred_sql", "predicted_sql", "prediction", "pred")


class InputError(Exception):
    """An argument or a file is wrong: one line that says what and where."""


@dataclass(frozen=True)
class Gold:
    """A question's accepted SQL (any may match), its database and, where there is one, its difficulty."""

    uid: str
    db_id: str
    sql: str | list[str]
    difficulty: str
    place: str


@dataclass(frozen=True)
class Prediction:
    """A predicted SQL; without `uid` it is known by its place in the file. `db_id` is there to be checked."""

    uid: str | None
    sql: str | None
    db_id: str | None
    place: str


class _Entry(NamedTuple):
    place: str
    content: Any


def read_golds(path: Path) -> list[Gold]:
    """Read JSON or JSON lines with `db_id` and `sql`, `SQL` or `query`; or lines of SQL, tab, db_id.

    Raises InputError.
    """
    golds: list[Gold] = []
    for number, (place, content) in enumerate(_entries(path)):
        if isinstance(content, str):
            if not content.strip():
                continue
            sql, tab, db_id = content.rpartition("\t")
            if not tab:
                raise InputError(f"{place}: no tab between the SQL and its database")
            golds.append(Gold(str(len(golds)), db_id.strip(), sql.strip(), "", place))
        else:
            if not isinstance(content, dict):
                raise InputError(f"{place}: a gold must be a JSON object")
            if not isinstance(content.get("db_id"), str):
                raise InputError(f"{place}: no db_id")
            uid = _uid(content)
            gold_sql = _gold_sql(content, place)
            difficulty = content.get("difficulty") or content.get("hardness") or ""
            golds.append(Gold(str(number) if uid is None else uid, content["db_id"], gold_sql, str(difficulty), place))
    if not golds:
        raise InputError(f"{path}: no golds")
    return golds


def read_predictions(path: Path) -> list[Prediction]:
    """Read JSON or JSON lines with `sql` and perhaps `id`, BIRD's JSON object, or one SQL a line.

    Raises InputError.
    """
    predictions = []
    for place, content in _entries(path):
        if isinstance(content, str):
            predictions.append(Prediction(None, content.split("\t")[0].strip(), None, place))
        elif isinstance(content, tuple):
            uid, text = content
            # BIRD's own scripts write a number where a model gave nothing.
            sql, _, db_id = text.partition(BIRD_MARK) if isinstance(text, str) else (None, "", "")
            predictions.append(Prediction(uid, sql, db_id.strip() or None, place))
        else:
            predictions.append(_prediction(content, place))
    if predictions and len({prediction.uid is None for prediction in predictions}) > 1:
        raise InputError(f"{path}: some predictions have an id and some have none")
    seen: dict[str | None, str] = {}
    for prediction in predictions:
        if prediction.uid is not None and seen.setdefault(prediction.uid, prediction.place) != prediction.place:
            raise InputError(f"{prediction.place}: id {prediction.uid} stands at {seen[prediction.uid]} already")
    return predictions


def match(golds: Sequence[Gold], predictions: Sequence[Prediction], path: Path) -> tuple[list[Prediction | None], str]:
    """Find the prediction of each gold: by id, or by place where ids are numbers of another kind or there are none.

    Returns them in the order of the golds (None where there is none) and a note about what did not match, or "". Raises
    InputError when they cannot belong together.
    """
    by_place: Sequence[Prediction] = predictions
    uids = {gold.uid for gold in golds}
    if predictions and predictions[0].uid is not None:
        mine = {prediction.uid: prediction for prediction in predictions}
        places = {str(number) for number in range(len(golds))}
        if not mine.keys() <= uids and mine.keys() <= places:
            found = [mine.get(str(number)) for number in range(len(golds))]
        elif mine.keys() & uids:
            if len(uids) < len(golds):
                raise InputError(f"{golds[0].place.partition(':')[0]}: two golds have the same id")
            found = [mine.get(gold.uid) for gold in golds]
        else:
            raise InputError(f"{path}: no id is one of the golds'; the first is {predictions[0].uid}")
        n_unknown = len(predictions) - sum(prediction is not None for prediction in found)
    else:
        if len([prediction for prediction in predictions if prediction.sql]) == len(golds):
            by_place = [prediction for prediction in predictions if prediction.sql]  # Spider skips blank lines
        if len(by_place) > len(golds):
            raise InputError(f"{path}: {len(by_place)} predictions for {len(golds)} golds")
        found = [*by_place, *[None] * (len(golds) - len(by_place))]
        n_unknown = 0
    for gold, prediction in zip(golds, found, strict=True):
        if prediction is not None and prediction.db_id not in {None, gold.db_id}:
            raise InputError(f"{prediction.place}: is for {prediction.db_id}, but {gold.place} is for {gold.db_id}")
    n_missing = sum(prediction is None for prediction in found)
    notes = [f"{n_missing} of {len(golds)} predictions are missing and count as wrong"] if n_missing else []
    notes += [f"{n_unknown} predictions are for no gold and are left out"] if n_unknown else []
    return found, "; ".join(notes)


def _entries(path: Path) -> list[_Entry]:
    """Return the file's entries with their places: objects, (key, value) pairs of one object, or lines of text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    first = text.lstrip()[:1]
    if first == "[":
        return [_Entry(f"{path}: entry {number}", one) for number, one in enumerate(_parse(text, path, 1))]
    if first != "{":
        return [_Entry(f"{path}:{number}", line.strip("\r\n ")) for number, line in enumerate(lines, 1)]
    try:
        whole = json.loads(text)
    except ValueError:
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if numbered[0][1].strip() == "{":  # one object over many lines, and broken
            _parse(text, path, 1)
        return [_Entry(f"{path}:{number}", _parse(line, path, number)) for number, line in numbered]
    if any(key in whole for key in (*_PREDICTION_KEYS, *_GOLD_KEYS)):
        return [_Entry(f"{path}:1", whole)]  # JSON lines, of one line
    return [_Entry(f"{path}: entry {key}", one) for key, one in zip(whole, whole.items(), strict=True)]


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{line + error.lineno - 1}: not JSON: {error.msg} at column {error.colno}") from None


def _uid(content: dict[str, Any]) -> str | None:
    return next((str(content[key]) for key in _ID_KEYS if content.get(key) is not None), None)


def _gold_sql(content: dict[str, Any], place: str) -> str | list[str]:
    for key in _GOLD_KEYS:
        sql = content.get(key)
        if isinstance(sql, str):
            return sql
        if isinstance(sql, list) and sql and all(isinstance(one, str) for one in sql):
            return sql
    raise InputError(f"{place}: no SQL under {', '.join(_GOLD_KEYS)}")


def _prediction(content: Any, place: str) -> Prediction:
    if not isinstance(content, dict):
        raise InputError(f"{place}: a prediction must be a JSON object")
    key = next((key for key in _PREDICTION_KEYS if key in content), None)
    if key is None:
        raise InputError(f"{place}: no SQL under {', '.join(_PREDICTION_KEYS)}")
    sql = content[key]
    if not isinstance(sql, str | None):
        raise InputError(f"{place}: {key} must be text or null")
    db_id = content.get("db_id")
    return Prediction(_uid(content), sql, db_id if isinstance(db_id, str) else None, place)
