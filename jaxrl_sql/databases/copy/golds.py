"""Translate golds for copied databases: each runs on the engine and on SQLite and is kept if the results agree.

Results agree by the rule `bird`, or up to the last digits of reals, which depend on the order of summation. If the gold
has an ORDER BY, the rows must have the same order or the same sequence of sort keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from sqlglot import exp

from jaxrl_sql.databases.copy.manifest import Manifest, ManifestEntry
from jaxrl_sql.databases.copy.source import content_by_rows
from jaxrl_sql.databases.engines.kinds import affinity_of
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.text2sql.env.executor import SOUND_RULES, Executor, Outcome
from jaxrl_sql.text2sql.env.parse import parse_query
from jaxrl_sql.text2sql.env.scopes import EngineColumn, EngineSchema, EngineTable
from jaxrl_sql.text2sql.env.to_engine import to_engine
from jaxrl_sql.text2sql.evals.ties import is_tied, key_query
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.schema.cache import content_of
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import read_file
from jaxrl_sql.types import Example, InputError

QUESTIONS, LEFT_OUT = "questions.jsonl", "left_out.jsonl"

# Outcomes hold their rows in memory, so golds run a few at a time.
_CHUNK = 128
_DIGITS = 12
# Characters of a row that a message shows.
_SHOWN = 80


class Gold(NamedTuple):
    """A translated gold: `status` is `ok` or the reason for dropping it; `message` is the engine's.

    `is_near`: reals differ in their last digits. `is_tied`: its LIMIT cuts between rows of equal sort keys; it is kept
    if the engine chooses the same rows as SQLite. `others` are the question's other golds that agree as well.
    """

    example: Example
    name: str
    sql: str = ""
    status: str = "ok"
    message: str = ""
    is_near: bool = False
    is_tied: bool = False
    others: tuple[str, ...] = ()


def check_golds(executor: Executor, examples: Sequence[Example], manifest: Manifest, reader: Address) -> list[Gold]:
    """Translate and run golds; return them in order. `reader` is the address with which the copies are read.

    Statuses are those of runs on the engine, and: `not_copied` (the database), `no_sql`, `not_translated`,
    `gold_failed` (on SQLite), `tied` (other rows of equal sort keys), `different_rows`, `different_order` and
    `not_itself` (unequal to itself by some rule). Raises InputError if the engine refuses the reader.
    """
    copies = _Copies(manifest)
    schemas: dict[str, EngineSchema] = {}
    golds: list[Gold] = []
    for start in range(0, len(examples), _CHUNK):
        some = examples[start : start + _CHUNK]
        translated = [_translated(example, copies, schemas, reader.engine) for example in some]
        waiting = [(i, gold) for i, gold in enumerate(translated) if gold.status == "ok"]
        ran = _run(executor, [gold for _, gold in waiting], schemas, reader)
        for (i, _), gold in zip(waiting, ran, strict=True):
            translated[i] = gold._replace(others=_others(executor, gold, schemas, reader))
        golds += translated
    return golds


def write_golds(folder: Path, golds: Sequence[Gold], reader: Address) -> None:
    """Write the questions with kept golds, and the dropped ones with their status."""
    write_lines(folder / QUESTIONS, [_question(gold, reader) for gold in golds if gold.status == "ok"])
    left = [gold for gold in golds if gold.status != "ok"]
    write_lines(
        folder / LEFT_OUT,
        [
            {
                "id": gold.example.uid,
                "db_id": gold.example.db_id,
                "status": gold.status,
                "message": gold.message,
                "sql": gold.sql,
                "sqlite_sql": gold.example.gold_sql,
            }
            for gold in left
        ],
    )


def summary_lines(golds: Sequence[Gold], version: str) -> list[str]:
    """Return the share of kept golds, and the number of dropped ones by status."""
    kept_golds = [gold for gold in golds if gold.status == "ok"]
    near = sum(gold.is_near for gold in kept_golds)
    share = 100 * len(kept_golds) / len(golds) if golds else 0.0
    lines = [f"{len(kept_golds)} of {len(golds)} golds ({share:.1f} %) have equal results on {version} and SQLite"]
    if near:
        lines.append(f"  kept:     {near:>5}  equal up to the last digits of reals")
    if tied := sum(gold.is_tied for gold in kept_golds):
        lines.append(f"  kept:     {tied:>5}  with a LIMIT through ties, where both choose the same rows")
    statuses = Counter(gold.status for gold in golds if gold.status != "ok")
    return lines + [f"  dropped:  {count:>5}  {status}" for status, count in statuses.most_common()]


def engine_schema(entry: ManifestEntry) -> EngineSchema:
    """Return the names and types of a copied database, and the affinities of its source."""
    tables: dict[str, EngineTable] = {}
    for table in read_schema(entry["source"]["path"]).tables:
        copied = entry["tables"].get(table.name)
        if copied is None:
            continue
        columns = {
            column.name.lower(): EngineColumn(there["name"], there["type"], affinity_of(column.type))
            for column in table.columns
            if (there := copied["columns"].get(column.name)) is not None
        }
        key = tuple(name for name, column in columns.items() if column.name in copied["primary_key"])
        tables[table.name.lower()] = EngineTable(copied["name"], columns, key)
    return tables


def _question(gold: Gold, reader: Address) -> dict[str, Any]:
    example = gold.example
    others = {"other_sql": list(gold.others)} if gold.others else {}
    return {
        "id": example.uid,
        "db_id": example.db_id,
        "question": example.question,
        "evidence": example.evidence,
        "difficulty": example.difficulty,
        "sql": gold.sql,
        "dialect": reader.engine,
        "db": reader.public_url(gold.name),
        "tied": gold.is_tied,
        "sqlite_sql": example.gold_sql,
        **others,
    }


class _Copies:
    """Find the copy of a database, or of a file with the same content."""

    def __init__(self, manifest: Manifest) -> None:
        self.entries = list(manifest.databases.values())
        self.by_path = {entry["source"]["path"]: entry for entry in self.entries}

    def of(self, path: str) -> ManifestEntry | None:
        """Return the entry of a file's copy, by its path, its bytes, or its tables and rows."""
        if path not in self.by_path:
            content = content_of(path)
            same_bytes = (entry for entry in self.entries if entry["source"]["digest"] == content)
            same_rows = (entry for entry in self.entries if _has_rows(entry, path, content))
            entry = next(same_bytes, None) or next(same_rows, None)
            if entry is None:
                return None
            self.by_path[path] = entry
        return self.by_path[path]


