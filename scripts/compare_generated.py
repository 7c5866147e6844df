"""Compare question sets: features of the golds, joins, levels, skeletons, and schema names in questions.

`python scripts/compare_generated.py FOLDER[:SPLIT] …` prints a Markdown table with one column per set. A folder is a
set in any format that `evaluate` reads. Shares are percentages of the questions.

- A skeleton is a gold whose names, aliases and values are replaced by marks. The number of skeletons grows with the
  number of questions, so they are counted in a sample of `--first` questions, shuffled by `--seed`.
- A question mentions a name if it contains the name's words in sequence (`order_date` is "order date"), in the singular
  or with a plural's s. Each table or column name of a gold counts once per question, including join keys.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.datagen.synth.english import split_words
from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.env.parse import tables_of
from jaxrl_sql.text2sql.evals.features import NODE_TYPES, PREDICATES, features_of
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.text2sql.evals.parse import parse_cached
from jaxrl_sql.types import Example, InputError

LEVELS = ("easy", "medium", "hard", "extra")


class Shares(NamedTuple):
    """The counts of a set: numbers by name, in printing order."""

    name: str
    numbers: dict[str, float]


def joins_of(sql: str) -> int:
    """Return the largest number of joins in one SELECT of a query; 0 if it does not parse."""
    tree = parse_cached(sql)
    return max((len(tables_of(select)) - 1 for select in tree.find_all(exp.Select)), default=0) if tree else 0


def skeleton(sql: str) -> str:
    """Return a query with a mark for each name, alias and value, or the unchanged text if it does not parse."""
    tree = parse_cached(sql)
    if tree is None:
        return sql

    def mark(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column):
            return exp.column("c")
        if isinstance(node, exp.Table):
            return exp.to_table("t")
        if isinstance(node, exp.Literal):
            return exp.Placeholder()
        return node.unalias() if isinstance(node, exp.Alias) else node

    return tree.copy().transform(mark).sql("sqlite", comments=False, normalize_functions="upper")


def names_of(sql: str) -> set[str]:
    """Return the names of tables and columns of a query in lower case, without aliases and CTEs."""
    tree = parse_cached(sql)
    if tree is None:
        return set()
    local = {item.alias.lower() for item in tree.find_all(exp.CTE, exp.Alias)}
    result = {node.name.lower() for node in tree.find_all(exp.Column, exp.Table) if node.name and node.name != "*"}
    return result - local


def is_said(name: str, question: str) -> bool:
    """Return whether a question contains a name's words in sequence."""
    message = r"[\W_]+".join(map(re.escape, split_words(name).split()))
    return re.search(rf"(?<![^\W_]){message}(?:e?s)?(?![^\W_])", question, re.IGNORECASE) is not None


def count(name: str, examples: Sequence[Example], first: int, seed: int) -> Shares:
    """Count one set; InputError if it is empty."""
    if not examples:
        raise InputError(f"{name}: no questions")
    golds = [example.gold_sql for example in examples]
    features = Counter(feature for sql in golds for feature in features_of(sql))
    levels = Counter(map(spider_level, golds))
    joins = [joins_of(sql) for sql in golds]
    output = [is_said(identifier, item.question) for item in examples for identifier in sorted(names_of(item.gold_sql))]
    sample = random.Random(seed).sample(golds, min(first, len(golds)))
    share = {feature: 100 * features[feature] / len(golds) for feature in (*PREDICATES, *NODE_TYPES)}
    numbers = {
        "questions": float(len(examples)),
        "join": share.pop("join"),
        "two or more joins": 100 * sum(each >= 2 for each in joins) / len(joins),
        **share,
        **{f"level: {level}": 100 * levels[level] / len(golds) for level in LEVELS},
        f"skeletons in {len(sample)}": float(len(set(map(skeleton, sample)))),
        "names in the question": 100 * sum(output) / max(len(output), 1),
        "words per question": statistics.mean(len(entry.question.split()) for entry in examples),
    }
    return Shares(name, numbers)


def table(result: Sequence[Shares]) -> str:
    """Return the counts as a Markdown table with one column per set."""
    rows = list(dict.fromkeys(name for entry in result for name in entry.numbers))
    lines = [["", *(element.name for element in result)], ["---", *("---:" for _ in result)]]
    for row in rows:
        digits = 0 if row.startswith(("questions", "skeletons")) else 1
        texts = [f"{item.numbers[row]:.{digits}f}" if row in item.numbers else "" for item in result]
        lines.append([row, *texts])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _load(source: str) -> tuple[str, Sequence[Example]]:
    folder, _, split = source.partition(":")
    result = load_split(folder, split) if split else load_benchmark(folder, "")
    return source.rstrip("/").rpartition("/")[2], result.examples


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of the named sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="FOLDER[:SPLIT]")
    parser.add_argument("--first", type=int, default=972, help="questions whose skeletons are counted, default 972")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(table([count(*_load(set_), options.first, options.seed) for set_ in options.sets]) + "\n")
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
