"""Translate golds, the reference queries of questions, for copies of their databases on another engine.

Each translation runs on the engine and the original on SQLite. The translation is kept if both return the same rows,
with reals rounded to twelve digits, because their last digits depend on the order of summation. If the gold has an
ORDER BY, the rows must also have the same order, or the same sequence of sort keys.
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
from jaxrl_sql.databases.copy.source import table_digests
from jaxrl_sql.databases.engines.kinds import affinity_of
from jaxrl_sql.runtime.progress import agree, quantity
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
_DIGITS = 12  # significant digits of reals that must agree
# Longer rows are truncated in messages.
_MAX_ROW_CHARACTERS = 80


class TranslatedGold(NamedTuple):
    """A translated gold: `status` is `ok`, or the reason for dropping it (`check_golds`), with details in `message`.

    `name` is the copied database and `sql` the translation. `is_near`: reals differ after the twelfth digit. `is_tied`:
    its LIMIT cuts between rows of equal sort keys; it is kept if the engine chooses the same rows as SQLite. `others`
    are translations of the question's further golds with the same results on both.
    """

    example: Example
    name: str
    sql: str = ""
    status: str = "ok"
    message: str = ""
    is_near: bool = False
    is_tied: bool = False
    others: tuple[str, ...] = ()


def check_golds(
    executor: Executor, examples: Sequence[Example], manifest: Manifest, reader: Address
) -> list[TranslatedGold]:
    """Translate and run golds; return them in order. `reader` is the address with which the copies are read.

    Statuses are the executor's for a failed run on the engine (such as `timeout`), and: `not_copied` (the database),
    `no_sql` (the question has no gold), `not_translated`, `gold_failed` (on SQLite), `tied` (the LIMIT cuts between
    rows of equal sort keys, of which the engine chooses others), `different_rows`, `different_order` and `not_itself`
    (run twice, its results differ by some comparison rule). Raises InputError if the engine refuses the reader.
    """
    copies = _CopyFinder(manifest)
    schemas: dict[str, EngineSchema] = {}
    golds: list[TranslatedGold] = []
    for start in range(0, len(examples), _CHUNK):
        chunk = examples[start : start + _CHUNK]
        translated = [_translate(example, copies, schemas, reader.engine) for example in chunk]
        runnable = [(i, gold) for i, gold in enumerate(translated) if gold.status == "ok"]
        checked = _run(executor, [gold for _, gold in runnable], schemas, reader)
        for (i, _), gold in zip(runnable, checked, strict=True):
            translated[i] = gold._replace(others=_translate_other_golds(executor, gold, schemas, reader))
        golds += translated
    return golds


def write_golds(folder: Path, golds: Sequence[TranslatedGold], reader: Address) -> None:
    """Write the questions with kept golds to `questions.jsonl`, and the dropped golds to `left_out.jsonl`."""
    write_lines(folder / QUESTIONS, [_question(gold, reader) for gold in golds if gold.status == "ok"])
    dropped_golds = [gold for gold in golds if gold.status != "ok"]
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
            for gold in dropped_golds
        ],
    )


def summary_lines(golds: Sequence[TranslatedGold], version: str) -> list[str]:
    """Return lines with the share of kept golds, and the number of dropped ones by status."""
    kept_golds = [gold for gold in golds if gold.status == "ok"]
    near = sum(gold.is_near for gold in kept_golds)
    share = 100 * len(kept_golds) / len(golds) if golds else 0.0
    subject = f"{len(kept_golds)} of {len(golds)} golds ({share:.1f} %) {agree(len(kept_golds), 'have')}"
    lines = [f"{subject} equal results on {version} and SQLite"]
    if near:
        lines.append(f"  kept:     {near:>5}  equal up to the last digits of reals")
    if tied := sum(gold.is_tied for gold in kept_golds):
        lines.append(f"  kept:     {tied:>5}  with a LIMIT through ties, where both choose the same rows")
    statuses = Counter(gold.status for gold in golds if gold.status != "ok")
    return lines + [f"  dropped:  {count:>5}  {status}" for status, count in statuses.most_common()]


def engine_schema(entry: ManifestEntry) -> EngineSchema:
    """Return the tables of a copied database by their names in SQLite, for the translation of queries.

    Each column has its name and type on the engine, and its affinity in SQLite: the type by which SQLite compares it.
    """
    tables: dict[str, EngineTable] = {}
    for table in read_schema(entry["source"]["path"]).tables:
        copied = entry["tables"].get(table.name)
        if copied is None:
            continue
        columns = {
            column.name.lower(): EngineColumn(copied_column["name"], copied_column["type"], affinity_of(column.type))
            for column in table.columns
            if (copied_column := copied["columns"].get(column.name)) is not None
        }
        key = tuple(name for name, column in columns.items() if column.name in copied["primary_key"])
        tables[table.name.lower()] = EngineTable(copied["name"], columns, key)
    return tables


def _question(gold: TranslatedGold, reader: Address) -> dict[str, Any]:
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


class _CopyFinder:
    """Find the copy of a database, or of a file with the same content."""

    def __init__(self, manifest: Manifest) -> None:
        self.entries = list(manifest.databases.values())
        self.by_path = {entry["source"]["path"]: entry for entry in self.entries}

    def find(self, path: str) -> ManifestEntry | None:
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
    """Return whether the source of a copy is unchanged, and the file `path` has the same tables and rows."""
    source = entry["source"]
    names = {table.name for table in read_schema(path).tables}
    if names != entry["tables"].keys() or not Path(source["path"]).is_file():
        return False
    source_digests = table_digests(source["path"], source["digest"])
    return source_digests is not None and source_digests == table_digests(path, content)


def _translate(example: Example, copies: _CopyFinder, schemas: dict[str, EngineSchema], engine: str) -> TranslatedGold:
    """Translate a gold without running it; adds the schema of its copy to `schemas`, by the path of the SQLite file."""
    path = str(Path(example.db_path).resolve())
    entry = copies.find(path)
    if entry is None:
        message = f"{path}: no copied database has the same tables and rows"
        return TranslatedGold(example, "", status="not_copied", message=message)
    if not example.gold_sql:
        return TranslatedGold(example, entry["name"], status="no_sql")
    if path not in schemas:
        schemas[path] = engine_schema(entry)
    sql = to_engine(example.gold_sql, engine, schemas[path])
    return TranslatedGold(example, entry["name"], sql or "", "ok" if sql else "not_translated")


def _run(
    executor: Executor, golds: Sequence[TranslatedGold], schemas: Mapping[str, EngineSchema], reader: Address
) -> Iterator[TranslatedGold]:
    """Run golds on both engines and yield each with its status."""
    queries = [(reader.url(gold.name), gold.sql) for gold in golds]
    sqlite_outcomes = _outcomes(executor, [(gold.example.db_path, gold.example.gold_sql) for gold in golds])
    engine_outcomes = _outcomes(executor, queries)
    urls, sqls = [url for url, _ in queries], [sql for _, sql in queries]
    # Compared with themselves, results of two runs are equal by every rule unless the query is nondeterministic.
    self_scores = executor.score_many(urls, sqls, sqls, rules=SOUND_RULES)
    for i, (gold, sqlite, engine) in enumerate(zip(golds, sqlite_outcomes, engine_outcomes, strict=True)):
        compared = _with_ties(_compare(gold, sqlite, engine, reader))
        if compared.status == "different_order" and _has_equal_keys(executor, gold, schemas, reader):
            compared = compared._replace(status="ok")
        unequal_rules = [rule for rule in SOUND_RULES if self_scores[rule][i] != 1.0]
        if compared.status == "ok" and unequal_rules:
            compared = compared._replace(status="not_itself", message=", ".join(unequal_rules))
        yield compared


def _translate_other_golds(
    executor: Executor, gold: TranslatedGold, schemas: Mapping[str, EngineSchema], reader: Address
) -> tuple[str, ...]:
    """Return the translations of a question's other golds that have equal results on the engine and on SQLite."""
    if gold.status != "ok":
        return ()
    schema = schemas[str(Path(gold.example.db_path).resolve())]
    translations = ((sql, to_engine(sql, reader.engine, schema)) for sql in gold.example.other_golds)
    others = [
        TranslatedGold(replace(gold.example, gold_sql=sql), gold.name, translation)
        for sql, translation in translations
        if translation
    ]
    return (
        tuple(other_gold.sql for other_gold in _run(executor, others, schemas, reader) if other_gold.status == "ok")
        if others
        else ()
    )


