"""Read YAML files with their bases and `key.sub=value`, and write a configuration as YAML.

The bases of a file are the files that its key `base` names. They are read first, and the file overrides them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxrl_sql.types import InputError

Layer = tuple[str, Mapping[str, Any]]
"""The values of one source, such as a file or an override: its name for error messages, and values by section."""

PROMPT_FILE = "jaxrl_sql.yaml"
"""File in a model's folder with the prompt settings of its training. Its prompt template is next to it."""

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+"
    r"|[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


class _Loader(yaml.CSafeLoader):
    """Reads 1e-6 as a number and 2026-11-29 as a text, and rejects duplicate keys of a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the values of a mapping by key."""
        keys = set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.tag != "tag:yaml.org,2002:merge" and key.value in keys:
                raise yaml.constructor.ConstructorError(None, None, f"found the key {key.value} twice", key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


# PyYAML reads dates as objects, and 1e-6 as a text: replace its rules for timestamps and floats.
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0].rpartition(":")[2] not in ("timestamp", "float")]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


class _Dumper(yaml.CSafeDumper):
    """Quotes a text that `_Loader` reads as a number."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        if _FLOAT.fullmatch(data):
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="'")
        return super().represent_str(data)


_Dumper.add_representer(str, _Dumper.represent_str)


def to_yaml(config: Any) -> str:
    """Write every value of a configuration as YAML that `load_config` reads back to an equal one."""
    text: str = yaml.dump(
        dataclasses.asdict(config), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the values of a YAML file by key; raises a one-line InputError if it cannot be read."""
    try:
        values = pickle.loads(_parse_cached(Path(path).read_text(encoding="utf-8")))  # noqa: S301 - bytes of this process
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: not YAML: {error.problem or _first_line(error)}") from None
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: not YAML: {_first_line(error)}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected `key: value` lines at the top level, found a list or a scalar")
    return {str(key): value for key, value in values.items()}


@functools.lru_cache(maxsize=32)
def _parse_cached(text: str) -> bytes:
    """Return the pickled values of a YAML text, cached because a resumed run reads its file several times.

    Pickled, because callers change the values that they get.
    """
    values = _parse(text)
    return pickle.dumps({} if values is None else values)


def _parse(text: str) -> Any:
    """Return the values of a YAML text; raises YAMLError, or ValueError for an invalid number or alias."""
    values = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    if re.search(r"\*\w", text):  # YAML's aliases
        _refuse_recursion(values, ())
    return values


def _refuse_recursion(values: Any, ancestors: tuple[int, ...]) -> None:
    """Raise ValueError for a value that contains itself."""
    if id(values) in ancestors:
        raise ValueError("an alias refers to a value that contains it")
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    for value in inner:
        _refuse_recursion(value, (*ancestors, id(values)))


def read_files(path: Path, ancestors: tuple[Path, ...] = ()) -> list[Layer]:
    """Return the layers of a YAML file's bases and of the file, bases first; `ancestors` are the files that name it.

    Raises InputError for an unreadable file and for a cycle of bases.
    """
    if path.resolve() in ancestors:
        raise InputError(f"{path}: its `base` refers back to itself")
    values = _with_template_path(path, read_yaml(path))
    base = values.pop("base", None)
    if base is None:
        return [(str(path), values)]
    bases = base if isinstance(base, list) else [base]
    if not all(isinstance(name, str) for name in bases):
        raise InputError(f"{path}: base must name one or several files, not {base!r}")
    inherited = [layer for name in bases for layer in read_files(path.parent / name, (*ancestors, path.resolve()))]
    return [*inherited, (str(path), values)]


def _with_template_path(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a file; in a model's `PROMPT_FILE`, a prompt template's path is relative to the file."""
    data = values.get("data")
    chat = data.get("chat") if isinstance(data, dict) else None
    if path.name == PROMPT_FILE and isinstance(chat, dict):
        template = chat.get("template")
        if isinstance(template, str) and template.endswith(".jinja"):
            chat["template"] = str(path.parent / template)
    return values


def read_override(text: str, origin: str) -> tuple[str, Any]:
    """Return the key and the value of `key.sub=value`; the value of `key=` is an empty text.

    Raises InputError for a text of another form, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{origin}: {text!r} is not of the form key.sub=value")
    if not value.strip():
        return key.strip(), ""
    try:
        return key.strip(), _parse(value)
    except (yaml.YAMLError, ValueError, KeyError) as error:
        raise InputError(f"{origin}: {text!r}: {_first_line(error)}") from None


def refuse_spaces(overrides: Sequence[object], origin: str) -> None:
    """Reject an override that the shell has split into two arguments at a space next to its equals sign."""
    for argument, following in itertools.pairwise(overrides):
        if not isinstance(argument, str) or not isinstance(following, str) or not following:
            continue
        has_space_before = following.startswith("=") and "=" not in argument
        has_space_after = argument.endswith("=") and "=" not in following
        if has_space_before or has_space_after:
            key = argument.rstrip("=")
            raise InputError(f"{origin}: write {key}=VALUE without spaces around the equals sign")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
