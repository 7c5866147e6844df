"""The reader of prediction files, from the executor's package `sqlexec_rs`, with this package's InputError.

`sqlexec_rs score` and `jaxrl-sql evaluate` both use this reader, so they accept the same files.
"""

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
    "reader_errors",
    "uid_of",
    "whole_number_ids",
]


@contextmanager
def reader_errors() -> Iterator[None]:
    """Convert the reader's errors to this package's InputError."""
    try:
        yield
    except FileError as error:
        raise InputError(str(error)) from error


def uid_of(record: Fields, where: str, keys: Sequence[str] = files.ID_KEYS) -> str:
    """Return a record's id as text, or "" if it has none of the fields `keys`; raises InputError for an invalid id.

    `where` is the place of the record in the error, for example file and line.
    """
    with reader_errors():
        return files.uid_of(record, where, keys)
