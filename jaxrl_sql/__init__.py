"""Reinforcement learning for text-to-SQL in JAX.

`import jaxrl_sql as jx` provides `jx.train`, `jx.evaluate`, `jx.Evaluation`, `jx.Model`, `jx.Run`, `jx.load_benchmark`,
`jx.load_config`, `jx.TrainConfig`, `jx.Example`, `jx.Reward`, `jx.RECIPES` and `jx.Executor` (`api` has an example).
Each is loaded at its first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_sql.api import Evaluation, Model, Run, evaluate, load_config, train
    from jaxrl_sql.config import TrainConfig
    from jaxrl_sql.databases.question_files import load_benchmark
    from jaxrl_sql.text2sql.env.executor import Executor
    from jaxrl_sql.text2sql.recipes import RECIPES
    from jaxrl_sql.types import Example, Reward

__all__ = [
    "RECIPES",
    "Evaluation",
    "Example",
    "Executor",
    "Model",
    "Reward",
    "Run",
    "TrainConfig",
    "evaluate",
    "load_benchmark",
    "load_config",
    "train",
]

_MODULES = {
    "RECIPES": "text2sql.recipes",
    "Example": "types",
    "Executor": "text2sql.env.executor",
    "Reward": "types",
    "TrainConfig": "config",
    "load_benchmark": "databases.question_files",
}
"""Modules of the names that are not in `api`."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("jaxrl-sql")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # silence a warning about missing torch
