"""The files of a model on the Hugging Face hub that are downloaded and uploaded."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from jaxrl_sql.config.reading import PROMPT_FILE

DESCRIPTIVE_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "README.md", PROMPT_FILE)
"""Patterns of a model's files except its weights."""
WEIGHTS = "*.safetensors"
DUPLICATES = ("consolidated*.safetensors",)
"""Patterns of files that repeat the weights under other tensor names."""


def is_wanted(file: str, with_weights: bool) -> bool:
    """Return whether a file of a repository is downloaded: one of its root that describes the model, or weights."""
    kinds = (*DESCRIPTIVE_FILES, WEIGHTS) if with_weights else DESCRIPTIVE_FILES
    is_kind = any(fnmatch.fnmatchcase(file, kind) for kind in kinds)
    return is_kind and "/" not in file and not any(fnmatch.fnmatchcase(file, kind) for kind in DUPLICATES)


def is_complete(folder: Path, with_weights: bool) -> bool:
    """Return whether a folder has a configuration and, if wanted, all files of its weights."""
    index = folder / "model.safetensors.index.json"
    if not (folder / "config.json").is_file():
        return False
    if not with_weights:
        return True
    if not index.is_file():
        return any(folder.glob(WEIGHTS))
    shards = re.findall(r'"([^"/]+\.safetensors)"', index.read_text(encoding="utf-8"))
    return all((folder / shard).is_file() for shard in shards)
