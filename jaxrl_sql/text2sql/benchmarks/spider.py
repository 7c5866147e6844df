"""Spider (Yu et al. 2018) in its published layout, and sets on its databases: Spider-DK, -Syn, -Realistic and Archer.

`dev.json`, `train_spider.json`, `train_others.json` and `test.json` are lists of objects with `db_id`, `question` and
`query`. Databases are `database/<db_id>/<db_id>.sqlite`; the test set's are in `test_database/`. The other sets have
only questions, or also a few databases. They use those of Spider's folder next to theirs. The rule `test_suite` is the
comparison of Spider's scorer: rows equal as multisets, for some order of the columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.text2sql.benchmarks.databases import Databases, sibling_folders, suites_of
from jaxrl_sql.text2sql.benchmarks.files import (
    Notes,
    compare_golds,
    first_record,
    fix_operators,
    read_gold_lines,
    read_records,
    statements,
)
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    id_or_default,
    item_of,
    missing_split_error,
    text_field,
)
from jaxrl_sql.types import Record

_DATABASES = ("database", "databases")
_TEST_DATABASES = ("test_database", *_DATABASES)
# The question files of each split.
_FILES: dict[str, tuple[str, ...]] = {
    "dev": ("dev.json",),
    "test": ("test.json",),
    "train": ("train_spider.json", "train_others.json"),
    "train_spider": ("train_spider.json",),
    "train_others": ("train_others.json",),
}
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_GOLDS = {"dev": ("dev_gold.sql",), "test": ("test_gold.sql", "test_gold.txt"), "train": ("train_gold.sql",)}


def is_spider(folder: Path) -> bool:
    """Return whether a folder contains Spider: questions, and `tables.json` or databases."""
    questions = any((folder / name).is_file() for names in _FILES.values() for name in names)
    others = ("tables.json", "test_tables.json", "database", "test_database")
    if not questions or not any((folder / name).exists() for name in others):
        return False
    return all("query" in record or "question" in record for record in _first_records(folder))


def is_syn(folder: Path) -> bool:
    """Return whether a folder contains Spider-Syn: questions with the field `SpiderSynQuestion`."""
    return any("SpiderSynQuestion" in record for record in _first_records(folder))


def _first_records(folder: Path) -> list[Record]:
    names = ("dev.json", "train_spider.json", "test.json")
    return [first_record(folder / name) for name in names if (folder / name).is_file()]


def read_spider(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a split of Spider: dev (default), test, train (both following files), train_spider or train_others."""
    chosen = split or next((name for name in _FILES if (folder / _FILES[name][0]).is_file()), "")
    available = [name for name, files in _FILES.items() if (folder / files[0]).is_file()]
    if chosen not in available:
        raise missing_split_error(folder, split, available)
    records, names = _read(folder, _FILES[chosen], notes)
    golds = _golds_of(folder, chosen, records, notes)
    items = [
        _item(record, f"spider_{chosen.removesuffix('_spider')}_{number}", folder / " + ".join(names), gold)
        for number, (record, gold) in enumerate(zip(records, golds, strict=True))
    ]
    folders = _TEST_DATABASES if chosen == "test" else _DATABASES
    databases = Databases((folder / name for name in folders), suites_of(folder))
    where = f"{folder}: {' + '.join(names)} (databases are expected in {folder / folders[0]})"
    return LoadedQuestions(items, databases, where, prepare_spider)


def _read(folder: Path, files: Sequence[str], notes: Notes) -> tuple[list[Record], list[str]]:
    """Return the records of some question files, and the names of those that exist; the others get a note."""
    records: list[Record] = []
    names = [name for name in files if (folder / name).is_file()]
    for name in files:
        if name in names:
            records += read_records(folder / name, notes)
        else:
            notes.append(f"{name} is missing: this split lacks its questions (expected in {folder})")
    return records, names


def _golds_of(folder: Path, split: str, records: Sequence[Record], notes: Notes) -> list[str]:
    """Return the SQL of each question.

    If the questions have no SQL, it is from the published list of golds, provided that the databases of both match in
    order. Otherwise the list is only compared with the questions' SQL, with a note on differences.
    """
    golds = [text_field(record, "query", "SQL", "sql") for record in records]
    path = next((folder / name for name in _GOLDS.get(split, ()) if (folder / name).is_file()), None)
    if path is None:
        return golds
    if any(golds):
        prefix = f"spider_{split}_"
        items = [(f"{prefix}{i}", sql, text_field(records[i], "db_id")) for i, sql in enumerate(golds)]
        compare_golds(path, items, "the questions' file", notes)
        return golds
    lines = read_gold_lines(path, notes)
    if [db_id for _, db_id in lines] != [text_field(record, "db_id") for record in records]:
        notes.append(f"{path.name} has different databases than the questions, or another order: it is not used")
        return golds
    notes.append(f"using the golds of {path.name}, line by line: the questions have neither SQL nor ids")
    return [sql for sql, _ in lines]


def _item(record: Record, default_id: str, path: Path, sql: str) -> PublishedQuestion:
    """Return the question of a record; `default_id` is its id if the record has none, and `sql` its gold."""
    uid = id_or_default(record, default_id, path, "id", "question_id", "uid")
    return item_of(record, uid, fix_operators(sql), question=("SpiderSynQuestion", "question"))


def is_archer(folder: Path) -> bool:
    """Return whether a folder contains Archer: questions with `commonsense_knowledge` (Zheng et al. 2024)."""
    return any("commonsense_knowledge" in first_record(folder / name) for name in ("dev.json", "train.json"))


