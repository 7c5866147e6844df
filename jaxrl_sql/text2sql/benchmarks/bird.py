"""BIRD (Li et al. 2023) as published: dev, mini-dev and train.

`dev.json`, `mini_dev_sqlite.json` (and `mini_dev_postgresql.json`, `mini_dev_mysql.json`, which servers run) and
`train.json` are lists of objects with `db_id`, `question`, `evidence`, `SQL`, and but for train `question_id` and
`difficulty`; databases are `<split>_databases/<db_id>/<db_id>.sqlite`, beside each of them
`database_description/<table>.csv`.
"""

from __future__ import annotations

from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.databases import Databases, beside
from jaxrl_sql.text2sql.benchmarks.files import Notes, compare_golds, first_record, read_records
from jaxrl_sql.text2sql.benchmarks.gather import Format, Found, Item, item_of, no_split, on_server, said, uid_or
from jaxrl_sql.types import InputError

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
    """Return the files of questions that a folder has, by split; later dev sets carry their date."""
    dated = sorted(folder.glob("dev_20*.json"))
    places = {
        "dev": [folder / "dev.json", *reversed(dated)],
        "mini_dev": [folder / "mini_dev_sqlite.json"],
        "mini_dev_postgresql": [folder / "mini_dev_postgresql.json"],
        "mini_dev_mysql": [folder / "mini_dev_mysql.json"],
        "train": [folder / "train.json"],
        "test": [folder / "test.json"],
    }
    found = {split: next((path for path in paths if path.is_file()), None) for split, paths in places.items()}
    return {split: path for split, path in found.items() if path is not None}


def _others(folder: Path) -> dict[str, Path]:
    """Return the files that say a set of BIRD's again, by name: later revisions, filtered and verified ones."""
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")])
    named = {path.stem.partition("-00000-of-")[0]: path for path in paths}
    return {name: path for name, path in named.items() if {"SQL", "evidence", "db_id"} <= first_record(path).keys()}


def is_bird(folder: Path) -> bool:
    """Return whether a folder holds BIRD: questions whose SQL is called `SQL` and has `evidence` beside it."""
    records = [first_record(path) for path in _questions(folder).values()]
    return any("SQL" in record and "evidence" in record for record in records)


def read_bird(folder: Path, split: str, notes: Notes) -> Found:
    """Read a split of BIRD: dev (the usual one), mini_dev, mini_dev_postgresql, mini_dev_mysql, train or test."""
    packed = sorted(folder.glob("*_databases.zip"))
    if packed and not any(folder.glob("*_databases/")):
        raise InputError(f"{packed[0]}: unpack it here first; databases are expected in {packed[0].with_suffix('')}")
    there = _questions(folder)
    chosen = split.replace("-", "_") or next(iter(there))
    if chosen not in there:
        there = {**there, **_others(folder)}
        chosen = split
    if chosen not in there:
        raise no_split(folder, split, there)
    path = there[chosen]
    records = read_records(path, notes)
    more = on_server(chosen.removeprefix("mini_dev_"))
    items = []
    for number, record in enumerate(records):
        uid = uid_or(record, f"bird_{chosen}_{number}", path, "question_id", "id")
        sql = said(record, "SQL", "sql", "query")
        item = item_of(record, uid, sql, evidence=("evidence", "hint"), difficulty=("difficulty",))
        items.append(item._replace(more=more))
    for name in _GOLDS.get(chosen, ()):
        if (folder / name).is_file():
            golds = [(item.uid, item.sql, item.db_id) for item in items]
            compare_golds(folder / name, golds, path.name, notes)
    _tell_tied(folder / "dev_tied_append.json", items, notes)
    names = _DATABASES.get(chosen) or _DATABASES["train" if "train" in chosen else "dev"]
    # mini-dev may stand without databases: they are dev's.
    own = [folder / name for name in names]
    databases = Databases([*own, *beside(folder, names[:1])])
    if not any(one.is_dir() for one in own) and databases.roots:
        notes.append(f"{own[0]} is missing: databases are those of {databases.roots[0]}")
    _tell_descriptions(databases, {item.db_id for item in items}, notes)
    return Found(items, databases, f"{path} (databases are expected in {folder / names[0]})")


def _tell_tied(path: Path, items: list[Item], notes: Notes) -> None:
    """Note which questions' answers tie: the leaderboard's scorer does not read the file, so it is no gold here."""
    if not path.is_file():
        return
    own = {item.uid: item.sql for item in items}
    tied = [said(record, "question_id") for record in read_records(path, notes)]
    known = [uid for uid in tied if uid in own]
    notes.append(
        f"{path.name} gives {len(tied)} questions another gold because their answers tie, {len(known)} of them here, "
        f"first {', '.join(known[:3]) or 'none'}; the leaderboard's scorer does not read it, nor is it a gold here"
    )


def _tell_descriptions(databases: Databases, db_ids: set[str], notes: Notes) -> None:
    paths = [Path(path) for db_id in db_ids if (path := databases.path(db_id))]
    described = sum(description_folder(path) is not None for path in paths)
    if paths and described < len(paths):
        notes.append(
            f"{len(paths) - described} of {len(paths)} databases have no database_description/ beside them: "
            "their columns are shown without a description"
        )


def description_folder(db_path: str | Path) -> Path | None:
    """Return the folder of CSV files, one a table, that describe the columns of a database, where it has one."""
    folder = Path(db_path).parent / "database_description"
    return folder if folder.is_dir() else None


BIRD = Format(
    "bird",
    "bird",
    "bird",
    "dev.json, mini_dev_sqlite.json or train.json with SQL and evidence, dev_databases/ or train_databases/",
    is_bird,
    read_bird,
)
