"""Detect the format of a folder and locate the requested split.

A format is the layout in which a benchmark is published. `plain` is this project's layout, and `own` a user's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.bird import BIRD
from jaxrl_sql.text2sql.benchmarks.defog import DEFOG
from jaxrl_sql.text2sql.benchmarks.ehrsql import EHRSQL, is_split_folder
from jaxrl_sql.text2sql.benchmarks.folder import PLAIN
from jaxrl_sql.text2sql.benchmarks.gather import Format, join_names
from jaxrl_sql.text2sql.benchmarks.lines import OWN, SYNSQL, is_question_file, missing_fields, split_files
from jaxrl_sql.text2sql.benchmarks.others import KAGGLE, SCIENCE
from jaxrl_sql.text2sql.benchmarks.spider import ARCHER, SPIDER, SPIDER_DK, SPIDER_REALISTIC, SPIDER_SYN
from jaxrl_sql.text2sql.benchmarks.spider2 import SPIDER2
from jaxrl_sql.types import InputError

# The first match counts, so formats with a distinctive file or field come first.
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        PLAIN,
        SPIDER2,
        SPIDER_DK,
        SPIDER_REALISTIC,
        SPIDER_SYN,
        ARCHER,
        BIRD,
        EHRSQL,
        KAGGLE,
        SCIENCE,
        SPIDER,
        DEFOG,
        SYNSQL,
        OWN,
    )
}
USER_FORMATS = (PLAIN.name, SYNSQL.name, OWN.name)
"""The formats of files that users write, whose databases may be on a server."""

# If no format matches, the message describes the files of these formats and only names the others.
_GENERAL = (PLAIN.name, OWN.name)
# A folder with more subfolders contains databases, not sets; its subfolders are not searched.
_MAX_SETS = 32


def format_of(folder: Path) -> Format | None:
    """Return the format of a folder or a user's file; None if unknown."""
    if folder.is_file():
        return next((form for form in (DEFOG, OWN) if form.matches(folder)), None)
    return next((form for form in FORMATS.values() if form.matches(folder)), None) if folder.is_dir() else None


def locate_benchmark(folder: Path, split: str) -> tuple[Format, Path, str]:
    """Return the format of a set, its folder, and the split to read there ("" for the format's default).

    In this order, the set is the subfolder `<folder>/<split>`, the folder itself, or the only set in its subfolders.
    Subfolders are searched up to two levels down. `dev` matches a folder `dev_20240627`, unless a file next to it has
    the name `dev`. Raises InputError for a missing folder and an unknown format.
    """
    if not folder.exists():
        raise InputError(f"{folder}: no such {'file' if is_question_file(folder) else 'folder'}")
    if is_split_folder(folder):  # EHRSQL's splits are folders, so the set is the parent
        return EHRSQL, folder.parent, split or folder.name
    for level in _levels(folder):
        inside = [
            inner
            for inner in level
            if not (split and _is_shadowed_by_file(inner, split)) and not is_split_folder(inner)
        ]
        named = [inner for inner in inside if split and (inner.name == split or inner.name.startswith(f"{split}_"))]
        for path in sorted(named, key=lambda inner: inner.name != split):  # the exact name first
            if form := format_of(path):
                return form, path, "" if form is PLAIN else _split_in_subfolder(form, path, split)
        if form := format_of(folder):
            return form, folder, split
        candidates = [(form, inner) for inner in inside if (form := format_of(inner))]
        # A plain set is only a split of its parent folder, so it must be named.
        if len(candidates) == 1 and candidates[0][0] is not PLAIN:
            return candidates[0][0], candidates[0][1], split
        if candidates:
            names = [str(inner.relative_to(folder)) for _, inner in candidates]
            raise InputError(_not_found_message(folder, split, names))
    raise InputError(_not_found_message(folder, split, []))


def _levels(folder: Path) -> Iterator[list[Path]]:
    """Yield the subfolders of a folder, then those one level down, without folders of databases."""
    inner = _folders(folder)
    yield inner
    yield [
        deeper for parent in inner if len(inner_folders := _folders(parent)) <= _MAX_SETS for deeper in inner_folders
    ]


def _is_shadowed_by_file(path: Path, split: str) -> bool:
    """Return whether a folder's name only starts with the split, while a sibling file has the split's name."""
    parents = (path.parent, path.parent / "data")
    return path.name.startswith(f"{split}_") and any(split_files(parent, split) for parent in parents)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _split_in_subfolder(form: Format, path: Path, split: str) -> str:
    """Return the split to read in a folder named after a split: that split if it exists there, else the default."""
    try:
        form.read(path, split, [])
    except InputError:
        return ""
    return split


def _not_found_message(folder: Path, split: str, sets: list[str]) -> str:
    """Return the error for a folder without a known format; `sets` are its subfolders that have one."""
    if sets:
        missing = f"no set or split {split!r} is in it; " if split else ""
        return f"{folder}: {missing}sets are in the folders {join_names(sets)}: name one of them"
    where = f"{folder}/{split}" if split else str(folder)
    if folder.is_file():
        return (
            f"{folder}: a folder is required, not a file: put questions next to their database, {OWN.description}; "
            "`jaxrl-sql data synth --db FILE --out FOLDER` generates questions for a database"
        )
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    content = f"it holds {join_names(names)}" if names else "it is empty"
    if missing := missing_fields(folder, split):
        content += f"; {missing}"
    return (
        f"{where}: no questions in a known format: {content}. Expected {PLAIN.description}; for your own "
        f"file, {OWN.description}; or the files of {', '.join(form for form in FORMATS if form not in _GENERAL)} "
        "(see docs/reference/datasets.md)"
    )
