"""Measure which of the golds' tables and columns a prompt shows where a schema does not fit (`data.schema_budget`).

`python scripts/bench_linking.py --data FOLDER` merges all databases of a set into one, with their rows, keys and
foreign keys, asks every question of the set on it, and prints the share of the golds' tables and columns that stand
within `--budget` tokens, the share of questions of which all do, how much is shown, and the processor's time. A table
whose name several databases have, or each with `--qualified`, is called `database.table`. Tokens are those of the
tokenizer in `--tokenizer`, a folder; without it one is taken for three characters, as it is for an endpoint.

`--write FOLDER` writes the questions of one set as two plain sets in place of that, so that `evaluate` says what the
rest costs (`scripts/oracle_schema.sh`): `merged`, on all databases as one, and `oracle`, each on a database of its
gold's tables alone. Golds name the tables as they are called there, and stay where they return the rows that they did.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.data.benchmarks import load_split
from jaxrl_sql.data.schema import RENDERERS, Schema, Used, ddl, link, quote_name, read_schema, used_by
from jaxrl_sql.sqlenv.executor import Executor
from jaxrl_sql.sqlenv.parse import parse_query
from jaxrl_sql.types import Example

SETS = ("spider_dev", "spider_train")


class Asked(NamedTuple):
    """A question on the merged database, what its gold reads there, and by their old names what tables are called."""

    example: Example
    used: Used
    names: Mapping[str, str]


class Found(NamedTuple):
    """Sums over N questions: what golds read, what of it is shown, and questions of which all is."""

    questions: int
    tables: int
    tables_shown: int
    columns: int
    columns_shown: int
    whole_tables: int
    whole_columns: int
    all_tables: int
    all_columns: int
    seconds: float


def characters(text: str) -> int:
    """Return how many tokens a text has, of three characters each."""
    return -(-len(text) // 3)


def merge(examples: Sequence[Example], target: Path, *, qualified: bool) -> list[Asked]:
    """Write the databases of the examples into one; return those whose golds' tables are known, asked there."""
    paths = sorted({example.db_path for example in examples})
    schemas = {path: read_schema(path) for path in paths}
    count = Counter(table.name.lower() for schema in schemas.values() for table in schema.tables)

    def name(path: str, table: str) -> str:
        return f"{Path(path).stem}.{table}" if qualified or count[table.lower()] > 1 else table

    renamed = [
        replace(
            table,
            name=name(path, table.name),
            foreign_keys=tuple(replace(key, table=name(path, key.table)) for key in table.foreign_keys),
        )
        for path, schema in schemas.items()
        for table in schema.tables
    ]
    with closing(sqlite3.connect(target)) as connection:
        connection.executescript(ddl(Schema(tuple(renamed))))
        for path, schema in schemas.items():
            connection.execute("ATTACH ? AS source", (path,))
            for table in schema.tables:
                names = ", ".join(quote_name(column.name, always=True) for column in table.columns)
                to, here = (quote_name(text, always=True) for text in (name(path, table.name), table.name))
                connection.execute(f"INSERT OR IGNORE INTO main.{to} ({names}) SELECT {names} FROM source.{here}")
            connection.commit()
            connection.execute("DETACH source")
    found = []
    for example in examples:
        path, used = example.db_path, used_by(example.gold_sql, schemas[example.db_path])
        if used is not None:
            tables = frozenset(name(path, table) for table in used.tables)
            columns = frozenset((name(path, table), column) for table, column in used.columns)
            names = {table.name.lower(): name(path, table.name) for table in schemas[path].tables}
            found.append(Asked(replace(example, db_path=str(target)), Used(tables, columns), names))
    return found


def measure(
    asked: Sequence[Asked], budget: int, show: Callable[[Example, Schema], str], count: Callable[[str], int]
) -> Found:
    """Ask every question within a budget, and look for what its gold reads in what is shown."""
    sums = [0] * 8
    start = time.process_time()
    for example, used, _ in asked:
        part = link(example, read_schema(example.db_path), lambda part, one=example: count(show(one, part)) <= budget)
        tables = {table.name for table in part.tables}
        columns = {(table.name, column.name) for table in part.tables for column in table.columns}
        more = (
            len(used.tables), len(used.tables & tables), len(used.columns), len(used.columns & columns),
            used.tables <= tables, used.columns <= columns, len(tables), len(columns),
        )  # fmt: skip
        sums = [old + new for old, new in zip(sums, more, strict=True)]
    return Found(len(asked), *sums, time.process_time() - start)


def moved(sql: str, names: Mapping[str, str]) -> str:
    """Return a query with its tables under other names, by their old ones in lower case; columns keep theirs."""
    tree = parse_query(sql)
    changed = (
        [] if tree is None else [t for t in tree.find_all(exp.Table) if names.get(t.name.lower(), t.name) != t.name]
    )
    for table in changed:
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("this", exp.to_identifier(names[table.name.lower()], quoted=True))
    return tree.sql("sqlite") if tree is not None and changed else sql


