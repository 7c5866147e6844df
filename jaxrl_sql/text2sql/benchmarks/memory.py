"""A set of questions that a caller in Python passes as examples, in place of a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.benchmark import Benchmark
from jaxrl_sql.types import Example, InputError


def benchmark_of(questions: Iterable[Example] | Benchmark, name: str) -> Benchmark:
    """Return examples as a set, judged by `test_suite` where one of them has a suite, else by `bird`.

    A `Benchmark`, as `load_benchmark` returns it, keeps its rule. Raises InputError, which calls the list `name`, for
    an empty list, another type than Example, an id that is no text or repeated, and a database file that is not there.
    """
    try:
        examples = tuple(questions.examples if isinstance(questions, Benchmark) else questions)
    except TypeError as error:
        raise InputError(f"{name}: a list of examples is needed, not {type(questions).__name__}") from error
    if not examples:
        raise InputError(f"{name}: no example in it")
    for example in examples:
        if not isinstance(example, Example):
            raise InputError(f"{name}: a {type(example).__name__} is no Example of jaxrl_sql")
        if not isinstance(example.uid, str):
            raise InputError(f"{name}: the id {example.uid!r} is no text")
    uid, count = Counter(example.uid for example in examples).most_common(1)[0]
    if count > 1:
        raise InputError(f"{name}: {count} examples have the id {uid!r}, and each needs one of its own")
    files = {example.db_path: example.uid for example in reversed(examples)}
    for path, example_id in files.items():
        if not Path(path).is_file():
            raise InputError(f"{name}: {example_id}: {path}: no such file")
    if isinstance(questions, Benchmark):
        return questions
    rule = "test_suite" if any(example.suite for example in examples) else "bird"
    return Benchmark("plain", rule, examples, order=tuple(example.uid for example in examples))
