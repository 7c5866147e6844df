"""The judge agrees with independent implementations of Spider's and BIRD's evaluations on Python's sqlite3.

Mutated golds give pairs that are nearly right: the database's other gold, without DISTINCT, with columns swapped, with
another literal, without an order.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.env.executor import Executor, Limits
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.types import Example

Row = tuple[Any, ...]
MAX_ROWS = 20_000

# --- the references ---


class Failed(Exception):  # noqa: N818 - an answer, not an error
    """A query failed."""


class Reference:
    """Runs SQL with Python's sqlite3 on cached connections; invalid UTF-8 bytes of texts are dropped."""

    def __init__(self) -> None:
        self.connections: dict[str, sqlite3.Connection] = {}

    def rows(self, db_path: str, sql: str) -> list[Row]:
        if db_path not in self.connections:
            connection = sqlite3.connect(f"file:{db_path}?mode=ro", uri=True)
            connection.text_factory = lambda raw: raw.decode(errors="ignore")
            self.connections[db_path] = connection
        try:
            return self.connections[db_path].execute(sql).fetchmany(MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise Failed(str(error)) from error

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


def bird_verdict(predicted: list[Row], gold: list[Row]) -> bool:
    """Compare sets of rows."""
    return set(predicted) == set(gold)


def spider_verdict(predicted: list[Row], gold: list[Row], gold_sql: str) -> bool:
    """Search a permutation of columns; rows are a list if the gold's text requests an order, else a multiset."""
    if not predicted and not gold:
        return True
    if len(predicted) != len(gold) or len(predicted[0]) != len(gold[0]):
        return False
    ordered = "order by" in gold_sql.lower()
    left, right = ([by_text(row) for row in rows] for rows in (predicted, gold))
    if (left != right) if ordered else (set(left) != set(right)):
        return False
    return any(moved == gold if ordered else Counter(moved) == Counter(gold) for moved in moves(predicted, gold))


def by_text(row: Row) -> Row:
    return tuple(sorted(row, key=lambda value: f"{value}{type(value)}"))


def moves(predicted: list[Row], gold: list[Row]) -> Iterator[list[Row]]:
    """Yield the prediction's rows under each permutation that moves columns to equal values of the gold."""
    columns, wanted = ([Counter(column) for column in zip(*rows, strict=True)] for rows in (predicted, gold))
    fits = [[i for i, column in enumerate(columns) if column == other] for other in wanted]

    def extend(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == len(fits):
            yield order
            return
        for i in fits[len(order)]:
            if i not in order:
                yield from extend((*order, i))

    for order in extend(()):
        yield [tuple(row[i] for i in order) for row in predicted]


# --- the mutations: each changes a tree in place, if it applies ---

Mutation = Callable[[exp.Expression, random.Random], None]


def swap_columns(tree: exp.Expression, rng: random.Random) -> None:
    for select in tree.find_all(exp.Select):
        rng.shuffle(select.expressions)
        select.set("expressions", select.expressions)


def drop_column(tree: exp.Expression, rng: random.Random) -> None:
    select = tree.find(exp.Select)
    if select and len(select.expressions) > 1:
        select.set("expressions", select.expressions[:-1])


def repeat_column(tree: exp.Expression, rng: random.Random) -> None:
    select = tree.find(exp.Select)
    if select:
        select.set("expressions", [*select.expressions, rng.choice(select.expressions).copy()])


def toggle_distinct(tree: exp.Expression, rng: random.Random) -> None:
    select = tree.find(exp.Select)
    if select:
        select.set("distinct", None if select.args.get("distinct") else exp.Distinct())


def drop(name: str) -> Mutation:
    def mutate(tree: exp.Expression, rng: random.Random) -> None:
        tree.set(name, None)

    return mutate


def turn_order(tree: exp.Expression, rng: random.Random) -> None:
    for key in tree.find_all(exp.Ordered):
        key.set("desc", not key.args.get("desc"))


def change_literal(tree: exp.Expression, rng: random.Random) -> None:
    literals = list(tree.find_all(exp.Literal))
    if literals:
        item = rng.choice(literals)
        item.set(
            "this",
            item.this + "x" if item.is_string else str(float(item.this) + rng.choice([-1, 1])).removesuffix(".0"),
        )


def change_number_type(tree: exp.Expression, rng: random.Random) -> None:
    select = tree.find(exp.Select)
    if select:
        kind = rng.choice(["REAL", "TEXT"])
        first = select.expressions[0]
        if not first.is_star:
            select.set("expressions", [exp.cast(first.unalias().copy(), kind), *select.expressions[1:]])


def change_aggregate(tree: exp.Expression, rng: random.Random) -> None:
    result = tree.find(exp.Max, exp.Min, exp.Avg, exp.Sum)
    if result:
        result.replace(rng.choice([exp.Max, exp.Min, exp.Avg, exp.Sum])(this=result.this.copy()))


def count_distinct(tree: exp.Expression, rng: random.Random) -> None:
    result = tree.find(exp.Count)
    if result and isinstance(result.this, exp.Column):
        result.set("this", exp.Distinct(expressions=[result.this.copy()]))


MUTATIONS: tuple[Mutation, ...] = (
    swap_columns, swap_columns, drop_column, repeat_column, toggle_distinct, toggle_distinct, drop("order"),
    drop("order"), drop("where"), drop("limit"), drop("having"), turn_order, change_literal, change_number_type,
    change_aggregate, count_distinct,
)  # fmt: skip


def mutate(sql: str, rng: random.Random) -> str:
    try:
        tree = sqlglot.parse_one(sql, read="sqlite")
        for mutation in rng.sample(MUTATIONS, rng.choice([1, 1, 2])):
            mutation(tree, rng)
        text = tree.sql("sqlite")
    except (sqlglot.errors.SqlglotError, ValueError):
        return sql
    if rng.random() < 0.05:
        text = f"SELECT * FROM ({text.rstrip('; ')}) UNION ALL SELECT * FROM ({text.rstrip('; ')})"
    return text


def pairs(examples: Sequence[Example], n: int, seed: int) -> list[tuple[Example, str]]:
    rng = random.Random(seed)
    by_database: dict[str, list[Example]] = {}
    for example in examples:
        by_database.setdefault(example.db_id, []).append(example)
    result = []
    for _ in range(n):
        example = rng.choice(examples)
        kind = rng.random()
        if kind < 0.1:
            predicted = rng.choice(by_database[example.db_id]).gold_sql
        elif kind < 0.2:
            predicted = mutate(rng.choice(by_database[example.db_id]).gold_sql, rng)
        else:
            predicted = mutate(example.gold_sql, rng)
        result.append((example, predicted))
    return result


def check(examples: Sequence[Example], n: int, seed: int = 0) -> Counter[str]:
    """Compare verdicts on n pairs; return the number of each verdict per rule."""
    predictions = pairs(examples, n, seed)
    limits = Limits(max_rows=MAX_ROWS, timeout_ms=10_000)
    with Executor(threads=2, limits=limits) as executor:
        verdicts = score_predictions(
            executor, [item for item, _ in predictions], [sql for _, sql in predictions], ("bird", "test_suite")
        )
    counts: Counter[str] = Counter()
    reference = Reference()
    wrong = []
    with closing(reference):
        for (example, sql), verdict in zip(predictions, verdicts, strict=True):
            if verdict.status in ("timeout", "too_large") or verdict.gold_status != "ok":
                counts["passed over"] += 1
                continue
            try:
                predicted = reference.rows(example.db_path, sql)
            except Failed:
                counts["fails"] += 1
                says = {"bird": False, "test_suite": False}
            else:
                gold = reference.rows(example.db_path, example.gold_sql)
                says = {
                    "bird": bird_verdict(predicted, gold),
                    "test_suite": spider_verdict(predicted, gold, example.gold_sql),
                }
            for rule, right in says.items():
                counts[f"{rule} {'right' if right else 'wrong'}"] += 1
                if verdict.is_right(rule) != right:
                    wrong.append((rule, right, verdict.status, example.uid, example.gold_sql, sql))
    assert not wrong, f"{len(wrong)} of {n} differ: {wrong[:5]}"
    return counts


# --- a small synthetic database, with values that are hard to compare ---

WORLD = """
CREATE TABLE shop(id INTEGER PRIMARY KEY, name TEXT, town TEXT, area REAL, opened INT);
CREATE TABLE item(id INTEGER PRIMARY KEY, shop_id INT, label TEXT, price REAL, stock INT, code TEXT);
CREATE TABLE sale(item_id INT, day TEXT, amount INT, note TEXT);
"""

GOLDS = """
SELECT count(*) FROM shop
SELECT name, town FROM shop
SELECT name, town, area FROM shop ORDER BY area DESC
SELECT DISTINCT town FROM shop
SELECT town, count(*) FROM shop GROUP BY town
SELECT town, count(*) FROM shop GROUP BY town HAVING count(*) > 2 ORDER BY count(*) DESC
SELECT name FROM shop WHERE area > 20 AND town LIKE '%a%'
SELECT T1.name, T2.label FROM shop AS T1 JOIN item AS T2 ON T1.id = T2.shop_id
SELECT T1.name, avg(T2.price) FROM shop AS T1 JOIN item AS T2 ON T1.id = T2.shop_id GROUP BY T1.id
SELECT label, price, stock FROM item WHERE stock IS NULL OR price > 3
SELECT max(price), min(price), avg(price) FROM item
SELECT label FROM item ORDER BY price LIMIT 3
SELECT label FROM item EXCEPT SELECT label FROM item WHERE price > 5
SELECT stock, opened FROM item JOIN shop ON shop.id = item.shop_id
SELECT shop_id, stock FROM item
SELECT stock, shop_id, id FROM item WHERE id < 10
SELECT sum(amount) FROM sale
SELECT day, sum(amount) FROM sale GROUP BY day ORDER BY day
SELECT note FROM sale
SELECT count(DISTINCT note) FROM sale
SELECT code, stock FROM item WHERE code = '7'
SELECT name FROM shop WHERE id NOT IN (SELECT shop_id FROM item)
SELECT name FROM shop WHERE id IN (SELECT shop_id FROM item WHERE price > 100)
SELECT item_id, amount FROM sale WHERE amount > 2 ORDER BY amount DESC, item_id
""".strip().splitlines()


@pytest.fixture
def world(tmp_path: Path) -> list[Example]:
    path = tmp_path / "world.sqlite"
    rng = random.Random(7)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(WORLD)
        for i in range(12):
            row = (i, rng.choice(["Ada", "Bob", None, "Æ"]), rng.choice(["Rome", "Oslo", "Bari"]), i * 4.0, i % 3)
            db.execute("INSERT INTO shop VALUES (?, ?, ?, ?, ?)", row)
        for i in range(30):
            price, stock = rng.choice([1, 2.0, 2.5, None, 10, 1e6]), rng.choice([None, 0, 1, 1, 2])
            code = rng.choice(["7", "07", "x", ""])
            db.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?, ?)", (i, i % 9, f"l{i % 7}", price, stock, code))
        for i in range(60):
            note = rng.choice([None, "", "a", b"a", "1", 1, 1.0])
            db.execute("INSERT INTO sale VALUES (?, ?, ?, ?)", (i % 30, f"d{i % 5}", i % 4, note))
        # Invalid UTF-8: both evaluations skip the byte.
        db.execute("INSERT INTO sale VALUES (1, 'd1', 2, CAST(x'61ff' AS TEXT))")
        db.commit()
    return [Example(f"q{i}", "world", str(path), "?", sql) for i, sql in enumerate(GOLDS)]


def test_judge_agrees_with_the_references(world: list[Example]) -> None:
    counts = check(world, 500)
    assert counts["bird right"] > 50 < counts["test_suite right"]
    assert counts["bird wrong"] > 100 < counts["test_suite wrong"]
    assert counts["fails"] > 0


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.skipif("JAXRL_SQL_DATA" not in os.environ, reason="JAXRL_SQL_DATA does not name the real sets' folder")
def test_judge_agrees_with_the_references_on_spider() -> None:
    examples = load_split(os.environ["JAXRL_SQL_DATA"], "spider_dev").examples
    counts = check(examples, 10_000)
    assert counts["bird right"] > 1_000 < counts["test_suite right"]
    assert counts["bird wrong"] > 1_000 < counts["test_suite wrong"]


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.skipif("JAXRL_SQL_DATA" not in os.environ, reason="JAXRL_SQL_DATA does not name the real sets' folder")
def test_suite_verdict_agrees_with_the_reference_on_each_database() -> None:
    data = Path(os.environ["JAXRL_SQL_DATA"])
    folder = data / "spider_dev_testsuite" / "databases"
    examples = [
        dataclasses.replace(item, suite=tuple(sorted(map(str, (folder / item.db_id).glob("*.sqlite")))))
        for item in load_split(str(data), "spider_dev").examples
    ]
    predictions = pairs(examples, 400, seed=1)
    with Executor(threads=2, limits=Limits(max_rows=MAX_ROWS, timeout_ms=10_000)) as executor:
        verdicts = score_predictions(
            executor, [entry for entry, _ in predictions], [sql for _, sql in predictions], ("test_suite", "suite")
        )
    counts: Counter[str] = Counter()
    with closing(Reference()) as reference:
        for (example, sql), verdict in zip(predictions, verdicts, strict=True):
            if "suite" not in verdict.scores or verdict.status in ("timeout", "too_large"):
                continue
            right = all(spider_agrees(reference, path, sql, example.gold_sql) for path in example.suite)
            counts[f"{verdict.is_right('test_suite')} {right}"] += 1
            assert verdict.is_right("suite") is right, (example.uid, sql)
    assert counts["True True"] > 50
    assert counts["True False"] > 5, "right on one database and wrong on others"


def spider_agrees(reference: Reference, path: str, sql: str, gold_sql: str) -> bool:
    try:
        return spider_verdict(reference.rows(path, sql), reference.rows(path, gold_sql), gold_sql)
    except Failed:
        return False
