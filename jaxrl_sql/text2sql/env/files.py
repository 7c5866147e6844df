"""The executor's reader of predictions, for others here: one reader, so that both commands say the same of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxrl_sql.types import Fields, InputError
from sqlexec_rs import files
from sqlexec_rs.files import ID_KEYS, Gold, cases, id_values, is_blank, whole_number_ids
from sqlexec_rs.files import InputError as FileError
from sqlexec_rs.pairing import Paired, pair
from sqlexec_rs.predictions import BIRD_MARK, Prediction, Predictions, read_predictions

__all__ = [
    "BIRD_MARK",
    "ID_KEYS",
    "Gold",
    "Paired",
    "Prediction",
    "Predictions",
    "cases",
    "id_values",
    "is_blank",
    "pair",
    "read_predictions",
    "told_as_ours",
    "uid_of",
    "whole_number_ids",
]


@contextmanager
def told_as_ours() -> Iterator[None]:
    """Turn the reader's error about a file into the one that our commands tell."""
    try:
        yield
    except FileError as error:
        raise InputError(str(error)) from error


def uid_of(record: Fields, place: str, keys: Sequence[str] = files.ID_KEYS) -> str:
    """Return a record's id as text, or nothing if it has no id field; raises InputError for a field without an id."""
    with told_as_ours():
        return files.uid_of(record, place, keys)
