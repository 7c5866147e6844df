"""Defog's questions (sql-eval, 2023) in their published layout: CSV files in which a question may have several golds.

`questions_gen_sqlite.csv`, `instruct_basic_sqlite.csv` and `instruct_advanced_sqlite.csv`, optionally in `data/`, have
`db_name`, `query_category`, `question`, `query` and optionally `instructions`. Databases are `<db_name>.db`. `idk.csv`
has unanswerable questions. The questions of `_postgres.csv` and `_mysql.csv` run on servers and are separate splits,
such as `questions_gen_postgres`. The rule (comparison of results) is `defog`: it compares the order of rows only if the
question requires an order.
"""

from __future__ import annotations

import re
from itertools import chain, combinations
from pathlib import Path

from jaxrl_sql.runtime.progress import agree
from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.files import Notes, csv_columns, read_csv, statements
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    missing_split_error,
    server_fields,
    text_field,
)
from jaxrl_sql.types import Record

# The columns that are read; the first four are in every file.
_COLUMNS = ("db_name", "query_category", "question", "query", "instructions", "full_instructions")
_SPLITS = ("questions_gen", "instruct_basic", "instruct_advanced", "idk")
_DATABASES = ("databases", "database", "sqlite_dbs", "defog_data")
_ENGINES = {"sqlite": "sqlite", "postgres": "postgresql", "mysql": "mysql"}
# Up to this number of columns in braces, all their selections are golds; of more, only single columns and all together.
_MAX_COLUMNS = 6
# Words in questions that require an order.
_ORDER_WORD = re.compile(r"\b(order|sort|arrange)\b", re.IGNORECASE)


def _files(folder: Path) -> dict[str, Path]:
    """Return the question files by split; a single file is a split by itself."""
    if folder.is_file():
        return {folder.stem.removesuffix("_sqlite"): folder} if _is_defog_file(folder) else {}
    candidates = [
        parent / f"{split}_{engine}.csv"
        for engine in _ENGINES
        for split in _SPLITS
        for parent in (folder, folder / "data")
    ]
    # Unanswerable questions: their golds only return a message, in any engine's SQL.
    candidates += [folder / "idk.csv", folder / "data" / "idk.csv"]
    return {path.stem.removesuffix("_sqlite"): path for path in candidates if _is_defog_file(path)}


def _is_defog_file(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and {*_COLUMNS[:4]} <= {*csv_columns(path, _COLUMNS)}


def read_defog(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a split of Defog's questions: questions_gen (default), instruct_basic, instruct_advanced or idk.

    Splits for servers have the endings `_postgres` and `_mysql`.
    """
    available = _files(folder)
    split_name = split or next(iter(available), "")
    if split_name not in available:
        raise missing_split_error(folder, split, available)
    path = available[split_name]
    root_folder = folder.parent if folder.is_file() else folder
    folders = [
        root / name for root in dict.fromkeys((root_folder, path.parent, root_folder.parent)) for name in _DATABASES
    ]
    engine_fields = server_fields(_ENGINES.get(path.stem.rpartition("_")[2], ""))
    without_engine = [
        _item(record, f"defog_{split_name}_{i}") for i, record in enumerate(read_csv(path, notes, _COLUMNS))
    ]
    items = [item._replace(more={**item.more, **engine_fields}) for item in without_engine]
    several = sum(bool(item.more["other_golds"]) for item in items)
    if several:
        notes.append(f"{several} of {len(items)} questions {agree(several, 'have')} several golds: any of them counts")
    databases = Databases([*folders, root_folder])
    return LoadedQuestions(items, databases, f"{path} (databases are expected in {root_folder / _DATABASES[0]})")


def _item(record: Record, uid: str) -> PublishedQuestion:
    """Return the question of a record; the option `asks_for_order` says whether the order of rows counts."""
    first, *others = golds_of(text_field(record, "query")) or [""]
    question, category = text_field(record, "question"), text_field(record, "query_category")
    asks_for_order = category == "order_by" or bool(_ORDER_WORD.search(question))
    return PublishedQuestion(
        uid=uid,
        db_id=text_field(record, "db_name"),
        question=question,
        sql=first,
        evidence=text_field(record, "full_instructions", "instructions"),
        difficulty=category,
        more={"other_golds": tuple(others), "options": {"asks_for_order": asks_for_order}},
    )


def golds_of(text: str) -> list[str]:
    """Return the golds of a text: its statements, with `{a, b}` expanded to all selections of columns.

    `SELECT {a, b} FROM t` expands to `SELECT a FROM t`, `SELECT b FROM t` and `SELECT a, b FROM t`. A later
    `GROUP BY {}` has the same columns.
    """
    return list(dict.fromkeys(chain.from_iterable(map(_expand_braces, statements(text)))))


def _expand_braces(statement: str) -> list[str]:
    """Return a statement once per selection of the columns in its first braces; unchanged without braces."""
    before, brace, rest = statement.partition("{")
    inner, closed, after = rest.partition("}")
    if not (brace and closed):
        return [statement]
    columns = [column.strip() for column in inner.split(",")]
    sizes = range(1, len(columns) + 1) if len(columns) <= _MAX_COLUMNS else (1, len(columns))
    chosen = [", ".join(selection) for size in sizes for selection in combinations(columns, size)]
    return [before + selection + after.replace("GROUP BY {}", f"GROUP BY {selection}") for selection in chosen]


DEFOG = Format(
    name="defog",
    rule="defog",
    submission="jsonl",
    description="data/questions_gen_sqlite.csv or instruct_basic_sqlite.csv, databases/<db_name>.db",
    matches=lambda folder: bool(_files(folder)),
    read=read_defog,
)
