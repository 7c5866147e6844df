"""Measure what answers earn that ignore the question: the floor that a model's accuracy stands on.

`python scripts/blind_baseline.py --data FOLDER` asks each database the number of rows and every column of every table,
and judges each of these answers on all questions of the database. It prints

- the best fixed rule, the same for all databases: the number of rows, or a column, of the n-th table;
- the best fixed answer of each database, chosen with the golds in sight: no answer of these that ignores the question
  can earn more.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_sql.data.benchmarks import load_benchmark
from jaxrl_sql.data.schema.quote import quote_name
from jaxrl_sql.data.schema.read import Schema, read_schema
from jaxrl_sql.evals.score_predictions import score_predictions
from jaxrl_sql.sqlenv.executor import Executor, Limits
from jaxrl_sql.types import Example, InputError

_TIMEOUT_MS = 30_000


def answers(schema: Schema) -> dict[str, str]:
    """Return the answers that ignore the question, by the rule that they follow."""
    found = {}
    for at, table in enumerate(schema.tables, 1):
        name = quote_name(table.name)
        found[f"number of rows of table {at}"] = f"SELECT COUNT(*) FROM {name}"
        for place, column in enumerate(table.columns, 1):
            found[f"column {place} of table {at}"] = f"SELECT {quote_name(column.name)} FROM {name}"
    return found


def right(executor: Executor, examples: Sequence[Example], rule: str) -> dict[tuple[str, str], int]:
    """Return how many questions each answer is right on, by database and answer's rule."""
    known = {one.db_path: answers(read_schema(one.db_path)) for one in examples}
    found: Counter[tuple[str, str]] = Counter()
    for name in dict.fromkeys(name for one in known.values() for name in one):
        asked = [one for one in examples if name in known[one.db_path]]
        verdicts = score_predictions(executor, asked, [known[one.db_path][name] for one in asked], (rule,))
        for one, verdict in zip(asked, verdicts, strict=True):
            found[one.db_id, name] += verdict.is_right(rule)
    return found


def best(found: Mapping[tuple[str, str], int]) -> tuple[tuple[str, int], int]:
    """Return the best rule for all databases with what it has right, and the sum of each database's best answer."""
    rules: Counter[str] = Counter()
    own: dict[str, int] = defaultdict(int)
    for (db_id, name), count in found.items():
        rules[name] += count
        own[db_id] = max(own[db_id], count)
    # Of rules that are equally good the first, that of the first table.
    return max(rules.items(), key=lambda item: item[1]), sum(own.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the two shares; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a benchmark's folder, as it is published")
    parser.add_argument("--split", default="", help="its usual one when left out")
    parser.add_argument("--rule", default="test_suite", help="rule that decides what is right, default test_suite")
    options = parser.parse_args(arguments)
    try:
        examples = load_benchmark(options.data, options.split).examples
        with Executor(limits=Limits(timeout_ms=_TIMEOUT_MS)) as executor:
            (name, count), bound = best(right(executor, examples, options.rule))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    size = len(examples)
    sys.stdout.write(
        f"{size} questions, rule {options.rule}\n"
        f"best rule, the {name}: {100 * count / size:.1f} % ({count})\n"
        f"best answer of each database, golds in sight: {100 * bound / size:.1f} % ({bound})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
