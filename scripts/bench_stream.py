"""Measure how a huge set is opened and drawn from: `python scripts/bench_stream.py [--records 2500000] [--list]`.

A set of the shape of SynSQL-2.5M is written into a temporary folder, which is removed afterwards, with fewer bytes a
record so that it fits there: records on 16,000 databases (fewer files that are hard links of one another), with a chain
of thought each. Printed are the first index, the opening after it, and the memory of a process that draws shuffled
batches and makes their prompts. `--keep DIR` leaves the set there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

_DISTINCT = 64  # databases that are written; the others are links to them
_FOLDER_LIMIT = 2 << 30


def write_set(folder: Path, records: int, databases: int, as_list: bool) -> Path:
    """Write the set; return its file of records."""
    made = []
    for number in range(databases):
        path = folder / "databases" / f"db_{number}" / f"db_{number}.sqlite"
        path.parent.mkdir(parents=True)
        if number < _DISTINCT:
            write_database(path, number)
            made.append(path)
        else:
            os.link(made[number % _DISTINCT], path)
    path = folder / ("data.json" if as_list else "data.jsonl")
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n" if as_list else "")
        for start in range(0, records, 10_000):
            chunk = [record(number, databases) for number in range(start, min(start + 10_000, records))]
            more = as_list and start + 10_000 < records
            file.write((",\n" if as_list else "\n").join(chunk) + (",\n" if more else "\n"))
        file.write("]\n" if as_list else "")
    return path


def write_database(path: Path, seed: int) -> None:
    """Write a database of ten tables of nine columns, as those of the set are."""
    with closing(sqlite3.connect(path)) as connection:
        for table in range(10):
            columns = ", ".join(f"column_{seed}_{table}_{c} {'INTEGER' if c % 2 else 'TEXT'}" for c in range(9))
            connection.execute(f"CREATE TABLE table_{seed}_{table}(id INTEGER PRIMARY KEY, {columns})")
        connection.commit()


def record(number: int, databases: int) -> str:
    """Return a record as a line of JSON, with quotes, braces and escapes in its texts."""
    db = number * 7919 % databases
    level = ("Simple", "Moderate", "Complex", "Highly Complex")[number % 4]
    of = db % _DISTINCT
    return _RECORD % (db, level, number, number % 10, of, of, number, of, of, number)


def template() -> str:
    """Return the text of a record with places for its numbers: a set of millions is written in a minute so."""
    sql = 'SELECT column_%d_1_3 FROM table_%d_1 WHERE id > %d AND name = "a{b"'
    thought = f"We need the third column \\ of table %d. {'It is filtered by its id. ' * 12}"
    one = {
        "db_id": "db_%d",
        "sql_complexity": "%s",
        "question_style": "Formal",
        "question": "What are the values of the third column where the id is above %d?",
        "external_knowledge": "",
        "cot": f"{thought}\n```sql\n{sql}\n```",
        "sql": sql,
    }
    return json.dumps(one)


_RECORD = template()


def rss() -> float:
    """Return this process's resident memory in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def draw(folder: Path, batches: int, size: int) -> None:
    """Open the set and draw batches with their prompts; print times and memory."""
    from jaxrl_sql.data.order import Order  # noqa: PLC0415
    from jaxrl_sql.data.prompts import compact_style  # noqa: PLC0415  (what this process alone measures)
    from jaxrl_sql.data.stream import open_stream, stream_prompts  # noqa: PLC0415

    class Bytes:
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            """Return about as many ids as a tokenizer of words would."""
            return list(text.encode()[:: 1 if add_special_tokens else 4])

    imported, begun = rss(), time.perf_counter()
    examples = open_stream(folder)
    if examples is None:
        sys.exit(f"{folder} is no set that is streamed")
    print(f"opened {len(examples):,} records in {time.perf_counter() - begun:.2f} s; {imported:.0f} MiB before")
    begun = time.perf_counter()
    made = stream_prompts(examples, compact_style(), Bytes(), 4096)
    order = Order(len(examples), 0)
    order.take(0, 1)
    print(f"first shuffle in {time.perf_counter() - begun:.2f} s, {rss():.0f} MiB")
    begun, cursor, most = time.perf_counter(), 0, 0.0
    for number in range(1, batches + 1):
        numbers, cursor = order.take(cursor, size)
        tokens = sum(len(made.prompts[one].token_ids) for one in numbers)
        most = max(most, rss())
        if number in (1, batches // 4, batches // 2, batches):
            speed = f"{number * size / (time.perf_counter() - begun):,.0f} prompts/s of {tokens // size} tokens"
            print(f"batch {number} of {size}: {speed}, {rss():.0f} MiB", flush=True)
    print(f"most memory {most:.0f} MiB; records left out: {dict(examples.skipped)}")


def main() -> None:
    """Read the command line, write the set and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_500_000)
    parser.add_argument("--databases", type=int, default=16_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--list", action="store_true", help="one JSON list in place of JSON lines")
    parser.add_argument("--draw", default="", help="open and draw from this folder, which is what a fresh process does")
    parser.add_argument("--keep", default="")
    parser.add_argument("--tmp", default="", help="where the set is written")
    args = parser.parse_args()
    if args.draw:
        draw(Path(args.draw), args.batches, args.size)
        return
    folder = Path(args.keep or tempfile.mkdtemp(prefix="stream", dir=args.tmp or None))
    try:
        if len(record(args.records, args.databases)) * args.records > _FOLDER_LIMIT:
            sys.exit(f"{args.records:,} records would take more than 2 GiB")
        begun = time.perf_counter()
        path = write_set(folder, args.records, args.databases, args.list)
        size = path.stat().st_size / 2**20
        print(f"wrote {args.records:,} records, {size:,.0f} MiB, in {time.perf_counter() - begun:.0f} s")
        for what in ("first", "again"):
            print(f"-- {what}")
            again = ["--draw", str(folder), "--batches", str(args.batches), "--size", str(args.size)]
            subprocess.run([sys.executable, __file__, *again], check=True)
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
