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
# A question, with the name of what has to be known beside it, and below it the SQL that answers it.
SHEET = """
How many customers do we have?
    SELECT COUNT(*) FROM tblCustomers
How many orders have no customer?
    SELECT COUNT(*) FROM "Order Details" WHERE customer_id IS NULL
Which towns have a depot?
    SELECT town FROM depots
How many VIPs are there? [VIP]
    SELECT COUNT(*) FROM tblCustomers WHERE kind = 3
Which cities do our VIPs live in? [VIP]
    SELECT DISTINCT home_city FROM tblCustomers WHERE kind = 3
What is the heaviest item?
    SELECT label FROM items ORDER BY weight_g DESC LIMIT 1
What is the mean price of a red order? [COLOUR]
    SELECT AVG(unitPrice) FROM "Order Details" WHERE "select" = 'red'
How many customers live in Rome?
    SELECT COUNT(*) FROM tblCustomers WHERE home_city = 'Rome'
List the names of the customers from Graz.
    SELECT fullName FROM tblCustomers WHERE home_city = 'Graz'
How many orders came in 2021?
    SELECT COUNT(*) FROM "Order Details" WHERE orderedOn LIKE '2021%'
What is the largest order price?
    SELECT MAX(unitPrice) FROM "Order Details"
How many customers are there in each city?
    SELECT home_city, COUNT(*) FROM tblCustomers GROUP BY home_city
Which depot is the oldest?
    SELECT town FROM depots ORDER BY "opened (year)" LIMIT 1
How many depots opened after 2000?
    SELECT COUNT(*) FROM depots WHERE "opened (year)" > 2000
When did the depot in Bern open?
    SELECT "opened (year)" FROM depots WHERE town = 'Bern'
How many people work for us still? [HERE]
    SELECT COUNT(*) FROM "staff-2020" WHERE left_on IS NULL
Which of our people have left? [HERE]
    SELECT name FROM "staff-2020" WHERE left_on IS NOT NULL
How much of everything lies in the depot in Kiel?
    SELECT SUM(T1.amount) FROM stock AS T1 JOIN depots AS T2 ON T1.depot = T2.nr WHERE T2.town = 'Kiel'
How many people work in each depot?
    SELECT depot, COUNT(*) FROM "staff-2020" GROUP BY depot
What is the total price of all orders?
    SELECT SUM(unitPrice) FROM "Order Details"
Which colours can be ordered? [COLOUR]
    SELECT DISTINCT "select" FROM "Order Details"
How many orders are there of each colour? [COLOUR]
    SELECT "select", COUNT(*) FROM "Order Details" GROUP BY "select"
Which colour is ordered most? [COLOUR]
    SELECT "select" FROM "Order Details" GROUP BY "select" ORDER BY COUNT(*) DESC LIMIT 1
Show the three most expensive orders.
    SELECT orderID FROM "Order Details" ORDER BY unitPrice DESC LIMIT 3
Which items weigh more than 4000 grams?
    SELECT label FROM items WHERE weight_g > 4000
What does the average item weigh?
    SELECT AVG(weight_g) FROM items
Which customers have never ordered anything?
    SELECT fullName FROM tblCustomers WHERE id NOT IN (SELECT customer_id FROM "Order Details" WHERE customer_id
    IS NOT NULL)
How many different customers have ordered something?
    SELECT COUNT(DISTINCT customer_id) FROM "Order Details"
Of how many customers do we not know the city?
    SELECT COUNT(*) FROM tblCustomers WHERE home_city IS NULL
What did customers from Oslo pay in all?
    SELECT SUM(T2.unitPrice) FROM tblCustomers AS T1 JOIN "Order Details" AS T2 ON T1.id = T2.customer_id WHERE
    T1.home_city = 'Oslo'
Which customer has the most orders?
    SELECT T1.fullName FROM tblCustomers AS T1 JOIN "Order Details" AS T2 ON T1.id = T2.customer_id GROUP BY T1.id
    ORDER BY COUNT(*) DESC LIMIT 1
What is the cheapest order?
    SELECT orderID FROM "Order Details" ORDER BY unitPrice LIMIT 1
How many items have an unknown weight?
    SELECT COUNT(*) FROM items WHERE weight_g IS NULL
How many orders did VIPs make? [VIP]
    SELECT COUNT(*) FROM "Order Details" AS T1 JOIN tblCustomers AS T2 ON T1.customer_id = T2.id WHERE T2.kind = 3
Who works in the depot in Nice?
    SELECT T1.name FROM "staff-2020" AS T1 JOIN depots AS T2 ON T1.depot = T2.nr WHERE T2.town = 'Nice'
What is the date of the first order?
    SELECT MIN(orderedOn) FROM "Order Details"
What is the date of the last order?
    SELECT MAX(orderedOn) FROM "Order Details"
Which depots hold more than 3000 pieces?
    SELECT T2.town FROM stock AS T1 JOIN depots AS T2 ON T1.depot = T2.nr GROUP BY T2.nr HAVING SUM(T1.amount) >
    3000
How many items do we have?
    SELECT COUNT(*) FROM items
How many items does the depot in Lima hold?
    SELECT COUNT(DISTINCT T1.sku) FROM stock AS T1 JOIN depots AS T2 ON T1.depot = T2.nr WHERE T2.town = 'Lima'
Which item was ordered most often?
    SELECT T1.label FROM items AS T1 JOIN "Order Details" AS T2 ON T1.sku = T2.sku GROUP BY T1.sku ORDER BY
    COUNT(*) DESC LIMIT 1
How many black orders cost more than 400? [COLOUR]
    SELECT COUNT(*) FROM "Order Details" WHERE "select" = 'black' AND unitPrice > 400
Which cities have more than 60 customers?
    SELECT home_city FROM tblCustomers GROUP BY home_city HAVING COUNT(*) > 60
What is the zip code of Ada Berg?
    SELECT "zip code" FROM tblCustomers WHERE fullName = 'Ada Berg'
How many customers are there of each kind?
    SELECT kind, COUNT(*) FROM tblCustomers GROUP BY kind
What do VIPs pay for an order on average? [VIP]
    SELECT AVG(T2.unitPrice) FROM tblCustomers AS T1 JOIN "Order Details" AS T2 ON T1.id = T2.customer_id WHERE
    T1.kind = 3
How many people left in 2020?
    SELECT COUNT(*) FROM "staff-2020" WHERE left_on LIKE '2020%'
Which orders cost more than the average?
    SELECT orderID FROM "Order Details" WHERE unitPrice > (SELECT AVG(unitPrice) FROM "Order Details")
In which town do most of our people work?
    SELECT T2.town FROM "staff-2020" AS T1 JOIN depots AS T2 ON T1.depot = T2.nr GROUP BY T2.nr ORDER BY COUNT(*)
    DESC LIMIT 1
Which item is the lightest?
    SELECT label FROM items ORDER BY weight_g LIMIT 1
How many pieces of each item are in stock?
    SELECT sku, SUM(amount) FROM stock GROUP BY sku
Which items are in no depot?
    SELECT label FROM items WHERE sku NOT IN (SELECT sku FROM stock)
How many orders came in March 2022?
    SELECT COUNT(*) FROM "Order Details" WHERE orderedOn LIKE '2022-03%'
List all depots from the newest to the oldest.
    SELECT town FROM depots ORDER BY "opened (year)" DESC
Which VIPs live in Porto? [VIP]
    SELECT fullName FROM tblCustomers WHERE kind = 3 AND home_city = 'Porto'
How many orders did each city make?
    SELECT T1.home_city, COUNT(*) FROM tblCustomers AS T1 JOIN "Order Details" AS T2 ON T1.id = T2.customer_id
    GROUP BY T1.home_city
What is the average price of an order by colour? [COLOUR]
    SELECT "select", AVG(unitPrice) FROM "Order Details" GROUP BY "select"
How many depots are there?
    SELECT COUNT(*) FROM depots
Which items were never ordered?
    SELECT label FROM items WHERE sku NOT IN (SELECT sku FROM "Order Details")
How many orders have a price between 100 and 200?
    SELECT COUNT(*) FROM "Order Details" WHERE unitPrice BETWEEN 100 AND 200
"""


def questions() -> list[tuple[str, str, str]]:
    """Return questions, golds and what has to be known."""
    result = []
    for part in re.split(r"\n(?=\S)", SHEET.strip()):
        first, *sql = part.splitlines()
        question, _, name = first.removesuffix("]").partition(" [")
        result.append((question, " ".join(line.strip() for line in sql), KNOWN.get(name, "")))
    return result


def fill(connection: sqlite3.Connection) -> None:
    """Write the tables and their rows, the same each time."""
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
    """Read the command line, write the folder, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True)
    requests = questions()
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        fill(connection)
        connection.commit()
        for question, sql, _ in requests:
            if not connection.execute(sql).fetchall():
                raise ValueError(f"nothing is returned for {question!r}")
    dev = requests[3::4]
    for name, part in (("train", [request for request in requests if request not in dev]), ("dev", dev)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("question", "sql", "evidence"), *part])
        sys.stdout.write(f"{folder / name}.csv: {len(part)} questions\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
