"""Convert a loader's questions to examples; unusable questions are skipped with a reason.

A loader reads one folder format and returns `LoadedQuestions`. `gather` checks each question and its database, and
converts the usable ones to `Example`, the type that the rest of the package uses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.text2sql.benchmarks.benchmark import Skipped
from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes
from jaxrl_sql.text2sql.env.address import public_name
from jaxrl_sql.text2sql.env.files import id_values, is_blank, uid_of
from jaxrl_sql.types import NEEDS_SERVER, Example, InputError, Record

# OmniSQL's archive stores other sets in Spider's layout, too. These files exist only in Spider itself.
_SPIDER_ONLY_FILES = ("train_spider.json", "train_others.json", "dev_gold.sql")


class PositionId(str):
    """An id that was made from the position of a question, because its record has no id."""

    __slots__ = ()


class EmptyId(PositionId):
    """An id that was made from the position of a question, because the id field of its record is empty.

    It is valid only if no record of the set has an id.
    """

    __slots__ = ()


class PublishedQuestion(NamedTuple):
    """A question as a loader reads it, before any check; "" means a missing value.

    - `db_id` names the database in the set's folders of databases; `db_path` is its file, if the record names one.
    - `error` is the loader's reason why the question is unusable.
    - `more` has values of further fields of `Example`, by name.
    - `script` is the SQL that creates the question's database, for sets that publish scripts.
    - `fields` has the names of the record's fields, for messages; `line` is the record's position (`file:line`).
    - `url` is the address of a database on a server, and `dialect` the SQL dialect, if a user's record names them.
    - `is_unnamed` is true if a user's record names no database, so the only database of its folder is used.
    """

    uid: str
    db_id: str
    question: str
    sql: str = ""
    evidence: str = ""
    difficulty: str = ""
    db_path: str = ""
    error: str = ""
    more: Mapping[str, Any] = {}
    script: str = ""
    fields: tuple[str, ...] = ()
    line: str = ""
    url: str = ""
    dialect: str = ""
    is_unnamed: bool = False


AssignDatabase = Callable[[PublishedQuestion], PublishedQuestion]
"""Sets the database of a question in a user's file, such as one on a server."""


class LoadedQuestions(NamedTuple):
    """The questions and databases that a loader found.

    - `where` names the questions' file, for messages.
    - `prepare` is the scorer's preprocessing of a predicted query.
    - `is_huge`: the file is so large that `items` is an iterator, which reads it lazily and only once.
    - `rule` overrides the format's rule unless "".
    - `tried` maps a field, such as `question`, to the column names under which it was searched for, for messages.
    """

    items: Iterable[PublishedQuestion]
    databases: Databases
    where: str
    prepare: Callable[[str], str] | None = None
    is_huge: bool = False
    rule: str = ""
    tried: Mapping[str, Sequence[str]] = {}


class RecordFile(NamedTuple):
    """A set in one file of records, such as JSON lines, that can be read by index.

    `convert` returns the question of a record; its second argument is the record's index or line number.
    """

    path: Path
    convert: Callable[[dict[str, Any], int], PublishedQuestion]
    databases: Databases


class Format(NamedTuple):
    """A folder format: its scoring, a description of the expected files, and functions that detect and read it.

    `rule` is the leaderboard's comparison of results, and `submission` its file format of predictions (`Benchmark`).
    `matches` returns whether a folder has the format. `read` takes the folder, a split ("" for the default) and a list
    to which it appends notes for the user; it raises InputError for a missing split.
    """

    name: str
    rule: str
    submission: str
    description: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, str, Notes], LoadedQuestions]


