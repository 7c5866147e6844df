"""Data frames of results. pandas and polars are imported when they are asked for, and are no dependencies."""

from __future__ import annotations

import importlib
from typing import Any


def to_pandas(columns: list[tuple[str, str, Any, Any]]) -> Any:
    """Make a pandas.DataFrame of (name, Arrow type, values, mask of NULLs or None) a column.

    Integers are int64, or Int64 where there are NULLs; reals are float64 with NaN for NULL; text is pandas' own string
    type; blobs and columns of NULLs alone are objects. Names may repeat.
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
    """Make a polars.DataFrame of an object with Arrow data, whose names must differ."""
    return _need("polars").DataFrame(table)


def _need(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"to_{library}() needs {library}: pip install {library}") from error