def _has_rows(entry: ManifestEntry, path: str, content: str) -> bool:
    """Return whether the source of a copy exists unchanged and has the tables and rows of a file."""
    source = entry["source"]
    names = {table.name for table in read_schema(path).tables}
    if names != entry["tables"].keys() or not Path(source["path"]).is_file():
        return False
    there = content_by_rows(source["path"], source["digest"])
    return there is not None and there == content_by_rows(path, content)


def _translated(example: Example, copies: _Copies, schemas: dict[str, EngineSchema], engine: str) -> Gold:
    path = str(Path(example.db_path).resolve())
    entry = copies.of(path)
    if entry is None:
        message = f"{path}: no copied database has the same tables and rows"
        return Gold(example, "", status="not_copied", message=message)
    if not example.gold_sql:
        return Gold(example, entry["name"], status="no_sql")
    if path not in schemas:
        schemas[path] = engine_schema(entry)
    sql = to_engine(example.gold_sql, engine, schemas[path])
    return Gold(example, entry["name"], sql or "", "ok" if sql else "not_translated")


def _run(
    executor: Executor, golds: Sequence[Gold], schemas: Mapping[str, EngineSchema], reader: Address
) -> Iterator[Gold]:
    there = [(reader.url(gold.name), gold.sql) for gold in golds]
    wanted = _outcomes(executor, [(gold.example.db_path, gold.example.gold_sql) for gold in golds])
    results = _outcomes(executor, there)
    urls, sqls = [url for url, _ in there], [sql for _, sql in there]
    itself = executor.score_many(urls, sqls, sqls, rules=SOUND_RULES)
    for i, (gold, here, other) in enumerate(zip(golds, wanted, results, strict=True)):
        judged = _with_ties(_judged(gold, here, other, reader))
        if judged.status == "different_order" and _has_equal_keys(executor, gold, schemas, reader):
            judged = judged._replace(status="ok")
        unlike = [rule for rule in SOUND_RULES if itself[rule][i] != 1.0]
        if judged.status == "ok" and unlike:
            judged = judged._replace(status="not_itself", message=", ".join(unlike))
        yield judged


