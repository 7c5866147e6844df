"""Convert examples from the Python API to a benchmark.

A rule is the comparison of two query results that decides whether an answer is right. The suite of an example lists
databases of one schema with different rows, on all of which an answer must have the gold's result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.benchmark import Benchmark
from jaxrl_sql.types import Example, InputError


def benchmark_of(questions: Iterable[Example] | Benchmark, name: str) -> Benchmark:
    """Return examples as a benchmark; one from `load_benchmark` stays unchanged.

    If any example has a suite, the rule is `test_suite`: rows equal as multisets, for some order of the columns. If
    none has, it is `bird`: rows equal as sets.
    Raises InputError, in which `name` refers to the list, for an empty list, items that are not Examples, ids that are
    not unique texts, and missing database files.
    """
    try:
        examples = tuple(questions.examples if isinstance(questions, Benchmark) else questions)
    except TypeError as error:
        raise InputError(f"{name}: must be a list of examples, not {type(questions).__name__}") from error
    if not examples:
        raise InputError(f"{name}: no examples")
    for example in examples:
        if not isinstance(example, Example):
            raise InputError(f"{name}: items must be jaxrl_sql.Example, not {type(example).__name__}")
        if not isinstance(example.uid, str):
            raise InputError(f"{name}: the id {example.uid!r} must be a text")
    uid, count = Counter(example.uid for example in examples).most_common(1)[0]
    if count > 1:
        raise InputError(f"{name}: {count} examples have the id {uid!r}; ids must be unique")
    # Reversed, so that a missing file is reported with its first example.
    files = {example.db_path: example.uid for example in reversed(examples)}
    for path, example_id in files.items():
        if not Path(path).is_file():
            raise InputError(f"{name}: {example_id}: {path}: no such file")
    if isinstance(questions, Benchmark):
        return questions
    rule = "test_suite" if any(example.suite for example in examples) else "bird"
    return Benchmark(name="plain", rule=rule, examples=examples, order=tuple(example.uid for example in examples))
