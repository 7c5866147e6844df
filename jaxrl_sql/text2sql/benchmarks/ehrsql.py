"""EHRSQL (Lee et al. 2022) and its 2024 shared task: questions on hospital records, some of them unanswerable.

The first has `<database>/train.json`, `valid.json` and `test.json`, lists with `id`, `question`, `query` and
`is_impossible`. The second has `<database>/<split>/data.json` and `label.json`, with SQL by id, `null` for an
unanswerable question. Databases are `<database>/<database>.sqlite`, built by EHRSQL's scripts from licensed data. Each
is judged by the rule (comparison of results) of its own scorer, `ehrsql_2022` or `ehrsql`.

The archive of OmniSQL (Li et al. 2025) has the answerable questions as `dev.json`, `tables.json` and `database/`. Its
evaluation runs their SQL unchanged and compares rows as sets, which is BIRD's rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes, first_record, fix_operators, read_json, read_records
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    id_of,
    id_or_default,
    is_in_omnisql_archive,
    join_names,
    missing_split_error,
    text_field,
)
from jaxrl_sql.types import InputError, Json, Record

_SPLITS = ("valid", "dev", "test", "train")
# The shared task's sample of questions, and its database.
_SAMPLE, _DATABASE_2024 = "sample_data", "mimic_iv"
_DATABASES = ("database", "databases")
# The rule by the version of the set.
_RULES = {"2022": "ehrsql_2022", "2024": "ehrsql", "OmniSQL": "bird"}
# Names of EHRSQL's databases in OmniSQL's archive.
_OMNISQL = re.compile(r"mimic_?(iii|iv|3|4)|eicu")
# The normal ranges of vital signs: golds contain `heart_rate_lower`, which the published scorers replace by the number.
_RANGES = {
    "temperature": (35.5, 38.1),
    "sao2": (95.0, 100.0),
    "heart_rate": (60.0, 100.0),
    "respiration": (12.0, 18.0),
    "systolic_bp": (90.0, 120.0),
    "diastolic_bp": (60.0, 90.0),
    "mean_bp": (60.0, 110.0),
}
# MySQL's date arithmetic, which becomes SQLite's date modifiers.
_MYSQL_DATE_SHIFT = re.compile(r"DATE_(SUB|ADD)\((\w+\(\)|'[^']+')[, ]+INTERVAL (\d+) (MONTH|YEAR|DAY)\)")
_RANGE_BOUND = re.compile(rf"\b({'|'.join(_RANGES)})_(lower|upper)\b")


def _database_folders(folder: Path) -> list[Path]:
    """Return the folders that have questions, one per database: this folder or its subfolders, without the sample."""
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    outer = [path for name in ("data", "dataset/ehrsql") for path in sorted((folder / name).glob("*/"))]
    folders = [path for path in (folder, *inner, *outer) if _splits(path)]
    return [path for path in folders if path.name != _SAMPLE] or folders


def _splits(folder: Path) -> list[str]:
    """Return the names of the splits that a database's folder has."""
    return [split for split in _SPLITS if _version(folder, split)]


def _version(folder: Path, split: str) -> str:
    """Return the version of a split in a folder, a key of `_RULES`; "" if the folder lacks the split."""
    if _is_2024(folder, split):
        return "2024"
    path = folder / f"{split}.json"
    record = first_record(path) if path.is_file() else {}
    if split == "dev" and is_in_omnisql_archive(folder, record, "ehrsql", _OMNISQL):
        return "OmniSQL"
    return "2022" if "is_impossible" in record and "question" in record else ""


def _is_2024(folder: Path, split: str) -> bool:
    """Return whether a folder contains a split of the shared task of 2024."""
    path = folder / split / "data.json"
    if not path.is_file():
        return False
    head = _head(path)
    return '"question"' in head and ((folder / split / "label.json").is_file() or '"data"' in head)


def is_split_folder(folder: Path) -> bool:
    """Return whether a folder is a single split of the shared task, not a whole set."""
    return folder.name in _SPLITS and _is_2024(folder.parent, folder.name)


def _head(path: Path) -> str:
    """Return the first 64 KiB of a file as text."""
    with path.open("rb") as file:
        return file.read(1 << 16).decode("utf-8", errors="replace")


