"""Measure value retrieval: what it takes, and how many of the texts in the golds it finds.

`python scripts/bench_retrieval.py`: a database of `--values` texts (names, places, titles and codes) is indexed, the
index is read back from disk, and `--questions` questions that name one of them are asked. When `--data` (or
JAXRL_SQL_DATA) names the folder of the real sets, the text literals of their golds are looked for, by tokens of three
characters, as the package does, the same with values cut out of words, and by whole words. A literal counts where it is
a value of the database, in any case; what is shown counts as cut where it stands nowhere from the start of a word of
the question to the end of one, with an ending or without. `--synonyms FOLDER` of word vectors (`data.synonyms`) also
says what these find.
Times are the processor's, all of one thread.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import sqlglot
from sqlglot import exp

from jaxrl_sql.data.benchmarks import load_split
from jaxrl_sql.data.schema import retrieve
from jaxrl_sql.data.schema.read import read_schema
from jaxrl_sql.data.schema.synonyms import find_alike
from jaxrl_sql.types import Example

SETS = ("spider_dev", "bird_superhero", "spider_train")
# Tokens, and whether a piece of a value stands in a question.
WAYS = {
    "three characters": (retrieve.TOKEN, retrieve._stands),  # noqa: SLF001 - what is compared
    "also cut out of words": (retrieve.TOKEN, lambda piece, asked: piece in asked),
    "words": (re.compile(r"(\w+)"), retrieve._stands),  # noqa: SLF001
}
FIRST = "Ada Bo Chen Dora Emil Fay Gus Hana Ivo Jun Kim Lena Mara Nils Oya Pia Quin Rosa Sven Tove Uma Vera Wim Zoe"
LAST = "berg stein field wood land ton ville burg mann sen ski dottir ham ford worth well smith ley more ridge"
THINGS = "river station album machine garden letter bridge market school engine forest window island summer castle"


class Found(NamedTuple):
    """Literals of the golds, those that are values, those found; values shown, those cut, and seconds taken."""

    literals: int
    values: int
    found: int
    shown: int
    cut: int
    seconds: float


def texts(count: int, rng: random.Random) -> list[list[str]]:
    """Return names, places, titles and codes, a quarter each."""
    first, last, things = FIRST.split(), LAST.split(), THINGS.split()

    def name() -> str:
        return rng.choice(first) + rng.choice(last)

    makers = (
        lambda: f"{rng.choice(first)} {name()}-{name()}",
        lambda: f"{name()} {rng.choice(things).title()} {rng.randrange(1000)}",
        lambda: f"The {rng.choice(things)} of the {rng.choice(things)} {name()}",
        lambda: f"{rng.choice('ABCDEFG')}{rng.randrange(10**6):06}-{rng.randrange(100):02}",
    )
    made = []
    for maker in makers:
        found: dict[str, None] = {}
        while len(found) < count // len(makers):
            found[maker()[: retrieve._LONGEST]] = None  # noqa: SLF001
        made.append(list(found))
    return made


def measure_cost(count: int, questions: int) -> None:
    """Print the time of indexing, of reading the index back, and of a question."""
    rng = random.Random(0)
    made = texts(count, rng)
    with TemporaryDirectory() as folder:
        os.environ["JAXRL_SQL_CACHE"] = f"{folder}/cache"
        path = Path(folder) / "d.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            for number, column in enumerate(made):
                connection.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, text TEXT)")
                connection.executemany(f"INSERT INTO t{number} (text) VALUES (?)", ((text,) for text in column))
            connection.commit()
        start = time.process_time()
        retrieve._import_bm25s()  # noqa: SLF001
        print(f"bm25s imported in {time.process_time() - start:.2f} s")
        start = time.process_time()
        index = retrieve.open_index(str(path))
        print(
            f"{len(index.owner):,} values indexed in {time.process_time() - start:.2f} s; {index.nbytes / 1e6:.1f} MB"
        )
        retrieve._recent.clear()  # noqa: SLF001
        start = time.process_time()
        index = retrieve.open_index(str(path))
        print(f"read from disk in {1000 * (time.process_time() - start):.0f} ms")
        times, right = [], 0
        for _ in range(questions):
            text = rng.choice(rng.choice(made))
            question = (
                f"Among those from before 1990, how many have to do with {text}, and which is the most recent of all?"
            )
            start = time.process_time()
            found = index.search(question, 20)
            times.append(1000 * (time.process_time() - start))
            right += any(value == text for _, _, value in found)
        print(
            f"a question takes {statistics.median(times):.2f} ms (of {questions} the slowest {max(times):.1f} ms); "
            f"{right} of {questions} find the value that they name"
        )


def measure_recall(root: str, name: str, best: int) -> None:
    """Print the share of the golds' literals that are found, by each kind of token."""
    examples = load_split(root, name).examples
    for kind, (retrieve.TOKEN, retrieve._stands) in WAYS.items():  # noqa: SLF001
        indices = {path: index_of(path) for path in {example.db_path for example in examples}}
        total = recall_of(examples, indices, best)
        print(
            f"{name}, {kind}: {total.literals} literals, {total.values} of them values, {total.found} found "
            f"({100 * total.found / total.values:.1f} % of values, {100 * total.found / total.literals:.1f} % of all); "
            f"{total.shown / len(examples):.2f} values, {100 * total.cut / total.shown:.1f} % of them cut, and "
            f"{1000 * total.seconds / len(examples):.2f} ms a question"
        )


