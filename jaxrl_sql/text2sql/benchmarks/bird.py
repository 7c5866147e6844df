"""BIRD (Li et al. 2023) in its published layout: dev, mini-dev and train.

`dev.json`, `mini_dev_sqlite.json` (`mini_dev_postgresql.json` and `mini_dev_mysql.json` for servers) and `train.json`
are lists of objects with `db_id`, `question`, `evidence` and `SQL`. All but train have `question_id` and `difficulty`.
Databases are `<split>_databases/<db_id>/<db_id>.sqlite`, with `database_description/<table>.csv` next to each.
"""

from __future__ import annotations

from pathlib import Path

from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.text2sql.benchmarks.databases import Databases, sibling_folders
from jaxrl_sql.text2sql.benchmarks.files import Notes, compare_golds, first_record, read_records
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    id_or_default,
    item_of,
    missing_split_error,
    server_fields,
    text_field,
)
from jaxrl_sql.types import InputError

# By split: the folders of databases and the published lists of golds, each in order of search.
_MINI_DEV = ("dev_databases", "mini_dev_databases", "databases")
_DATABASES = {
    "dev": ("dev_databases", "databases"),
    "mini_dev": _MINI_DEV,
    "mini_dev_postgresql": _MINI_DEV,
    "mini_dev_mysql": _MINI_DEV,
    "train": ("train_databases", "databases"),
    "test": ("test_databases", "databases"),
}
_GOLDS = {
    "dev": ("dev.sql", "dev_gold.sql"),
    "mini_dev": ("mini_dev_sqlite_gold.sql",),
    "mini_dev_postgresql": ("mini_dev_postgresql_gold.sql",),
    "mini_dev_mysql": ("mini_dev_mysql_gold.sql",),
    "train": ("train_gold.sql", "train.sql"),
    "test": ("test_gold.sql",),
}


def _questions(folder: Path) -> dict[str, Path]:
    """Return the question files of a folder by split; later dev sets have a date in their name."""
    dated = sorted(folder.glob("dev_20*.json"))
    candidates = {
        "dev": [folder / "dev.json", *reversed(dated)],
        "mini_dev": [folder / "mini_dev_sqlite.json"],
        "mini_dev_postgresql": [folder / "mini_dev_postgresql.json"],
        "mini_dev_mysql": [folder / "mini_dev_mysql.json"],
        "train": [folder / "train.json"],
        "test": [folder / "test.json"],
    }
    paths_by_split = {
        split: next((path for path in paths if path.is_file()), None) for split, paths in candidates.items()
    }
    return {split: path for split, path in paths_by_split.items() if path is not None}


def _others(folder: Path) -> dict[str, Path]:
    """Return the files of other versions of BIRD's sets by name: later revisions, filtered and verified ones."""
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")])
    # A file from the Hugging Face hub may be a shard, such as dev-00000-of-00001.json.
    named = {path.stem.partition("-00000-of-")[0]: path for path in paths}
    return {name: path for name, path in named.items() if {"SQL", "evidence", "db_id"} <= first_record(path).keys()}


def is_bird(folder: Path) -> bool:
    """Return whether a folder contains BIRD: questions with the fields `SQL` and `evidence`."""
    records = [first_record(path) for path in _questions(folder).values()]
    return any("SQL" in record and "evidence" in record for record in records)


def read_bird(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a split of BIRD: dev (default), mini_dev, mini_dev_postgresql, mini_dev_mysql, train or test.

    The name of any other file with BIRD's fields is a split, too.
    """
    packed = sorted(folder.glob("*_databases.zip"))
    if packed and not any(folder.glob("*_databases/")):
        raise InputError(f"{packed[0]}: unpack it here first; databases are expected in {packed[0].with_suffix('')}")
    available = _questions(folder)
    chosen = split.replace("-", "_") or next(iter(available))
    if chosen not in available:
        available = {**available, **_others(folder)}
        chosen = split
    if chosen not in available:
        raise missing_split_error(folder, split, available)
    path = available[chosen]
    records = read_records(path, notes)
    more = server_fields(chosen.removeprefix("mini_dev_"))  # empty unless postgresql or mysql remains
    items = []
    for number, record in enumerate(records):
        uid = id_or_default(record, f"bird_{chosen}_{number}", path, "question_id", "id")
        sql = text_field(record, "SQL", "sql", "query")
        item = item_of(record, uid, sql, evidence=("evidence", "hint"), difficulty=("difficulty",))
        items.append(item._replace(more=more))
    for name in _GOLDS.get(chosen, ()):
        if (folder / name).is_file():
            golds = [(item.uid, item.sql, item.db_id) for item in items]
            compare_golds(folder / name, golds, path.name, notes)
    _note_ties(folder / "dev_tied_append.json", items, notes)
    names = _DATABASES.get(chosen) or _DATABASES["train" if "train" in chosen else "dev"]
    # mini-dev may come without databases, as it uses dev's.
    folders = [folder / name for name in names]
    databases = Databases([*folders, *sibling_folders(folder, names[:1])])
    if not any(path.is_dir() for path in folders) and databases.roots:
        notes.append(f"{folders[0]} is missing: using the databases in {databases.roots[0]}")
    _note_descriptions(databases, {item.db_id for item in items}, notes)
    return LoadedQuestions(items, databases, f"{path} (databases are expected in {folder / names[0]})")


def _note_ties(path: Path, items: list[PublishedQuestion], notes: Notes) -> None:
    """Add a note on BIRD's alternative golds for questions whose answer is not unique because of ties.

    The leaderboard's scorer ignores this file, so its golds are not used.
    """
    if not path.is_file():
        return
    uids = {item.uid: item.sql for item in items}
    tied = [text_field(record, "question_id") for record in read_records(path, notes)]
    tied_uids = [uid for uid in tied if uid in uids]
    notes.append(
        f"{path.name} has alternative golds for {quantity(len(tied), 'questions')} with tied answers, "
        f"{len(tied_uids)} of this split, first {', '.join(tied_uids[:3]) or 'none'}; "
        "the leaderboard's scorer ignores it, so it is not used here"
    )


def _note_descriptions(databases: Databases, db_ids: set[str], notes: Notes) -> None:
    """Add a note if databases have no column descriptions."""
    paths = [Path(path) for db_id in db_ids if (path := databases.path(db_id))]
    described = sum(description_folder(path) is not None for path in paths)
    if paths and described < len(paths):
        subject = f"{len(paths) - described} of {len(paths)} databases {agree(len(paths) - described, 'have')}"
        notes.append(f"{subject} no database_description/: their columns have no descriptions in prompts")


def description_folder(db_path: str | Path) -> Path | None:
    """Return the folder of column descriptions of a database, with a CSV file per table; None if it has none."""
    folder = Path(db_path).parent / "database_description"
    return folder if folder.is_dir() else None


BIRD = Format(
    name="bird",
    rule="bird",
    submission="bird",
    description="dev.json, mini_dev_sqlite.json or train.json with SQL and evidence, dev_databases/ or "
    "train_databases/",
    matches=is_bird,
    read=read_bird,
)