def _outcomes(executor: Executor, queries: Sequence[tuple[str, str]]) -> list[Outcome]:
    """Run queries; queries that timed out run once more alone."""
    outcomes = executor.execute_many(queries)
    return [
        executor.execute(*query) if outcome.status == "timeout" else outcome
        for query, outcome in zip(queries, outcomes, strict=True)
    ]


def _compare(gold: TranslatedGold, sqlite: Outcome, engine: Outcome, reader: Address) -> TranslatedGold:
    """Return a gold with its status by the outcomes on SQLite and on the engine."""
    if sqlite.status != "ok":
        return gold._replace(status="gold_failed", message=sqlite.error or sqlite.status)
    if engine.status == "db_error":
        raise InputError(f"{reader.display_name(gold.name)}: the engine refused a gold: {reader.redact(engine.error)}")
    if engine.status != "ok":
        return gold._replace(status=engine.status, message=reader.redact(engine.error or engine.status))
    tree = parse_query(gold.example.gold_sql)
    is_ordered = isinstance(tree, exp.Query) and tree.args.get("order") is not None
    sqlite_rows, engine_rows = _round_reals(sqlite.rows), _round_reals(engine.rows)
    if Counter(sqlite_rows) != Counter(engine_rows):
        return gold._replace(status="different_rows", message=_difference(sqlite_rows, engine_rows))
    if is_ordered and sqlite_rows != engine_rows:
        return gold._replace(status="different_order")
    # `set_digest` is a hash of the exact rows.
    return gold._replace(is_near=sqlite.set_digest != engine.set_digest)


