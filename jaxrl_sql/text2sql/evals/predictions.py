"""Predictions that others wrote, read and paired with a benchmark's questions by the executor's own reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.text2sql.env import files
from jaxrl_sql.text2sql.env.files import Paired, Predictions
from jaxrl_sql.types import Example


def read_predictions(path: str | Path, field: str = "") -> Predictions:
    """Read a file of predictions, its SQL from `field` where one is named; raises InputError."""
    with files.told_as_ours():
        return files.read_predictions(path, field)


def pair(
    made: Predictions,
    examples: Sequence[Example],
    order: Sequence[str],
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Paired:
    """Pair a file of predictions with questions; `order` are the ids of all of a benchmark's; raises InputError."""
    golds = [
        files.Gold(one.uid, one.db_id, [one.gold_sql, *one.other_golds] if one.answerable else [], "", one.uid)
        for one in examples
    ]
    with files.told_as_ours():
        return files.pair(made, golds, order, allow_missing, allow_extra)
