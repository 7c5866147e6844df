"""Reinforcement learning for text-to-SQL in JAX.

`import jaxrl_sql as jx` gives `jx.train`, `jx.Model`, `jx.evaluate`, `jx.load_benchmark`, `jx.load_config`,
`jx.TrainConfig` and `jx.RECIPES` (`api` says how they are used). Each is loaded when it is first asked for.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_sql.api import Evaluation, Model, Run, evaluate, train  # noqa: TC004 - see _Package
    from jaxrl_sql.config import TrainConfig, load_config  # noqa: TC004 - see _Package
    from jaxrl_sql.data.benchmarks import load_benchmark  # noqa: TC004 - see _Package
    from jaxrl_sql.recipes import RECIPES  # noqa: TC004 - see _Package

__all__ = [
    "RECIPES",
    "Evaluation",
    "Model",
    "Run",
    "TrainConfig",
    "evaluate",
    "load_benchmark",
    "load_config",
    "train",
]

_ROOMS = {"RECIPES": "recipes", "TrainConfig": "config", "load_benchmark": "data.benchmarks", "load_config": "config"}


class _Package(ModuleType):
    """This package: the commands `train` and `evaluate` are modules too, which do not take their functions' place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return import_module("importlib.metadata").version("jaxrl-sql")
        if name not in __all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{self.__name__}.{_ROOMS.get(name, 'api')}"), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would complain that torch is not there, in any notebook
