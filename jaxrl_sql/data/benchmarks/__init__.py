"""Benchmarks: one loader a folder format."""

from __future__ import annotations

from pathlib import Path

from jaxrl_sql.data.benchmarks.folder import Loaded, load_folder

__all__ = ["Loaded", "load_folder", "load_split"]


def load_split(root: str | Path, split: str, limit: int = 0) -> Loaded:
    """Load the set in the folder `root/split`; see `load_folder`."""
    return load_folder(Path(root) / split, limit)