def gather(loaded: LoadedQuestions, notes: Notes, limit: int = 0) -> tuple[tuple[Example, ...], Skipped]:
    """Convert a loader's questions to at most `limit` (0: all) examples; also return (uid, reason) of unusable ones.

    Notes about the databases are added to `notes`. Raises InputError if no question is usable.
    """
    examples: list[Example] = []
    skipped: list[tuple[str, str]] = []
    seen: set[str] = set()
    has_ids = False
    fields: tuple[str, ...] = ()
    for item in loaded.items:
        reason = "duplicate id" if item.uid in seen else error_of(item, loaded.databases)
        reason = reason or ("no id" if isinstance(item.uid, EmptyId) and has_ids else "")
        has_ids = has_ids or not isinstance(item.uid, PositionId)
        if reason:
            skipped.append((str(item.uid), reason))
            fields = fields or item.fields
            continue
        seen.add(item.uid)
        examples.append(example_of(item, loaded.databases))
        # Other sets are read to their end, so that every unusable question is reported.
        if loaded.is_huge and len(examples) == limit:
            break
    if not examples:  # the message has the most frequent reasons, the record's fields and the searched folders
        reasons = "; ".join(f"{reason}: {count}" for reason, count in Counter(r for _, r in skipped).most_common(3))
        roots = join_names(map(str, loaded.databases.roots), 3) or "no folder of databases found"
        fields_text = f"; the first record has {join_names(fields, 24)}" if fields else ""
        missing = " ".join(r for _, r in skipped if r.startswith("no ") and not r.startswith("no database "))
        names = describe_columns({field: names for field, names in loaded.tried.items() if field in missing})
        lacks_database = "db_id" in missing and loaded.tried
        tried = "; data.database sets one for all, unless it is empty" if lacks_database else ""
        tried += f"; rename a field to one of the names tried: {names}" if names else ""
        raise InputError(
            f"{loaded.where}: no usable question ({reasons or 'the file is empty'}{fields_text}{tried}; databases "
            f"searched in: {roots})"
        )
    loaded.databases.add_notes(notes)
    return tuple(examples[:limit] if limit > 0 else examples), tuple(skipped)


def prefer_local_files(assign_database: AssignDatabase, databases: Databases, *, prefers_files: bool) -> AssignDatabase:
    """Return a function that sets the database of a question by `assign_database`.

    If `prefers_files`, a SQLite question whose database file exists in `databases` stays unchanged.
    """

    def set_database(item: PublishedQuestion) -> PublishedQuestion:
        is_local = prefers_files and not item.url and item.dialect in ("", "sqlite")
        return item if is_local and databases.path(item.db_id) else assign_database(item)

    return set_database


def describe_columns(names: Mapping[str, Sequence[str]]) -> str:
    """Return each field with the column names that are read for it, as a text for messages."""
    return ", ".join(f"{field} ({', '.join(columns)})" for field, columns in names.items())


def error_of(item: PublishedQuestion, databases: Databases) -> str:
    """Return why a question cannot be used, or ""."""
    return item.error or _missing_fields(item) or _engine_error(item) or databases.error(item.db_id, item.db_path)


def _engine_error(item: PublishedQuestion) -> str:
    """Return the error of a question whose record names a URL or a dialect that its database does not have."""
    if item.url and not item.more.get("engine_url"):
        return f"its database is {public_name(item.url)}, and this command reads SQLite files only"
    if item.dialect in ("", item.more.get("dialect", "sqlite")):
        return ""
    if item.more.get("engine_url"):
        return f"dialect {item.dialect!r}, but its database has {item.more['dialect']!r}"
    return f"dialect {item.dialect!r} needs a database of that engine: set data.database, or a URL in the field db"


def _missing_fields(item: PublishedQuestion) -> str:
    """Return an error that names the required fields that a question lacks, or ""."""
    has_gold = item.sql or item.more.get("gold_tables") or not item.more.get("answerable", True)
    missing = [] if item.db_id or item.db_path else ["db_id"]
    missing += [] if item.question else ["question"]
    missing += [] if has_gold else ["sql"]
    return f"no {', '.join(missing)}" if missing else ""


def example_of(item: PublishedQuestion, databases: Databases) -> Example:
    """Return the example of a usable question, one for which `error_of` returns ""."""
    path = item.db_path or databases.path(item.db_id)
    return Example(
        uid=str(item.uid),
        db_id=item.db_id or Path(path).stem,
        db_path=path,
        question=item.question,
        gold_sql=item.sql,
        evidence=item.evidence,
        difficulty=item.difficulty,
        suite=() if item.db_path or item.more.get("engine_url") else databases.suite(item.db_id),
        **item.more,
    )


