"""The files of a model on the Hugging Face hub that are downloaded and uploaded."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from jaxrl_sql.config.reading import PROMPT_FILE

DESCRIPTIVE_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "README.md", PROMPT_FILE)
"""Patterns of the files that describe a model: configuration, tokenizer, templates and model card."""
WEIGHTS = "*.safetensors"
"""Pattern of the files with a model's weights."""
DUPLICATES = ("consolidated*.safetensors",)
"""Patterns of files that repeat the weights under other tensor names."""


def is_wanted(file: str, with_weights: bool) -> bool:
    """Return whether a file of a repository is downloaded: a descriptive file or weights, in no subfolder."""
    patterns = (*DESCRIPTIVE_FILES, WEIGHTS) if with_weights else DESCRIPTIVE_FILES
    is_matching = any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)
    return is_matching and "/" not in file and not any(fnmatch.fnmatchcase(file, pattern) for pattern in DUPLICATES)


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