def _difference(sqlite_rows: Sequence[tuple[Any, ...]], engine_rows: Sequence[tuple[Any, ...]]) -> str:
    """Return the numbers of rows, and the first row of each side that the other lacks."""
    sqlite_counts, engine_counts = Counter(sqlite_rows), Counter(engine_rows)
    only = (("on the engine", engine_counts - sqlite_counts), ("on SQLite", sqlite_counts - engine_counts))
    rows = [
        f"{shorten(str(next(iter(rows))), _MAX_ROW_CHARACTERS, placeholder='…')} only {side}"
        for side, rows in only
        if rows
    ]
    return f"{quantity(len(engine_rows), 'rows')} on the engine, {len(sqlite_rows)} on SQLite: {' and '.join(rows)}"


def _with_ties(gold: TranslatedGold) -> TranslatedGold:
    """Set `is_tied` if a gold's LIMIT cuts between rows of equal sort keys, and its status if the rows differ."""
    if gold.status not in ("ok", "different_rows"):
        return gold
    tied = read_file(gold.example.db_path, lambda connection: is_tied(connection, gold.example.gold_sql))
    return gold._replace(is_tied=tied, status="tied" if tied and gold.status != "ok" else gold.status)


def _has_equal_keys(
    executor: Executor, gold: TranslatedGold, schemas: Mapping[str, EngineSchema], reader: Address
) -> bool:
    """Return whether both results have the same sequence of sort keys, so that only ties are in another order."""
    keys = key_query(gold.example.gold_sql)
    path = str(Path(gold.example.db_path).resolve())
    engine_keys = to_engine(keys, reader.engine, schemas[path]) if keys else None
    if keys is None or engine_keys is None:
        return False
    sqlite, engine = executor.execute_many([(gold.example.db_path, keys), (reader.url(gold.name), engine_keys)])
    return sqlite.status == engine.status == "ok" and _round_reals(sqlite.rows) == _round_reals(engine.rows)


def _round_reals(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows with reals rounded to twelve digits."""
    return [tuple(float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float) else cell for cell in row) for row in rows]