def item_of(
    record: Record,
    uid: str,
    sql: str,
    *,
    question: Sequence[str] = ("question",),
    evidence: Sequence[str] = ("evidence",),
    difficulty: Sequence[str] = (),
) -> PublishedQuestion:
    """Return the question of a record with the id `uid` and the gold `sql`.

    `question`, `evidence` and `difficulty` list the names of fields that may hold the value; the first one counts.
    """
    texts = text_field(record, *question), sql, text_field(record, *evidence), text_field(record, *difficulty)
    return PublishedQuestion(uid, text_field(record, "db_id"), *texts, fields=tuple(record))


def text_field(record: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields that is a non-blank text or a whole number, stripped; "" otherwise."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def id_of(record: Mapping[str, Any], where: str, *names: str) -> str:
    """Return a record's id from the first field of `names`; "" if it is missing or blank.

    Raises InputError, which begins with `where`, for an id that is neither text nor a whole number.
    """
    return uid_of({name: value for name, value in record.items() if not is_blank(value)}, where, names)


def id_or_default(record: Mapping[str, Any], default_id: str, where: Path | str, *names: str) -> str:
    """Return a record's id; if it has none, `default_id`, which contains the question's position.

    Raises InputError for an invalid id.
    """
    uid = id_of(record, f"{where}: question {default_id}", *names)
    return uid or (EmptyId(default_id) if id_values(record, names) else PositionId(default_id))


def mark_empty_ids(items: Iterable[PublishedQuestion]) -> list[PublishedQuestion]:
    """Return the questions unchanged if none has an id; otherwise set the error of each question with an empty id."""
    questions = [*items]
    if all(isinstance(item.uid, PositionId) for item in questions):
        return questions
    return [item._replace(error="no id") if isinstance(item.uid, EmptyId) else item for item in questions]


def text_list(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the texts in a list field, stripped; empty if the field is not a list."""
    texts = record.get(name)
    texts = texts if isinstance(texts, list) else []
    return tuple(text.strip() for text in texts if isinstance(text, str) and text.strip())


def is_in_omnisql_archive(
    folder: Path, record: Mapping[str, Any], name: str, database_pattern: re.Pattern[str]
) -> bool:
    """Return whether a folder has the set `name` as OmniSQL's archive stores it.

    The archive of OmniSQL (Li et al. 2025) converted several sets to Spider's layout: `dev.json`, `tables.json` and a
    folder of databases. The set is identified by the folder's name, or by the database of its first `record`, which
    `database_pattern` matches. Files that only Spider has must be absent.
    """
    if any((folder / file).exists() for file in _SPIDER_ONLY_FILES):
        return False
    has_files = any((folder / file).exists() for file in ("tables.json", "database", "databases"))
    has_database = database_pattern.fullmatch(text_field(record, "db_id").lower()) is not None
    is_this_set = folder.name.lower() == name or has_database
    return has_files and is_this_set and bool(text_field(record, "question"))


def server_fields(dialect: str) -> dict[str, Any]:
    """Return the fields of `Example` for a question in a server's dialect; empty for other dialects.

    The URL is a placeholder, which `prompts.dialects.with_server_urls` replaces by that of the configured server.
    """
    return {"dialect": dialect, "engine_url": NEEDS_SERVER} if dialect in ("postgresql", "mysql") else {}


def join_names(names: Iterable[str], max_names: int = 8) -> str:
    """Return names as one line, with commas: the first `max_names`, and the number of others."""
    all_names = list(names)
    more = [f"and {len(all_names) - max_names} more"] if len(all_names) > max_names else []
    return ", ".join([*all_names[:max_names], *more])


def missing_split_error(folder: Path, split: str, splits: Iterable[str]) -> InputError:
    """Return the error for a missing split of a folder."""
    available = join_names(splits, 12)
    reason = f"there are: {available}" if available else "no questions are there"
    return InputError(f"{folder}: no split {split!r} ({reason})")
