"""Which format a folder has, and in which of its folders the asked-for split is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.bird import BIRD
from jaxrl_sql.text2sql.benchmarks.defog import DEFOG
from jaxrl_sql.text2sql.benchmarks.ehrsql import EHRSQL, is_split_folder
from jaxrl_sql.text2sql.benchmarks.folder import PLAIN
from jaxrl_sql.text2sql.benchmarks.gather import Format, listed
from jaxrl_sql.text2sql.benchmarks.lines import OWN, SYNSQL, called_as, lacking
from jaxrl_sql.text2sql.benchmarks.others import KAGGLE, SCIENCE
from jaxrl_sql.text2sql.benchmarks.spider import ARCHER, SPIDER, SPIDER_DK, SPIDER_REALISTIC, SPIDER_SYN
from jaxrl_sql.text2sql.benchmarks.spider2 import SPIDER2
from jaxrl_sql.types import InputError

# The first that finds itself is taken: those with a mark of their own come before those without.
FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
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
# What is said whole where no format is found.
_GENERAL = (PLAIN.name, OWN.name)
# A folder of more folders than this holds databases, and is not looked through for sets.
_FEW = 32


def format_of(folder: Path) -> Format | None:
    """Return the format of a folder, or of a user's own file; None where it has none."""
    if folder.is_file():
        return next((form for form in (DEFOG, OWN) if form.finds(folder)), None)
    return next((form for form in FORMATS.values() if form.finds(folder)), None) if folder.is_dir() else None


def located(folder: Path, split: str) -> tuple[Format, Path, str]:
    """Return (format, folder, split): the split may be a folder in this one, and a set the only one in a folder.

    So `<root>/<split>` is a split's folder, `dev` is found in `dev_20240627` unless a file beside that is called `dev`,
    and an archive's one folder is entered, and those in it. Raises InputError, of a screen at most, for a folder that
    is not there or of no known format.
    """
    if not folder.exists():
        raise InputError(f"{folder}: no such folder")
    if is_split_folder(folder):
        return EHRSQL, folder.parent, split or folder.name
    for level in _levels(folder):
        places = [one for one in level if not (split and _gives_way(one, split)) and not is_split_folder(one)]
        named = [one for one in places if split and (one.name == split or one.name.startswith(f"{split}_"))]
        for place in sorted(named, key=lambda one: one.name != split):
            if form := format_of(place):
                return form, place, "" if form is PLAIN else _own_split(form, place, split)
        if form := format_of(folder):
            return form, folder, split
        there = [(form, one) for one in places if (form := format_of(one))]
        if len(there) == 1 and there[0][0] is not PLAIN:
            return there[0][0], there[0][1], split
        if there:
            raise InputError(_told(folder, split, [str(one.relative_to(folder)) for _, one in there]))
    raise InputError(_told(folder, split, []))


def _levels(folder: Path) -> Iterator[list[Path]]:
    """Yield the folders in a folder, and then those in them; those of databases are as many as databases."""
    inner = _folders(folder)
    yield inner
    yield [deeper for one in inner if len(found := _folders(one)) <= _FEW for deeper in found]


def _gives_way(place: Path, split: str) -> bool:
    """Return whether a folder only begins as a split is called, and files beside it are called as the split."""
    beside = (place.parent, place.parent / "data")
    return place.name.startswith(f"{split}_") and any(called_as(one, split) for one in beside)


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def _own_split(form: Format, place: Path, split: str) -> str:
    """Return the split to read in a folder that is called as one: that one, or else the usual one."""
    try:
        form.reads(place, split, [])
    except InputError:
        return ""
    return split


def _told(folder: Path, split: str, sets: list[str]) -> str:
    if sets:
        lacks = f"no set or split {split!r} is in it; " if split else ""
        return f"{folder}: {lacks}sets are in the folders {listed(sets)}: name one of them"
    where = f"{folder}/{split}" if split else str(folder)
    if folder.is_file():
        return (
            f"{folder}: is a file, and data is a folder: put questions beside their database, {OWN.expects}; "
            "`jaxrl-sql data synth --db FILE --out FOLDER` asks questions of a database that has none"
        )
    there = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    holds = f"it holds {listed(there)}" if there else "it is empty"
    if lacks := lacking(folder, split):
        holds += f"; {lacks}"
    return (
        f"{where}: no questions in a format that is known: {holds}. Looked for {PLAIN.expects}; for a file of one's "
        f"own, {OWN.expects}; and for the files of {', '.join(form for form in FORMATS if form not in _GENERAL)}, "
        "which docs/reference/datasets.md names"
    )
