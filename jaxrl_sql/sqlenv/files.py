"""The executor's reader of predictions, for others here: one reader, so that both commands say the same of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxrl_sql.types import InputError
from sqlexec_rs.files import Gold, cases
from sqlexec_rs.files import InputError as FileError
from sqlexec_rs.pairing import Paired, pair
from sqlexec_rs.predictions import BIRD_MARK, Prediction, Predictions, read_predictions

__all__ = [
    "BIRD_MARK",
    "Gold",
    "Paired",
    "Prediction",
    "Predictions",
    "cases",
    "pair",
    "read_predictions",
    "told_as_ours",
]


@contextmanager
def told_as_ours() -> Iterator[None]:
    """Turn the reader's error about a file into the one that our commands tell."""
    try:
        yield
    except FileError as error:
        raise InputError(str(error)) from error
