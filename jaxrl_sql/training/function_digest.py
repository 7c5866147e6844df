"""A hash of a function by its code and its values, which is the same wherever its text is in a file.

Helpers that it calls by a global name are known by that name. Another version of Python compiles to other code.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import Enum
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any

from jaxrl_sql.inference.fingerprint import digest_of

_SIMPLE = (str, int, float, bool, complex, bytes, type(None), type(...), Enum, PurePath)


def function_digest(function: Callable[..., object]) -> str:
    """Return a hash of a callable: a function, a method, a `functools.partial`, or an object with `__call__`.

    Of a function it has the code, the defaults and the closure's immutable values: lists and dicts of a closure may be
    filled by the function itself. Arguments of a partial and attributes of an object count where JSON can write them.
    """
    return digest_of(_Parts().of(function, is_deep=True))


class _Parts:
    """Values as JSON; what contains itself is named at its second mention."""

    def __init__(self) -> None:
        self._above: list[int] = []

    def of(self, value: object, *, is_deep: bool) -> Any:
        """Return a value as JSON; a list, dict or set is its type alone unless `is_deep`."""
        if isinstance(value, _SIMPLE):
            return [type(value).__name__, repr(value)]
        if isinstance(value, re.Pattern):
            return ["pattern", repr(value.pattern), value.flags]
        if id(value) in self._above:
            return ["again", type(value).__qualname__]
        self._above.append(id(value))
        try:
            return self._container(value, is_deep) or self._callable(value) or [_name(type(value))]
        finally:
            self._above.pop()

    def _container(self, value: Any, is_deep: bool) -> Any:
        if isinstance(value, tuple) or (is_deep and isinstance(value, list)):
            return [_name(type(value)), *(self.of(part, is_deep=is_deep) for part in value)]
        if isinstance(value, frozenset) or (is_deep and isinstance(value, AbstractSet)):
            return [_name(type(value)), *sorted(map(repr, (self.of(part, is_deep=is_deep) for part in value)))]
        if is_deep and isinstance(value, Mapping):
            return self._mapping(value)
        if _is_record(value) and (is_deep or value.__dataclass_params__.frozen):
            fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
            return [_name(type(value)), [[name, self.of(part, is_deep=is_deep)] for name, part in fields]]
        return None

    def _mapping(self, values: Mapping[Any, Any]) -> Any:
        return ["mapping", *sorted([repr(key), repr(self.of(value, is_deep=True))] for key, value in values.items())]

    def _callable(self, value: object) -> Any:
        if isinstance(value, CodeType):
            return ["code", value.co_code.hex(), value.co_names, self._all(value.co_consts)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return ["method", self.of(value.__func__, is_deep=False), self.of(value.__self__, is_deep=True)]
        if isinstance(value, functools.partial):
            function = self.of(value.func, is_deep=True)
            return ["partial", function, self.of(value.args, is_deep=True), self._mapping(value.keywords)]
        if isinstance(value, type) or inspect.isbuiltin(value) or inspect.ismodule(value):
            return ["name", _name(value)]
        if inner := getattr(value, "__wrapped__", None):  # functools.cache
            return [_name(type(value)), self.of(inner, is_deep=True)]
        return self._object(value) if callable(value) else None

    def _function(self, function: FunctionType) -> Any:
        closure = []
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # a name that is bound later
                closure.append(cell.cell_contents)
        defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
        return ["function", self.of(function.__code__, is_deep=False), self._all(defaults), self._all(closure)]

    def _object(self, value: object) -> Any:
        """Return the methods of an object's class and its bases, their simple constants, and its attributes."""
        members = []
        for base in type(value).__mro__:
            for name, member in sorted(vars(base).items()):
                function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
                is_constant = isinstance(member, _SIMPLE) and not name.startswith("__")
                if is_constant or isinstance(function, FunctionType):
                    members.append([name, self.of(function, is_deep=False)])
        state: Any = None
        with suppress(TypeError):  # an object of C
            state = object.__getstate__(value)
        return [_name(type(value)), members, self.of(state, is_deep=True)]

    def _all(self, values: Sequence[object]) -> list[Any]:
        return [self.of(value, is_deep=False) for value in values]


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