def measure_synonyms(root: str, name: str, best: int, folder: str) -> None:
    """Print how many of the golds' literals word vectors find that the question does not name, and what they show."""
    examples = load_split(root, name).examples
    shown = right = 0
    start = time.process_time()
    for example in examples:
        named = retrieve.find_values(example, best)
        meant = {value.casefold() for *_, value in find_alike(example, best, folder)}
        more = meant - {value.casefold() for *_, value in named}
        shown += len(more)
        right += len(more & set(literals(example)))
    each = 1000 * (time.process_time() - start) / len(examples)
    print(
        f"{name}, word vectors: {shown / len(examples):.2f} values more a question, {right} of them literals, in "
        f"{each:.2f} ms"
    )


def index_of(path: str) -> retrieve.TextIndex:
    """Index a database, without what is kept of it: the tokens may be others."""
    return retrieve.make_index(*retrieve.read_texts(path))


def recall_of(examples: Sequence[Example], indices: dict[str, retrieve.TextIndex], best: int) -> Found:
    """Ask every question, and look for the literals of its gold among what is found."""
    counts = [0, 0, 0, 0, 0]
    seconds = 0.0
    known = {path: {index.text(i).casefold() for i in range(len(index.owner))} for path, index in indices.items()}
    for example in examples:
        start = time.process_time()
        asked = f"{example.evidence}\n{example.question}"
        found = indices[example.db_path].search(asked, best)
        seconds += time.process_time() - start
        cut = sum(is_cut(retrieve.fold(value), retrieve.fold(asked)) for _, _, value in found)
        shown = {value.casefold() for _, _, value in found}
        wanted = literals(example)
        values = [text for text in wanted if text in known[example.db_path]]
        hits = sum(text in shown for text in values)
        for i, more in enumerate((len(wanted), len(values), hits, len(found), cut)):
            counts[i] += more
    return Found(*counts, seconds)


def is_cut(text: str, asked: str) -> bool:
    """Return whether no piece of a text that is large enough stands in `asked` without parts of words round it."""
    least = retrieve._needed(len(text))  # noqa: SLF001
    pieces = [text[at : at + n] for n in range(least, len(text) + 1) for at in range(len(text) - n + 1)]
    return not any(re.search(rf"(?:(?<!\w)|(?!\w)){re.escape(piece)}(?:(?!\w)|(?<!\w))", asked) for piece in pieces)


def literals(example: Example) -> list[str]:
    """Return the texts of a gold, also those in double quotes that name no column, without a pattern's `%`."""
    columns = {column.name.lower() for table in read_schema(example.db_path).tables for column in table.columns}
    try:
        tree = sqlglot.parse_one(example.gold_sql, read="sqlite")
    except sqlglot.errors.SqlglotError:
        return []
    quoted = [
        node.name
        for node in tree.find_all(exp.Column)
        if node.this.args.get("quoted") and not node.table and node.name.lower() not in columns
    ]
    texts = [node.this for node in tree.find_all(exp.Literal) if node.is_string]
    return [text.strip("%").casefold() for text in (*texts, *quoted)]


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--best", type=int, default=20)
    parser.add_argument("--data", default=os.environ.get("JAXRL_SQL_DATA", ""))
    parser.add_argument("--synonyms", default="", help="a folder of word vectors")
    arguments = parser.parse_args()
    measure_cost(arguments.values, arguments.questions)
    if arguments.data:
        for name in SETS:
            if arguments.synonyms:
                measure_synonyms(arguments.data, name, arguments.best, arguments.synonyms)
            else:
                measure_recall(arguments.data, name, arguments.best)
    return 0


if __name__ == "__main__":
    sys.exit(main())
