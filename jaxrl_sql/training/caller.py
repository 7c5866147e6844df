"""Python values that a caller of `jx.train` passes to a training run in addition to its configuration."""

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
"""A set of questions: examples, or the result of `load_benchmark`."""

DIR, TRAIN = "memory", "examples"
"""`data.dir` and `data.train` in the saved configuration of a run whose training questions were passed in Python."""
REWARD = "the reward function"
"""The name of the reward function among the inputs of a run, which messages print."""


class CallerInputs(NamedTuple):
    """Values that replace those of the configuration; None keeps the configuration's.

    - `callback` is called after each step with its metrics.
    - `reward` is a reward function, which replaces the recipe's reward.
    - `examples` are the training questions, in place of the folder `data.dir`; then `data.evals` is not read.
    - `evals` are the held-out sets by name, in place of `data.evals`.
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

    def settings_for_inputs(self, data: DataConfig, run: str) -> Record:
        """Return the settings, by key, that represent the passed examples in the configuration.

        `run` is the run's folder, for messages. Raises InputError for a setting that needs a folder of questions, and
        for a resumed run that began with passed examples but gets none now.
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
        """Return the advice how to resume the run in `folder`: by an option of the command, or by a call in Python."""
        return self.resume_call or f"resume with --resume {folder}"

    @property
    def resume_call(self) -> str:
        """Return the advice with the Python call that resumes the run; "" if the command line can resume it."""
        passed = [name for name in ("examples", "evals", "reward") if getattr(self, name) is not None]
        return _resume_call(*passed) if passed else ""

    def hashes(self) -> dict[str, str]:
        """Return the hash of the reward function by its name REWARD; a resumed run must have the same."""
        return {} if self.reward is None else {REWARD: code_digest(self.reward)}


def code_digest(function: Callable[..., object]) -> str:
    """Return a hash of a function's code.

    For a partial, it is the hash of the partial's function, and for a callable object that of its `__call__`. Values
    (defaults, closures, arguments of a partial, attributes) and the functions that it calls are not hashed.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return digest_of(_code(code) if code else getattr(function, "__qualname__", type(function).__qualname__))


def _code(code: CodeType) -> list[object]:
    """Return the bytecode, names and constants of a code object, as JSON values."""
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