class _SpiderVariant(NamedTuple):
    """A set on Spider's databases, and how to read it.

    `files` has the question file of each split, the default first. `difficulty` returns a record's difficulty, and
    `evidence` is the name of the evidence field.
    """

    name: str
    files: Mapping[str, str]
    difficulty: Callable[[Record], str] = lambda _: ""
    evidence: str = "evidence"

    def read(self, folder: Path, split: str, notes: Notes) -> LoadedQuestions:
        """Read a split of the set; a set of a single file accepts the split `test`, too."""
        available = [name for name, file in self.files.items() if (folder / file).is_file()]
        is_single = len(self.files) == 1
        chosen = next(iter(available), "") if not split or (is_single and split == "test") else split
        if chosen not in available:
            raise missing_split_error(folder, split, available)
        path, prefix = folder / self.files[chosen], self.name if is_single else f"{self.name}_{chosen}"
        items = [
            _item(record, f"{prefix}_{i}", path, text_field(record, "query"))._replace(
                difficulty=self.difficulty(record), evidence=text_field(record, self.evidence)
            )
            for i, record in enumerate(read_records(path, notes))
        ]
        return _assign_spider_databases(folder, items, path.name, notes)


def _knowledge_type(record: Record) -> str:
    """Return the type of knowledge that a question of Spider-DK needs, `T0` (no knowledge) to `T5`."""
    return f"T{kind}" if (kind := text_field(record, "type")) else ""


def _reasoning_types(record: Record) -> str:
    """Return the reasoning types of an Archer question: arithmetic (`+ - * /`), commonsense (C), hypothetical (H)."""
    types = text_field(record, "reasoning_type").split()
    return " ".join(sorted(types, key=lambda reasoning_type: ("+-*/CH".find(reasoning_type), reasoning_type)))


def _assign_spider_databases(folder: Path, items: list[PublishedQuestion], file: str, notes: Notes) -> LoadedQuestions:
    """Return questions on Spider's databases, with each database from the first folder that has it.

    The set's own folder is first (Spider-DK publishes changed copies of three databases, with new names). Spider's
    folder, if it is next to the set's folder, is second. The folders of databases in other sibling folders follow.
    """
    own_folders = [folder / name for name in _DATABASES]
    siblings = (*sibling_folders(folder, _DATABASES), *sibling_folders(folder.parent, _DATABASES))
    others = [path for path in siblings if path.is_dir()]
    others.sort(key=lambda path: not is_spider(path.parent))
    databases = Databases([*own_folders, *others], suites_of(folder))
    db_ids = {item.db_id for item in items}
    roots = [root for db_id in sorted(db_ids) if (root := databases.root(db_id)) and root not in own_folders]
    if roots:
        notes.append(f"using Spider's databases in {' and '.join(map(str, dict.fromkeys(roots)))}")
    elif not all(databases.path(db_id) for db_id in db_ids):
        notes.append(f"Spider's folder with database/ is missing: it is expected next to {folder}")
    return LoadedQuestions(items, databases, str(folder / file), prepare_spider)


def prepare_spider(sql: str) -> str:
    """Return SQL with the preprocessing of Spider's scorer: its first statement, fixed operators and a fixed year.

    `> =`, `< =` and `! =` are replaced everywhere, even in strings, and `YEAR(CURDATE())` is 2020 (`exec_eval.py`).
    The scorer runs only the first of several statements, because it removes DISTINCT by default, and that step returns
    the first statement.
    """
    parts = statements(sql)
    return _CURRENT_YEAR.sub("2020", fix_operators(parts[0] if len(parts) > 1 else sql))


_TABLES = "tables.json, database/<db_id>/<db_id>.sqlite"
SPIDER = Format(
    name="spider",
    rule="test_suite",
    submission="spider",
    description=f"dev.json, train_spider.json or test.json, {_TABLES}",
    matches=is_spider,
    read=read_spider,
)
_DK, _REALISTIC = "Spider-DK.json", "spider-realistic.json"
SPIDER_DK = Format(
    name="spider_dk",
    rule="test_suite",
    submission="spider",
    description=f"{_DK}, next to Spider's folder",
    matches=lambda folder: (folder / _DK).is_file(),
    read=_SpiderVariant("spider_dk", {"dev": _DK}, _knowledge_type).read,
)
SPIDER_SYN = Format(
    name="spider_syn",
    rule="test_suite",
    submission="spider",
    description="dev.json with SpiderSynQuestion, next to Spider's folder",
    matches=is_syn,
    read=_SpiderVariant("spider_syn", {"dev": "dev.json", "train": "train_spider.json"}).read,
)
SPIDER_REALISTIC = Format(
    name="spider_realistic",
    rule="test_suite",
    submission="spider",
    description=f"{_REALISTIC}, next to Spider's folder",
    matches=lambda folder: (folder / _REALISTIC).is_file(),
    read=_SpiderVariant("spider_realistic", {"dev": _REALISTIC}).read,
)
ARCHER = Format(
    name="archer",
    rule="test_suite",
    submission="spider",
    description="dev.json or train.json with commonsense_knowledge; database/ in it or next to it",
    matches=is_archer,
    read=_SpiderVariant(
        "archer", {"dev": "dev.json", "train": "train.json"}, _reasoning_types, "commonsense_knowledge"
    ).read,
)
