"""Python values that a caller passes to a training run in addition to its configuration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from jaxrl_sql.config import DataConfig
from jaxrl_sql.inference.fingerprint import digest_of
from jaxrl_sql.inference.questions import CallerQuestions
from jaxrl_sql.text2sql.benchmarks import Benchmark, benchmark_of
from jaxrl_sql.text2sql.rewards.score import RewardFunction
from jaxrl_sql.types import Example, InputError, Record

Callback = Callable[[int, Mapping[str, Any]], object]
"""Called with a step and its row of metrics, `phase` included; a true value stops the run after the step."""

Questions = Iterable[Example] | Benchmark
"""A set: examples, or the result of `load_benchmark`."""

DIR, TRAIN = "memory", "examples"
"""`data.dir` and `data.train` of a run whose questions were passed."""
REWARD = "the reward function"


class CallerInputs(NamedTuple):
    """A callback, a reward function, training examples, and sets to evaluate on by name; None: the configuration's.

    `examples` replace the folder `data.dir`; then only `evals` are evaluated.
    """

    callback: Callback | None = None
    reward: RewardFunction | None = None
    examples: Questions | None = None
    evals: Mapping[str, Questions] | None = None

    def questions(self) -> CallerQuestions:
        """Return the examples as sets; raises InputError for a set that cannot be used."""
        evals: dict[str, Benchmark] | None = None if self.examples is None else {}
        if self.evals is not None:
            evals = {name: benchmark_of(examples, f"evals: {name}") for name, examples in self.evals.items()}
        train = None if self.examples is None else benchmark_of(self.examples, TRAIN)
        return CallerQuestions(train, evals)

    def names(self, data: DataConfig, run: str) -> Record:
        """Return settings, by key, that represent the passed examples in the configuration of the run folder `run`.

        Raises InputError for a setting that needs a folder of questions, and for a run that began with passed examples
        and has none now.
        """
        values: Record = {} if self.evals is None else {"data.evals": list(self.evals)}
        if self.examples is None and (data.dir, data.train) == (DIR, TRAIN) and not Path(DIR).exists():
            raise InputError(f"{run}: its questions were passed in Python: {_resume_call('examples')}")
        if self.examples is not None:
            values.setdefault("data.evals", [])
            if data.shots:
                raise InputError(f"examples: data.shots={data.shots} needs the training questions in a folder")
            values |= {"data.source": "folder", "data.dir": DIR, "data.train": TRAIN}
        train = values.get("data.train", data.train)
        if train in (self.evals or ()):
            raise InputError(f"evals: {train} is the name of the training set: choose another")
        return values

    def resume_advice(self, folder: Path) -> str:
        """Return how to resume the run in a folder: by the command's option, or with the same values in Python."""
        return self.resume_call or f"resume with --resume {folder}"

    @property
    def resume_call(self) -> str:
        """Return the Python call that resumes the run with the same values; "" if the command can."""
        passed = [name for name in ("examples", "evals", "reward") if getattr(self, name) is not None]
        return _resume_call(*passed) if passed else ""

    def hashes(self) -> dict[str, str]:
        """Return the hash of the reward function, by its name in the error message of a resumed run."""
        return {} if self.reward is None else {REWARD: code_digest(self.reward)}


def code_digest(function: Callable[..., object]) -> str:
    """Return a hash of a function's code; of a partial that of its function, of an object that of its `__call__`.

    Values (defaults, closures, arguments of a partial, attributes) and functions that it calls do not count.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return digest_of(_code(code) if code else getattr(function, "__qualname__", type(function).__qualname__))


def _code(code: CodeType) -> list[object]:
    """Return the parts of a code object that determine its result."""
    return [code.co_code.hex(), list(code.co_names), [_constant(value) for value in code.co_consts]]


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _code(value)
    # The order of a set differs between processes.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _resume_call(*passed: str) -> str:
    return f"resume with jx.train(…, {{'run.resume': True}}, {', '.join(f'{name}=…' for name in passed)})"


NO_CALLER_INPUTS = CallerInputs()
"""A run without values from a caller."""