def _others(executor: Executor, gold: Gold, schemas: Mapping[str, EngineSchema], reader: Address) -> tuple[str, ...]:
    """Return the translations of a question's other golds that have equal results on both."""
    if gold.status != "ok":
        return ()
    schema = schemas[str(Path(gold.example.db_path).resolve())]
    written = ((sql, to_engine(sql, reader.engine, schema)) for sql in gold.example.other_golds)
    alike = [Gold(replace(gold.example, gold_sql=sql), gold.name, there) for sql, there in written if there]
    return (
        tuple(other_gold.sql for other_gold in _run(executor, alike, schemas, reader) if other_gold.status == "ok")
        if alike
        else ()
    )


def _outcomes(executor: Executor, queries: Sequence[tuple[str, str]]) -> list[Outcome]:
    """Run queries; queries that timed out run once more alone."""
    outcomes = executor.execute_many(queries)
    return [
        executor.execute(*query) if outcome.status == "timeout" else outcome
        for query, outcome in zip(queries, outcomes, strict=True)
    ]


def _judged(gold: Gold, here: Outcome, there: Outcome, reader: Address) -> Gold:
    if here.status != "ok":
        return gold._replace(status="gold_failed", message=here.error or here.status)
    if there.status == "db_error":
        raise InputError(f"{reader.named(gold.name)}: golds cannot be run there: {reader.redacted(there.error)}")
    if there.status != "ok":
        return gold._replace(status=there.status, message=reader.redacted(there.error or there.status))
    tree = parse_query(gold.example.gold_sql)
    is_ordered = isinstance(tree, exp.Query) and tree.args.get("order") is not None
    ours, theirs = _plain(here.rows), _plain(there.rows)
    if Counter(ours) != Counter(theirs):
        return gold._replace(status="different_rows", message=_difference(ours, theirs))
    if is_ordered and ours != theirs:
        return gold._replace(status="different_order")
    return gold._replace(is_near=here.set_digest != there.set_digest)


def _difference(ours: Sequence[tuple[Any, ...]], theirs: Sequence[tuple[Any, ...]]) -> str:
    """Return the numbers of rows, and the first row of each side that the other lacks."""
    here, there = Counter(ours), Counter(theirs)
    lacking = (("there", there - here), ("on SQLite", here - there))
    rows = [f"{shorten(str(next(iter(rows))), _SHOWN, placeholder='…')} only {side}" for side, rows in lacking if rows]
    return f"{len(theirs)} rows there, {len(ours)} on SQLite: {' and '.join(rows)}"


def _with_ties(gold: Gold) -> Gold:
    """Set whether a gold's LIMIT cuts through rows of equal sort keys."""
    if gold.status not in ("ok", "different_rows"):
        return gold
    tied = read_file(gold.example.db_path, lambda connection: is_tied(connection, gold.example.gold_sql))
    return gold._replace(is_tied=tied, status="tied" if tied and gold.status != "ok" else gold.status)


def _has_equal_keys(executor: Executor, gold: Gold, schemas: Mapping[str, EngineSchema], reader: Address) -> bool:
    """Return whether both results have the same sequence of sort keys, so that only ties are in another order."""
    keys = key_query(gold.example.gold_sql)
    path = str(Path(gold.example.db_path).resolve())
    there = to_engine(keys, reader.engine, schemas[path]) if keys else None
    if keys is None or there is None:
        return False
    ours, theirs = executor.execute_many([(gold.example.db_path, keys), (reader.url(gold.name), there)])
    return ours.status == theirs.status == "ok" and _plain(ours.rows) == _plain(theirs.rows)


def _plain(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows with reals rounded to twelve digits."""
    return [tuple(float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float) else cell for cell in row) for row in rows]
