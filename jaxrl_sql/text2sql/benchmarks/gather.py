"""From what a format's loader found to examples: each question is used, or left out with a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.text2sql.benchmarks.benchmark import Skipped
from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes
from jaxrl_sql.text2sql.env.files import id_values, is_blank, uid_of
from jaxrl_sql.types import UNPLACED, Example, InputError, Record

_SPIDER_ALONE = ("train_spider.json", "train_others.json", "dev_gold.sql")


class ByPlace(str):
    """The number of a question whose record has no id."""

    __slots__ = ()


class EmptyId(ByPlace):
    """The same of a record whose id is empty: it counts only where no record has an id."""

    __slots__ = ()


class Item(NamedTuple):
    """A published question: `fault` says why it cannot be used, where its loader knows; `more` is fields of Example.

    `script` makes the question's database, where a set publishes that in its place. `fields` are those of its record.
    """

    uid: str
    db_id: str
    question: str
    sql: str = ""
    evidence: str = ""
    difficulty: str = ""
    db_path: str = ""
    fault: str = ""
    more: Mapping[str, Any] = {}
    script: str = ""
    fields: tuple[str, ...] = ()


class Found(NamedTuple):
    """What a loader found in a folder; `where` names the file that the questions are from.

    `prepare` changes a query before it runs, as the set's own scorer does; `rule` is its comparison where that is not
    the format's. Of a huge set no more is read than asked.
    """

    items: Iterable[Item]
    databases: Databases
    where: str
    prepare: Callable[[str], str] | None = None
    is_huge: bool = False
    rule: str = ""


class Lines(NamedTuple):
    """A file of records, what makes a question of one by its number, and the databases."""

    path: Path
    item: Callable[[dict[str, Any], int], Item]
    databases: Databases


class Format(NamedTuple):
    """A folder's format: what is looked for, in words, and the functions that find and read it.

    `finds` says whether a folder has the format; `reads` takes the folder, a split ("" for the usual one) and a list
    for notes, and raises InputError for a split that is not there.
    """

    name: str
    rule: str
    submission: str
    expects: str
    finds: Callable[[Path], bool]
    reads: Callable[[Path, str, Notes], Found]


def gather(found: Found, notes: Notes, limit: int = 0) -> tuple[tuple[Example, ...], Skipped]:
    """Turn a loader's questions into examples; return them, at most `limit` (0: all), and (uid, reason) of the others.

    Raises InputError where none can be used.
    """
    examples: list[Example] = []
    skipped: list[tuple[str, str]] = []
    seen: set[str] = set()
    has_ids = False
    fields: tuple[str, ...] = ()
    for item in found.items:
        reason = "duplicate id" if item.uid in seen else fault_of(item, found.databases)
        reason = reason or ("no id" if isinstance(item.uid, EmptyId) and has_ids else "")
        has_ids = has_ids or not isinstance(item.uid, ByPlace)
        if reason:
            skipped.append((str(item.uid), reason))
            fields = fields or item.fields
            continue
        seen.add(item.uid)
        examples.append(example_of(item, found.databases))
        if found.is_huge and len(examples) == limit:
            break
    if not examples:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in Counter(r for _, r in skipped).most_common(3))
        looked = listed(map(str, found.databases.roots), 3) or "no folder of databases was found"
        has = f"; the first record has {listed(fields, 24)}" if fields else ""
        raise InputError(
            f"{found.where}: no usable question ({reasons or 'the file is empty'}{has}; databases looked for in: "
            f"{looked})"
        )
    found.databases.tell(notes)
    return tuple(examples[:limit] if limit > 0 else examples), tuple(skipped)


def fault_of(item: Item, databases: Databases) -> str:
    """Return why a question cannot be used, or an empty text."""
    return item.fault or _missing(item) or databases.fault(item.db_id, item.db_path)


def _missing(item: Item) -> str:
    has_gold = item.sql or item.more.get("gold_tables") or not item.more.get("answerable", True)
    missing = [] if item.db_id or item.db_path else ["db_id"]
    missing += [] if item.question else ["question"]
    missing += [] if has_gold else ["sql"]
    return f"no {', '.join(missing)}" if missing else ""


def example_of(item: Item, databases: Databases) -> Example:
    """Make the example of a question that can be used."""
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
) -> Item:
    """Make the question of a record; `question`, `evidence` and `difficulty` are the fields that may hold them."""
    texts = said(record, *question), sql, said(record, *evidence), said(record, *difficulty)
    return Item(uid, said(record, "db_id"), *texts, fields=tuple(record))


def said(record: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields that is a text or a whole number, stripped; nothing where none is."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def id_of(record: Mapping[str, Any], where: str, *names: str) -> str:
    """Return a record's id; "" if it has no such field or a blank one. Raises InputError for what cannot be an id."""
    return uid_of({name: value for name, value in record.items() if not is_blank(value)}, where, names)


def uid_or(record: Mapping[str, Any], by_place: str, where: Path | str, *names: str) -> str:
    """Return a record's id, or `by_place` if it has none; raises InputError for what cannot be an id."""
    uid = id_of(record, f"{where}: question {by_place}", *names)
    return uid or (EmptyId(by_place) if id_values(record, names) else ByPlace(by_place))


def with_ids(items: Iterable[Item]) -> list[Item]:
    """Return questions, those with an empty id with a fault where others have an id."""
    every = [*items]
    if all(isinstance(item.uid, ByPlace) for item in every):
        return every
    return [item._replace(fault="no id") if isinstance(item.uid, EmptyId) else item for item in every]


def said_all(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the texts of a field that is a list, stripped; none where it is another thing."""
    found = record.get(name)
    return (
        tuple(one.strip() for one in found if isinstance(one, str) and one.strip()) if isinstance(found, list) else ()
    )


def is_reshaped(folder: Path, record: Mapping[str, Any], name: str, databases: re.Pattern[str]) -> bool:
    """Return whether a folder has a set of OmniSQL's archive, which gives each the files of Spider, by a record.

    The set is known by the folder's name, or by its databases' names. It has none of the other files of Spider.
    """
    if any((folder / file).exists() for file in _SPIDER_ALONE):
        return False
    has_files = any((folder / one).exists() for one in ("tables.json", "database", "databases"))
    is_named = folder.name.lower() == name or databases.fullmatch(said(record, "db_id").lower()) is not None
    return has_files and is_named and bool(said(record, "question"))


def on_server(dialect: str) -> dict[str, Any]:
    """Return the fields of a question that is asked in a server's dialect: `dialects.placed` says of which server."""
    return {"dialect": dialect, "engine_url": UNPLACED} if dialect in ("postgresql", "mysql") else {}


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names in one line, of many the first few and how many more there are."""
    every = list(names)
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def no_split(folder: Path, split: str, known: Iterable[str]) -> InputError:
    """Return the error for a split that a folder has not."""
    there = listed(known, 12)
    return InputError(f"{folder}: no split {split!r} ({f'there are: {there}' if there else 'no questions are there'})")