def is_ehrsql(folder: Path) -> bool:
    """Return whether a folder contains EHRSQL, for one or several databases."""
    return bool(_database_folders(folder))


def read_ehrsql(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a split (default: valid, or the first that exists) of every database in the folder; `dev` means valid."""
    folders = _database_folders(folder)
    available = [name for name in _SPLITS if any(name in _splits(inner) for inner in folders)]
    requested = {"dev": "valid"}.get(split, split) if split not in available else split
    chosen = requested or available[0]
    if chosen not in available:
        raise missing_split_error(folder, split, available)
    folders = [inner for inner in folders if chosen in _splits(inner)]
    versions = {_version(inner, chosen) for inner in folders}
    if len(versions) > 1:
        raise InputError(
            f"{folder}: its sets of EHRSQL are judged by different rules ({', '.join(sorted(versions))}): name one "
            f"of the folders {join_names(map(str, folders))}"
        )
    (version,) = versions
    databases = Databases(
        root
        for inner in folders
        for root in (inner, *(inner / name for name in _DATABASES), inner.parent, inner.parent / "data")
    )
    items = [item for inner in folders for item in _items(inner, chosen, version, databases, notes)]
    unanswerable = sum(not item.more.get("answerable", True) for item in items)
    subject = f"{unanswerable} of {len(items)} questions {agree(unanswerable, 'are')}"
    notes.append(f"{subject} unanswerable: abstaining (no SQL) is right")
    if (folder / _SAMPLE).is_dir() and folder / _SAMPLE not in folders:
        notes.append(f"{_SAMPLE}/ repeats some questions and is skipped; to read it alone, pass it as the data folder")
    where = (
        f"{folder}: {chosen} (databases are expected as {folders[0] / items[0].db_id if items else folders[0]}.sqlite)"
    )
    return LoadedQuestions(items, databases, where, _PREPROCESSORS.get(version), rule=_RULES[version])


def _items(folder: Path, split: str, version: str, databases: Databases, notes: Notes) -> list[PublishedQuestion]:
    """Return the questions of a split of one database, with golds as the scorer of the set's version runs them."""
    is_2024 = version == "2024"
    path = folder / split / "data.json" if is_2024 else folder / f"{split}.json"
    records = _read_shared_task(folder, split, notes) if is_2024 else read_records(path, notes)
    prepare = _PREPROCESSORS.get(version, str)
    items = []
    changed = 0
    for number, record in enumerate(records):
        sql = text_field(record, "query", "sql")
        is_answerable = not record.get("is_impossible", False) and sql.lower() not in ("null", "nan")
        executable_sql = prepare(sql) if is_answerable else ""
        changed += is_answerable and executable_sql.lower() != sql.lower()
        items.append(
            PublishedQuestion(
                uid=id_or_default(record, f"{folder.name}_{split}_{number}", path, "id"),
                db_id=_database(folder, text_field(record, "db_id"), databases),
                question=text_field(record, "question"),
                sql=executable_sql,
                difficulty=text_field(record, "importance"),
                more={} if is_answerable else {"answerable": False},
                fields=tuple(record),
            )
        )
    if changed:
        notes.append(
            f"{folder.name}/{split}: {quantity(changed, 'golds', 'refer')} to the current date or the ranges of vital "
            "signs; these are replaced as in the published scorer, and predictions need the same replacement"
        )
    return items


def _read_shared_task(folder: Path, split: str, notes: Notes) -> list[Record]:
    """Return the questions of the shared task, each with its SQL from the file of labels as the field `query`."""
    path, labels = folder / split / "data.json", folder / split / "label.json"
    json = read_json(path, notes)
    questions: Json = json.get("data") if isinstance(json, dict) else json
    if not isinstance(questions, list):
        raise InputError(f"{path}: expected a list of questions under `data`")
    if not labels.is_file():
        available = [name for name in _splits(folder) if (folder / name / labels.name).is_file()]
        others = f"; splits with one: {', '.join(available)}" if available else ""
        raise InputError(f"{labels}: no such file (it holds the SQL of each question by id){others}")
    golds = read_json(labels, notes)
    if isinstance(golds, list):
        by_id = [(id_of(label, str(labels), "id"), label) for label in golds if isinstance(label, dict)]
        # For a repeated id, the first label counts, as for questions.
        golds = {uid: text_field(label, "label", "sql") for uid, label in reversed(by_id) if uid}
    if not isinstance(golds, dict):
        raise InputError(f"{labels}: expected an object of SQL by id")
    # A label of null means an unanswerable question; a missing label is unknown.
    golds = {uid: "null" if sql is None else sql for uid, sql in golds.items()}
    questions = [question for question in questions if isinstance(question, dict)]
    uids = [id_of(question, f"{path}: question {number}", "id") for number, question in enumerate(questions)]
    pairs = zip(questions, uids, strict=True)
    return [{**question, "query": text_field(golds, uid) if uid else ""} for question, uid in pairs]


def _database(folder: Path, db_id: str, databases: Databases) -> str:
    """Return the name of a question's database file; `db_id` may be "" or another name (`mimic3` for `mimic_iii`)."""
    if db_id and any((parent / f"{db_id}.sqlite").is_file() for parent in (folder, folder / "database" / db_id)):
        return db_id
    if not db_id:
        return folder.name if databases.path(folder.name) else _DATABASE_2024
    has_database = any((folder / f"{folder.name}{ending}").is_file() for ending in (".sqlite", ".db"))
    return folder.name if has_database else db_id


def prepare_2024(sql: str, now: str) -> str:
    """Return SQL with the replacements of the 2024 scorer: a fixed current date, and numbers for vital sign ranges.

    `now` is the fixed date and time, `YYYY-MM-DD hh:mm:ss`. It replaces `current_time`, `current_date`, `'now'`,
    `NOW()`, `CURDATE()` and `CURTIME()`, in this spelling. Comparison operators with a space, MySQL's DATE_ADD and
    DATE_SUB, and lower-case format letters are converted, too. Line breaks stay; the scorer joins lines, so there a
    comment removes the SQL after it.
    """
    date, time = now.split(" ")
    text = _MYSQL_DATE_SHIFT.sub(_sqlite_date_shift, fix_operators(sql))
    today = {
        "current_time": now,
        "current_date": date,
        "'now'": now,
        "NOW()": now,
        "CURDATE()": date,
        "CURTIME()": time,
    }
    for name, moment in today.items():
        text = text.replace(name, f"'{moment}'")
    return _replace_range_bounds(text).replace("%y", "%Y").replace("%j", "%J")


def prepare_2022(sql: str, now: str) -> str:
    """Return SQL with the replacements of the 2022 scorer: lower case, like its databases, and fewer replacements.

    `now` is the fixed date and time, which replaces `current_time` and `'now'`. Two consecutive quotes become one, also
    in strings.
    """
    text = _replace_range_bounds(sql.lower().replace("current_time", f"'{now}'"))
    text = text.replace("''", "'").replace("< =", "<=").replace("%y", "%Y").replace("%j", "%J")
    return text.replace("'now'", f"'{now}'")


_PREPROCESSORS: dict[str, Callable[[str], str]] = {
    "2022": partial(prepare_2022, now="2105-12-31 23:59:00"),
    "2024": partial(prepare_2024, now="2100-12-31 23:59:00"),
}
"""Each scorer's preprocessing of SQL, by the version of the set."""


def _replace_range_bounds(sql: str) -> str:
    """Return SQL with numbers for bounds of vital signs, such as 60.0 for `heart_rate_lower`."""
    return _RANGE_BOUND.sub(lambda bound: str(_RANGES[bound[1]][bound[2] == "upper"]), sql)


def _sqlite_date_shift(match: re.Match[str]) -> str:
    """Return a match of MySQL's date arithmetic in SQLite's syntax, such as `datetime('…', '-1 year')`."""
    operation, moment, number, unit = match.groups()
    plural = "" if number == "1" else "s"
    return f"datetime({moment}, '{'-' if operation == 'SUB' else '+'}{number} {unit.lower()}{plural}')"


EHRSQL = Format(
    name="ehrsql",
    rule="ehrsql",
    submission="ehrsql",
    description="<database>/valid.json with is_impossible, or <database>/valid/data.json and label.json; "
    "<database>.sqlite",
    matches=is_ehrsql,
    read=read_ehrsql,
)
