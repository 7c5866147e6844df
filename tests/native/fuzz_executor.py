"""Fuzz the executor: `make fuzz ARGS=--minutes=10`.

Random statements on random databases must give the rows of apsw, which bundles the same SQLite. Rows are compared
cell by cell and type by type, in threads and in worker processes. Databases are files, files promised not to change,
and copies in memory. Statements that fail in apsw fail in the executor. In between, random pairs of tables are scored
by every rule and by the ports of the published scorers in `test_scorers.py` and `test_rules.py`. The first difference
is printed with the seed and round that reproduce it, and ends the command with exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import fuzz_grammar
import test_rules
import test_scorers

from sqlexec_rs import Executor, Limits, Outcome, sqlite_version

N_STATEMENTS = 150
N_PAIRS = 100
# Statements that exceed it are omitted, because apsw interrupts them.
MAX_STEPS = 2_000_000
LIMITS = Limits(timeout_ms=30_000, vm_steps=8 * MAX_STEPS)
MODES = ("file", "immutable", "copied")
# Values and parameters are not combined: apsw counts them differently.
WRONG_VALUES = "wrong values"
# On a blob in a UTF-16 database these return as many bytes of its text, which is shorter in UTF-8, as the blob has.
CONCAT = re.compile(r"\bconcat(_ws)?\b", re.IGNORECASE)
# A statement that lost or gained a token may be of a kind that is refused here and runs there.
MAY_BE_REFUSED = {"forbidden", "no_sql"}

Rule = Callable[[test_scorers.Pair], float]


def rule_of(function: Callable[..., float], **options: Any) -> Rule:
    return lambda item: function(item.predicted, item.gold, (item.width, item.gold_width), **options)


# The cells for which the references of `test_rules.py` were written, all and a few.
PLAIN_CELLS = [
    None, -1, 0, 1, 2, 10, 2**53, 2**53 + 1, 2**63 - 1, 0.0, -0.0, 1.0, 10.0, 0.5, 0.004, 1.004, 1.02, 1e-5, 1e16,
    1.5e300,
    "", "a", "1", "1.0", "10", "007", "é", "None", "b", "NA", b"", b"a", b"1", b"\xff'",
]  # fmt: skip
POOLS = [PLAIN_CELLS, [0, 1, 1.0, None, "a"]]
Rules = list[tuple[str, dict[str, Any], Rule]]
SCORERS: Rules = [(name, {}, scorer) for name, scorer in test_scorers.REFERENCES.items()]
DESCRIPTIONS: Rules = [(name, {}, rule_of(function)) for name, function in test_rules.SIMPLE.items()]
for flag in (False, True):
    DESCRIPTIONS += [
        ("test_suite", {"ordered": flag}, rule_of(test_rules.spider_suite, ordered=flag)),
        ("paverl", {"drop_duplicates": flag, "row_slack": 30}, rule_of(test_rules.paverl, slack=30, drop=flag)),
    ]


class DifferenceError(Exception):
    """The executor and its reference differ."""


def bits(rows: list[tuple[Any, ...]]) -> list[list[tuple[type, Any]]]:
    """Return rows for comparison: equal only if cell types are equal and floats equal bit for bit."""
    return [[(type(x), struct.pack("d", x) if isinstance(x, float) else x) for x in row] for row in rows]


def ask_apsw(connection: apsw.Connection, sql: str, values: list[Any]) -> list[tuple[Any, ...]] | str | None:
    """Return apsw's rows, its error message, or None if the statement is not counted."""
    n_calls = itertools.count()
    connection.set_progress_handler(lambda: next(n_calls) > MAX_STEPS // 1_000, 1_000)
    try:
        return list(connection.execute(sql, tuple(values)))
    except (apsw.InterruptError, UnicodeDecodeError):
        return None
    except apsw.BindingsError:
        return WRONG_VALUES
    except apsw.Error as error:
        return str(error).partition(": ")[2] if re.match(r"\w+Error: ", str(error)) else str(error)


def compare(reference: list[tuple[Any, ...]] | str, outcome: Outcome, *, is_broken: bool) -> str:
    """Return the kind of agreement. Raises DifferenceError."""
    if isinstance(reference, str):
        if outcome.status == "ok":
            raise DifferenceError(f"apsw fails ({reference}), the executor does not: {outcome!r}")
        if reference not in {outcome.error, WRONG_VALUES}:
            raise DifferenceError(f"apsw fails with {reference!r}, the executor with {outcome.error!r}")
        return "equal errors"
    if is_broken and outcome.status in MAY_BE_REFUSED:
        return "refused"
    if outcome.status != "ok":
        raise DifferenceError(f"apsw succeeds, the executor does not: {outcome!r}")
    rows = [row for batch in outcome.batches(7) for row in batch]
    if bits(rows) != bits(reference):
        numbers = [i for i, (a, b) in enumerate(zip(bits(rows), bits(reference), strict=False)) if a != b][:3]
        examples = [(rows[i], reference[i]) for i in numbers]
        raise DifferenceError(
            f"{len(rows)} rows of the executor, {len(reference)} of apsw; of the rows {numbers}: {examples}"
        )
    return "equal results"


def fuzz_statements(
    draw: random.Random, folder: Path, executors: dict[tuple[str, str, bool], Executor]
) -> Counter[str]:
    """Run statements on a new database in every mode. Raises DifferenceError."""
    path = folder / "fuzz.sqlite"
    schema = fuzz_grammar.make_database(draw, path)
    # apsw's LIKE matches no blobs.
    compatible = {mode: executor for mode, executor in executors.items() if mode[2] != schema.has_blobs}
    counts = Counter({"databases": 1})
    # Closing a connection of this process would release the locks of the threads, so it stays open until they finish.
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    for limit, maximum in ((apsw.SQLITE_LIMIT_LENGTH, LIMITS.max_length), (apsw.SQLITE_LIMIT_FUNCTION_ARG, 127)):
        connection.limit(limit, maximum)
    statements = fuzz_grammar.Statements(draw, schema, parameters=True)
    is_wide = connection.execute("PRAGMA encoding").fetchone() != ("UTF-8",)
    cases = []
    for _ in range(N_STATEMENTS):
        sql, is_broken = statements.statement(), draw.random() < 0.2
        sql = statements.broken(sql) if is_broken else sql
        if is_wide and CONCAT.search(sql):
            counts["left out, as SQLite reads beyond its memory"] += 1
            continue
        reference = ask_apsw(connection, sql, statements.values)
        if reference is None:
            counts["too long, or no text"] += 1
        else:
            cases.append((sql, tuple(statements.values) or None, is_broken, reference))
    counts["statements"] += len(cases)
    for mode, executor in compatible.items():
        outcomes = executor.execute_many([(path, sql, values) for sql, values, *_ in cases])
        for (sql, values, is_broken, reference), outcome in zip(cases, outcomes, strict=True):
            try:
                counts[compare(reference, outcome, is_broken=is_broken)] += 1
            except DifferenceError as difference:
                raise DifferenceError(f"{mode}: {sql!r} with {values}: {difference}") from None
    connection.close()
    return counts


def fuzz_rules(draw: random.Random, folder: Path, executor: Executor) -> Counter[str]:
    """Score pairs of tables by every rule that has a reference. Raises DifferenceError."""
    database = folder / "empty.sqlite"
    database.touch()
    counts: Counter[str] = Counter()
    for rules, pools in ((SCORERS, list(test_scorers.CELLS.values())), (DESCRIPTIONS, POOLS)):
        pool, maximum = draw.choice(pools), draw.choice([3, 5, 12])
        pairs = [test_scorers.pair(draw, pool, maximum) for _ in range(N_PAIRS)]
        predicted = [test_scorers.as_sql(argument.width, argument.predicted) for argument in pairs]
        golds = [([f"c{i}" for i in range(item.gold_width)], item.gold) for item in pairs]
        counts["pairs"] += len(pairs)
        for rule, options, reference in rules:
            arrays = executor.score_many([database] * len(pairs), predicted, golds, (rule,), options=options)
            for entry, value in zip(pairs, arrays[rule].tolist(), strict=True):
                expected = reference(entry)
                if abs(value - expected) > 1e-12:
                    raise DifferenceError(f"{rule} with {options} gives {value}, its scorer {expected}: {entry}")
            counts["equal verdicts"] += len(pairs)
    return counts


def make_executors(stack: ExitStack) -> dict[tuple[str, str, bool], Executor]:
    """Return an executor per mode: isolation, way of opening files, and whether LIKE matches blobs."""
    result = {}
    for isolation, mode, like_blobs in itertools.product(("thread", "process"), MODES, (False, True)):
        options = {"immutable": mode == "immutable", "copy_up_to_bytes": (1 << 30) * (mode == "copied")}
        executor = Executor(1, LIMITS, isolation, like_blobs=like_blobs, cache_bytes=1 << 20, **options)
        result[isolation, mode, like_blobs] = stack.enter_context(executor)
    return result


def fuzz(seed: int, rounds: range, minutes: float) -> Counter[str]:
    """Fuzz round by round until time is up; return the counts. Raises DifferenceError."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + 60 * minutes
    for number in rounds:
        if counts and time.monotonic() > end:
            break
        draw = random.Random(f"{seed}/{number}")
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            with ExitStack() as stack:
                executors = make_executors(stack)
                for index in range(10):
                    (folder / str(index)).mkdir()
                    counts += fuzz_statements(draw, folder / str(index), executors)
                    counts += fuzz_rules(draw, folder / str(index), draw.choice(list(executors.values())))
        except DifferenceError as difference:
            arguments = f"--seed={seed} --round={number}"
            raise DifferenceError(f"{difference}\nrepeat with {arguments}; the databases are in {folder}") from None
        shutil.rmtree(folder)
    return counts


def main() -> int:
    """Fuzz, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--round", type=int, help="only this one")
    options = parser.parse_args()
    if apsw.sqlite_lib_version() != sqlite_version():
        print(f"fuzz: apsw has SQLite {apsw.sqlite_lib_version()}, the executor {sqlite_version()}")
        return 2
    rounds = range(1 << 30) if options.round is None else range(options.round, options.round + 1)
    try:
        counts = fuzz(options.seed, rounds, options.minutes)
    except DifferenceError as difference:
        print(f"fuzz: {difference}")
        return 1
    print(f"fuzz: seed {options.seed}, no difference: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
