"""Read prediction files of other systems and pair them with questions, by the executor's reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_sql.text2sql.env import files
from jaxrl_sql.text2sql.env.files import Paired, Prediction, Predictions
from jaxrl_sql.types import Example, InputError


def read_predictions(path: str | Path, field: str = "") -> Predictions:
    """Read a file of predictions; `field` names the field with the SQL ("": found by the reader); raises InputError."""
    with files.reader_errors():
        return files.read_predictions(path, field)


def predictions_of(sqls: Mapping[str, str | None], name: str) -> Predictions:
    """Return predictions from SQL by question id; errors and notes refer to them as `name`.

    Blank SQL counts as no SQL. Raises InputError for an empty mapping or a value that is neither text nor None.
    """
    if not sqls:
        raise InputError(f"{name}: no predictions in it")
    for uid, sql in sqls.items():
        if not (sql is None or isinstance(sql, str)):
            raise InputError(f"{name}: {uid}: {sql!r} is neither SQL nor None")
    texts = {uid: (sql or "").encode("utf-8", errors="replace").decode().strip() for uid, sql in sqls.items()}
    predictions = tuple(Prediction(str(uid), text or None, "", name) for uid, text in texts.items())
    return Predictions(Path(name), "SQL by question id", predictions, is_chosen=True)


def pair(
    predictions: Predictions,
    examples: Sequence[Example],
    order: Sequence[str],
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Paired:
    """Pair predictions with questions; raises InputError if they do not match.

    `order` has the ids of all questions of the benchmark, in the order of its file, for predictions without ids.
    `allow_missing` accepts questions without a prediction, `allow_extra` predictions without a question.
    """
    golds = [
        files.Gold(
            example.uid,
            example.db_id,
            [example.gold_sql, *example.other_golds] if example.answerable else [],
            "",
            example.uid,
        )
        for example in examples
    ]
    with files.reader_errors():
        return files.pair(predictions, golds, order, allow_missing, allow_extra)