def part(source: str, tables: frozenset[str], target: Path) -> None:
    """Write some tables of a database, with their rows, as one of their own."""
    kept = [
        replace(table, foreign_keys=tuple(key for key in table.foreign_keys if key.table in tables))
        for table in read_schema(source).tables
        if table.name in tables
    ]
    target.parent.mkdir(parents=True)
    with closing(sqlite3.connect(target)) as connection:
        connection.executescript(ddl(Schema(tuple(kept))))
        connection.execute("ATTACH ? AS source", (source,))
        for table in kept:
            name = quote_name(table.name, always=True)
            connection.execute(f"INSERT INTO main.{name} SELECT * FROM source.{name}")
        connection.commit()


def write_sets(examples: Sequence[Example], folder: Path, *, qualified: bool) -> tuple[int, int]:
    """Write `merged` and `oracle` into a folder; return how many questions there are, and how many golds were kept."""
    merged = folder / "merged" / "databases" / "merged" / "merged.sqlite"
    merged.parent.mkdir(parents=True)
    old = {example.uid: example for example in examples}
    places: dict[frozenset[str], Path] = {}
    lines: dict[str, list[str]] = {"merged": [], "oracle": []}
    with Executor() as executor:
        for example, used, names in merge(examples, merged, qualified=qualified):
            if used.tables not in places:
                name = f"{example.db_id}_{len(places)}"
                places[used.tables] = folder / "oracle" / "databases" / name / f"{name}.sqlite"
                part(str(merged), used.tables, places[used.tables])
            gold, paths = moved(example.gold_sql, names), (str(merged), str(places[used.tables]))
            asked = [(old[example.uid].db_path, example.gold_sql), *((path, gold) for path in paths)]
            rows = [sorted(map(repr, one.rows)) if one.status == "ok" else None for one in executor.execute_many(asked)]
            if rows[0] is None or rows[1:] != rows[:1] * 2:
                continue
            for name, path in zip(lines, paths, strict=True):
                said = {"id": example.uid, "db_id": Path(path).stem, "question": example.question}
                lines[name].append(json.dumps({**said, "evidence": example.evidence, "sql": gold}) + "\n")
    for name, written in lines.items():
        (folder / name / "questions.jsonl").write_text("".join(written), encoding="utf-8")
    return len(examples), len(lines["merged"])


def show_found(name: str, found: Found) -> str:
    """Return a line of what was found."""
    return (
        f"{name}: {100 * found.tables_shown / found.tables:.1f} % of the golds' tables "
        f"({100 * found.whole_tables / found.questions:.1f} % of {found.questions} questions have all), "
        f"{100 * found.columns_shown / found.columns:.1f} % of their columns "
        f"({100 * found.whole_columns / found.questions:.1f} %); {found.all_tables / found.questions:.1f} tables and "
        f"{found.all_columns / found.questions:.0f} columns shown in {1000 * found.seconds / found.questions:.0f} ms"
    )


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("JAXRL_SQL_DATA", ""))
    parser.add_argument("--budget", type=int, default=2000)
    parser.add_argument("--schema", choices=RENDERERS, default="ddl")
    parser.add_argument("--qualified", action="store_true")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--every", type=int, default=1, help="of so many questions one is asked")
    parser.add_argument("--write", type=Path, help="a folder that is not there yet: write the sets of --set, and stop")
    parser.add_argument("--set", default=SETS[0])
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data or JAXRL_SQL_DATA names the folder of the real sets")
    if arguments.write:
        if arguments.write.exists():
            parser.error(f"--write {arguments.write}: is there; name another folder")
        examples = load_split(arguments.data, arguments.set).examples[:: arguments.every]
        all_of_them, kept = write_sets(examples, arguments.write, qualified=arguments.qualified)
        print(f"{arguments.set}: {kept} of {all_of_them} questions, in merged and oracle of {arguments.write}")
        return 0
    count = characters
    if arguments.tokenizer:
        from transformers import AutoTokenizer  # noqa: PLC0415 - only where tokens are counted by one

        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
        count = lambda text: len(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    for name in SETS:
        with TemporaryDirectory() as folder:
            asked = merge(
                load_split(arguments.data, name).examples, Path(folder) / "merged.sqlite", qualified=arguments.qualified
            )
            schema = read_schema(asked[0].example.db_path)
            print(f"{name}: {len(schema.tables)} tables, {count(ddl(schema)):,} tokens as DDL")
            show = RENDERERS[arguments.schema]
            print(show_found(name, measure(asked[:: arguments.every], arguments.budget, show, count)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
