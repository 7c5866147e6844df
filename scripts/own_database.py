"""Make a database and 60 questions for the commands of docs/tutorials/own_database.md.

    python scripts/own_database.py shop

writes shop/shop.sqlite (six tables, 5,000 rows, odd names, NULLs, dates as text), shop/train.csv (45 questions) and
shop/dev.csv (15, every fourth). Every gold was written for its question, runs, and returns something.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

TABLES = """
CREATE TABLE tblCustomers(id INTEGER PRIMARY KEY, fullName TEXT NOT NULL, home_city TEXT, "zip code" INTEGER, kind INT);
CREATE TABLE "Order Details"(orderID INTEGER PRIMARY KEY, "select" TEXT, unitPrice REAL, orderedOn TEXT,
  customer_id INTEGER REFERENCES tblCustomers(id), sku TEXT REFERENCES items(sku));
CREATE TABLE items(sku TEXT PRIMARY KEY, label TEXT, weight_g REAL);
CREATE TABLE stock(sku TEXT REFERENCES items(sku), depot INTEGER REFERENCES depots(nr), amount INTEGER);
CREATE TABLE depots(nr INTEGER PRIMARY KEY, town TEXT, "opened (year)" INTEGER);
CREATE TABLE "staff-2020"(badge TEXT PRIMARY KEY, name TEXT, depot INTEGER REFERENCES depots(nr), left_on TEXT);
"""
CUSTOMERS, ORDERS, ITEMS, STOCK, DEPOTS, STAFF = 400, 3000, 120, 900, 12, 568
CITIES = ("Oslo", "Rome", "Lima", "Porto", "Graz", "Cork", None)
COLOURS = ("red", "blue", "green", "black")
THINGS = ("lamp", "chair", "kettle", "rug", "desk", "clock", "mirror", "shelf", "stool", "vase")
STUFFS = ("oak", "steel", "glass", "linen", "cork", "brass", "clay", "wool", "pine", "stone", "paper", "zinc")
FIRST = ("Ada", "Bo", "Cleo", "Dov", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jun", "Kit", "Lea", "Max", "Nia", "Otto")
LAST = ("Berg", "Costa", "Dahl", "Engel", "Fiore", "Grant", "Holm", "Iqbal", "Jansen", "Kova", "Lund", "Moreau")
TOWNS = ("Oslo", "Rome", "Lima", "Porto", "Graz", "Cork", "Bern", "Kiel", "Nice", "Turku", "Brno", "Ghent")

KNOWN = {
    "VIP": "VIP means kind 3",
    "COLOUR": "the colour of an order is its column select",
    "HERE": "who is still there has no left_on",
}
# Each question, with the key of its evidence in brackets, and its gold SQL on the indented lines.
QUESTIONS = Path(__file__).with_name("own_database_questions.txt")


def questions() -> list[tuple[str, str, str]]:
    """Return (question, gold, evidence) of each question."""
    result = []
    for block in re.split(r"\n(?=\S)", QUESTIONS.read_text(encoding="utf-8").strip()):
        first, *sql = block.splitlines()
        question, _, name = first.removesuffix("]").partition(" [")
        result.append((question, " ".join(line.strip() for line in sql), KNOWN.get(name, "")))
    return result


def fill(connection: sqlite3.Connection) -> None:
    """Write the tables and their rows, from a fixed seed."""
    r = random.Random(20)
    connection.executescript(TABLES)
    names = [f"{first} {last}" for first in FIRST for last in LAST]

    def name(i: int) -> str:
        return names[i] if i < len(names) else f"{r.choice(FIRST)} {r.choice(LAST)} {i // len(names)}"

    def day(first: int, last: int) -> str:
        return f"{r.randint(first, last)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"

    skus = [f"s{100 + i}" for i in range(ITEMS)]
    labels = [f"{stuff} {thing}" for stuff in STUFFS for thing in THINGS]
    sold, remaining, buyers = skus[:-4], skus[3:], range(1, CUSTOMERS - 15)
    rows: dict[str, list[tuple[object, ...]]] = {
        "tblCustomers": [
            (i, name(i - 1), r.choice(CITIES), r.randint(1000, 9999), r.choices((0, 1, 2, 3), (6, 3, 2, 1))[0])
            for i in range(1, CUSTOMERS + 1)
        ],
        '"Order Details"': [
            (
                i, r.choices(COLOURS, (4, 3, 2, 1))[0], round(r.uniform(5, 500), 2), day(2019, 2023),
                None if r.random() < 0.05 else r.choice(buyers), r.choice(sold),
            )
            for i in range(1, ORDERS + 1)
        ],
        "items": [
            (sku, label, None if i % 25 == 7 else round(r.uniform(50, 5000), 1))
            for i, (sku, label) in enumerate(zip(skus, labels, strict=True))
        ],
        "stock": [(r.choice(remaining), r.randint(1, DEPOTS), r.randint(0, 90)) for _ in range(STOCK)],
        "depots": [(i + 1, town, 1985 + 3 * i) for i, town in enumerate(TOWNS)],
        '"staff-2020"': [
            (f"b{i:03}", name(r.randrange(STAFF)), r.randint(1, DEPOTS), day(2019, 2021) if r.random() < 0.3 else None)
            for i in range(STAFF)
        ],
    }  # fmt: skip
    for table, some in rows.items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(some[0]))})", some)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, write the folder, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True)
    rows = questions()
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        fill(connection)
        connection.commit()
        for question, sql, _ in rows:
            if not connection.execute(sql).fetchall():
                raise ValueError(f"the gold of {question!r} returns no rows")
    dev = rows[3::4]
    for name, selected in (("train", [request for request in rows if request not in dev]), ("dev", dev)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("question", "sql", "evidence"), *selected])
        sys.stdout.write(f"{folder / name}.csv: {len(selected)} questions\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
