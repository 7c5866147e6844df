"""KaggleDBQA (Lee et al. 2021) and ScienceBenchmark (Zhang et al. 2023) in their published layouts."""

from __future__ import annotations

import re
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes, first_record, read_records
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    id_or_default,
    is_in_omnisql_archive,
    item_of,
    missing_split_error,
    text_field,
)

_DATABASES = ("databases", "database")
# ScienceBenchmark's databases, each with a folder of questions.
_SCIENCE = ("cordis", "oncomx", "sdss")
# The names of these databases in OmniSQL's archive, some with a version.
_OMNISQL = re.compile(r"cordis(_temporary)?|sdss|(oncomx_v|skyserver_dr)\d+[\d_]*(_small)?|oncomx|skyserver")


def _item(
    record: dict[str, object], uid: str, path: Path, databases: Databases, fallback_db_id: str
) -> PublishedQuestion:
    """Return the question of a record; `uid` is its default id.

    If the record names no database or a missing one, `fallback_db_id` is its database.
    """
    uid, db_id = id_or_default(record, uid, path, "id", "question_id"), text_field(record, "db_id")
    db_id = fallback_db_id if not db_id or (not databases.path(db_id) and databases.path(fallback_db_id)) else db_id
    return item_of(record, uid, text_field(record, "query", "sql", "SQL"))._replace(db_id=db_id)


def is_kaggle(folder: Path) -> bool:
    """Return whether a folder contains KaggleDBQA: `examples/<db>_test.json`."""
    paths = [*(folder / "examples").glob("*_test.json"), *(folder / "examples").glob("*_fewshot.json")]
    return any("query" in first_record(path) for path in paths)


def read_kaggle(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a split of KaggleDBQA: test (default), fewshot (also named train) or all."""
    endings = {"test": "*_test.json", "fewshot": "*_fewshot.json", "train": "*_fewshot.json", "all": "*.json"}
    if split and split not in endings:
        raise missing_split_error(folder, split, endings)
    paths = sorted((folder / "examples").glob(endings[split or "test"]))
    if split == "all":  # `<db_id>.json` has the questions of both splits
        paths = [path for path in paths if not path.stem.endswith(("_test", "_fewshot"))]
    databases = Databases(folder / name for name in _DATABASES)
    items = [
        _item(
            record, f"{path.stem}_{number}", path, databases, path.stem.removesuffix("_test").removesuffix("_fewshot")
        )
        for path in paths
        for number, record in enumerate(read_records(path, notes))
    ]
    return LoadedQuestions(
        items, databases, f"{folder / 'examples'} (databases are expected in {folder / 'databases'})"
    )


def _science_folders(folder: Path) -> list[Path]:
    """Return the subfolders with questions on one of ScienceBenchmark's databases."""
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    return [path for path in inner if path.name.lower() in _SCIENCE and any(path.glob("*.json"))]


def is_science(folder: Path) -> bool:
    """Return whether a folder contains ScienceBenchmark: a folder per database, or OmniSQL's single `dev.json`."""
    return bool(_science_folders(folder)) or _is_omnisql_folder(folder)


def _is_omnisql_folder(folder: Path) -> bool:
    record = first_record(folder / "dev.json")
    return is_in_omnisql_archive(folder, record, "sciencebenchmark", _OMNISQL)


def read_science(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a split of ScienceBenchmark, dev (default), seed (also named train) or synth, of all databases."""
    if _is_omnisql_folder(folder):
        if split not in ("", "dev"):
            raise missing_split_error(folder, split, ["dev"])
        path, databases = folder / "dev.json", Databases(folder / name for name in _DATABASES)
        records = enumerate(read_records(path, notes))
        items = [_item(record, f"sciencebenchmark_dev_{i}", path, databases, "") for i, record in records]
        return LoadedQuestions(items, databases, f"{path} (databases are expected in {folder / 'databases'})")
    chosen = {"": "dev", "train": "seed"}.get(split, split)
    paths = [path / f"{chosen}.json" for path in _science_folders(folder)]
    if not any(path.is_file() for path in paths):
        stems = {path.stem for inner in _science_folders(folder) for path in inner.glob("*.json")}
        available = sorted(stems - {"tables"})
        raise missing_split_error(folder, split, available)
    missing = [str(path.relative_to(folder)) for path in paths if not path.is_file()]
    if missing:
        notes.append(f"missing: {', '.join(missing)}")
    # Questions name a version of a database, such as oncomx_v1_0_25_small, whose copy may have the folder's name.
    databases = Databases([*(folder / name for name in _DATABASES), *_science_folders(folder), folder])
    items = [
        _item(record, f"{path.parent.name}_{chosen}_{number}", path, databases, path.parent.name)
        for path in paths
        if path.is_file()
        for number, record in enumerate(read_records(path, notes))
    ]
    notes.append("its databases are published for PostgreSQL: judging here uses SQLite copies and SQLite's SQL")
    return LoadedQuestions(
        items, databases, f"{folder} (SQLite copies are expected as databases/<db_id>/<db_id>.sqlite)"
    )


KAGGLE = Format(
    name="kaggledbqa",
    rule="test_suite",
    submission="spider",
    description="examples/<db_id>_test.json, databases/<db_id>/<db_id>.sqlite",
    matches=is_kaggle,
    read=read_kaggle,
)
SCIENCE = Format(
    name="sciencebenchmark",
    rule="bird",
    submission="jsonl",
    description="cordis/, oncomx/ or sdss/ with dev.json, databases/<db_id>/<db_id>.sqlite",
    matches=is_science,
    read=read_science,
)
