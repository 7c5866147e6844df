"""Defog's questions (sql-eval, 2023) as published: CSV files whose golds may be several.

`questions_gen_sqlite.csv`, `instruct_basic_sqlite.csv` and `instruct_advanced_sqlite.csv`, in a folder `data/` or not,
have `db_name`, `query_category`, `question`, `query` and perhaps `instructions`; databases are `<db_name>.db`.
`idk.csv` has questions that no database answers. Those of `_postgres.csv` and `_mysql.csv` are run by servers, and are
splits of their own, such as `questions_gen_postgres`.
The rule is its own (`defog`), which asks whether the question's category or words ask for an order.
"""

from __future__ import annotations

import re
from itertools import chain, combinations
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes, csv_columns, read_csv, statements
from jaxrl_sql.text2sql.benchmarks.gather import Format, Found, Item, no_split, on_server, said
from jaxrl_sql.types import Record

# The first four are in every file.
_COLUMNS = ("db_name", "query_category", "question", "query", "instructions", "full_instructions")
_SPLITS = ("questions_gen", "instruct_basic", "instruct_advanced", "idk")
_DATABASES = ("databases", "database", "sqlite_dbs", "defog_data")
_ENGINES = {"sqlite": "sqlite", "postgres": "postgresql", "mysql": "mysql"}
# Above so many columns in braces, only the single ones and all of them together are golds.
_MOST = 6
# Words by which a question asks for an order.
_ORDER = re.compile(r"\b(order|sort|arrange)\b", re.IGNORECASE)


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of questions by split; a file alone is a split of its own."""
    if folder.is_file():
        return {folder.stem.removesuffix("_sqlite"): folder} if _is_defogs(folder) else {}
    places = [
        place / f"{split}_{engine}.csv"
        for engine in _ENGINES
        for split in _SPLITS
        for place in (folder, folder / "data")
    ]
    # Questions that the data do not answer: their golds only say so, in any engine's SQL.
    places += [folder / "idk.csv", folder / "data" / "idk.csv"]
    return {path.stem.removesuffix("_sqlite"): path for path in places if _is_defogs(path)}


def _is_defogs(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and {*_COLUMNS[:4]} <= {*csv_columns(path, _COLUMNS)}


def read_defog(folder: Path, split: str, notes: Notes) -> Found:
    """Read a split of Defog's questions: questions_gen (the usual one), instruct_basic or instruct_advanced."""
    there = _files(folder)
    chosen = split or next(iter(there), "")
    if chosen not in there:
        raise no_split(folder, split, there)
    path = there[chosen]
    home = folder.parent if folder.is_file() else folder
    places = [root / name for root in dict.fromkeys((home, path.parent, home.parent)) for name in _DATABASES]
    there_is = on_server(_ENGINES.get(path.stem.rpartition("_")[2], ""))
    found = [_item(record, f"defog_{chosen}_{i}") for i, record in enumerate(read_csv(path, notes, _COLUMNS))]
    items = [item._replace(more={**item.more, **there_is}) for item in found]
    several = sum(bool(item.more["other_golds"]) for item in items)
    if several:
        notes.append(f"{several} of {len(items)} questions have several golds: any of them may be met")
    databases = Databases([*places, home])
    return Found(items, databases, f"{path} (databases are expected in {home / _DATABASES[0]})")


def _item(record: Record, uid: str) -> Item:
    first, *others = golds_of(said(record, "query")) or [""]
    question, category = said(record, "question"), said(record, "query_category")
    asks_for_order = category == "order_by" or bool(_ORDER.search(question))
    return Item(
        uid,
        said(record, "db_name"),
        question,
        first,
        said(record, "full_instructions", "instructions"),
        category,
        more={"other_golds": tuple(others), "options": {"asks_for_order": asks_for_order}},
    )


def golds_of(text: str) -> list[str]:
    """Return the golds that a text stands for: its statements, and of one with `{a, b}` all choices of columns.

    `SELECT {a, b} FROM t` is `SELECT a FROM t`, `SELECT b FROM t` and `SELECT a, b FROM t`, and `GROUP BY {}` behind it
    names the same columns.
    """
    return list(dict.fromkeys(chain.from_iterable(map(_choices, statements(text)))))


def _choices(statement: str) -> list[str]:
    before, brace, rest = statement.partition("{")
    inner, closed, after = rest.partition("}")
    if not (brace and closed):
        return [statement]
    columns = [column.strip() for column in inner.split(",")]
    sizes = range(1, len(columns) + 1) if len(columns) <= _MOST else (1, len(columns))
    chosen = [", ".join(some) for size in sizes for some in combinations(columns, size)]
    return [before + some + after.replace("GROUP BY {}", f"GROUP BY {some}") for some in chosen]


DEFOG = Format(
    "defog",
    "defog",
    "jsonl",
    "data/questions_gen_sqlite.csv or instruct_basic_sqlite.csv, databases/<db_name>.db",
    lambda folder: bool(_files(folder)),
    read_defog,
)
