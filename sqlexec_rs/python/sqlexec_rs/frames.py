"""Data frames of results. pandas and polars are optional and imported on use."""

from __future__ import annotations

import importlib
from typing import Any


def to_pandas(columns: list[tuple[str, str, Any, Any]]) -> Any:
    """Return a pandas.DataFrame of columns given as (name, Arrow type, values, mask of NULLs or None).

    Integers are int64, or Int64 with NULLs; reals are float64 with NaN for NULL; text has pandas' default string type;
    blobs and columns with only NULLs are objects. Names may repeat.
    """
    pandas = _need("pandas")
    series = {}
    for number, (_, kind, values, mask) in enumerate(columns):
        if kind == "int64" and mask is not None:
            series[number] = pandas.Series(pandas.arrays.IntegerArray(values, mask))
        elif kind == "float64" and mask is not None:
            values[mask] = float("nan")
            series[number] = pandas.Series(values)
        else:
            series[number] = pandas.Series(values, dtype=object if kind in {"null", "large_binary"} else None)
    frame = pandas.DataFrame(series)
    frame.columns = [name for name, *_ in columns]
    return frame


def to_polars(table: Any) -> Any:
    """Return a polars.DataFrame of an object with Arrow data, whose names must be unique."""
    return _need("polars").DataFrame(table)


def _need(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"to_{library}() needs {library}: pip install {library}") from error
