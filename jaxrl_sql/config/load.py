"""From YAML files and `key.sub=value` to a configuration, and back; every fault is one line."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import io
import math
import pickle
import re
from collections.abc import Collection, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxrl_sql.config.check import check_config, flatten
from jaxrl_sql.config.roots import TrainConfig
from jaxrl_sql.types import InputError

SHIPPED = Path(__file__).with_name("shipped")
SYSTEMS = tuple(sorted(path.stem for path in SHIPPED.glob("as/[!_]*.yaml")))
"""The published systems whose evaluation `configs/as/` describes, which `evaluate --as` accepts."""
_MARKS = re.compile(r"\$\{|\?\?\?")

Override = str | Mapping[str, Any]
"""Values over those of the files: `key.sub=value`, or a mapping with nested or dotted keys."""

COMMAND_LINE = "command line"
"""The origin that an error names for an override."""


def shipped(path: str | Path) -> Path:
    """Return a path as it is, or where nothing is there, `configs/…` as the package brings it."""
    path = Path(path)
    brought = SHIPPED.joinpath(*path.parts[1:])
    return brought if path.parts[:1] == ("configs",) and not path.exists() and brought.exists() else path


def load_config(
    files: Path | str | Sequence[Path | str] | None,
    overrides: Sequence[Override] = (),
    beneath: Mapping[str, Any] | None = None,
    above: Mapping[str, Any] | None = None,
    origin: str = COMMAND_LINE,
) -> TrainConfig:
    """Read a run's configuration: the defaults, the YAML files and their bases, then the overrides in order.

    Of several files each lies over those before it, as a machine's over a recipe's.

    `beneath` are a command's own defaults or a run's values, nested by section, which lie under the files; `above` are
    the command's options, which lie over everything. An error calls overrides and options `origin`. A recipe that is
    code (`FILE.py:NAME`) has to be named by a file, an override or an option: whose run it is that says so beneath them
    is not known.

    A file may begin with `base: other.yaml` (relative to itself) or a list of such files, which are read first. Where
    the current folder has no `configs/…` of a name, the package's own is meant, by `model.checkpoint` too.
    Raises InputError, in one line, for a file that cannot be read, an unknown key, a wrong type or a bad choice.
    """
    paths = _paths(files)
    named = [*_read_sources(paths, overrides, origin), (origin, above or {})]
    layers: list[tuple[str, Mapping[str, Any]]] = [("defaults", beneath or {}), *named]
    merged: dict[str, Any] = {}
    for source, values in layers:
        _check_keys(values, source)
        _lay_over(merged, values)
    changes = _changes(merged, dataclasses.asdict(TrainConfig()))
    try:
        config = _replaced(TrainConfig(), changes) if _is_plain(changes) else _resolved(changes)
    except OmegaConfBaseException as error:
        _refuse_layer(layers)
        raise InputError(f"{', '.join(map(str, paths)) or origin}: {_first_line(error)}") from None
    assert isinstance(config, TrainConfig)
    if (checkpoint := shipped(config.model.checkpoint)) != Path(config.model.checkpoint):
        config = changed(config, {"model.checkpoint": str(checkpoint)})
    if ":" in config.recipe and not any("recipe" in values for _, values in named):
        raise InputError(
            f"the run was trained with a recipe of its own, which is code and not part of it: name what may be run, as "
            f"in recipe={config.recipe}"
        )
    check_config(config)
    return config


def check_keys(
    files: Path | str | Sequence[Path | str] | None, overrides: Sequence[Override], origin: str = COMMAND_LINE
) -> None:
    """Reject unknown keys and wrong types of files and overrides, before the values beneath them are known.

    Raises InputError, in one line, as `load_config` does.
    """
    for source, values in _read_sources(_paths(files), overrides, origin):
        _check_keys(values, source)


def changed(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return a configuration with other values by their keys (`section.name`), which are not checked."""

    def put(node: Any, names: list[str], value: Any) -> Any:
        name, *below = names
        return dataclasses.replace(node, **{name: put(getattr(node, name), below, value) if below else value})

    for key, value in values.items():
        config = put(config, key.split("."), value)
    return config


def as_published(system: str, beneath: Mapping[str, Any], judged_only: bool = False) -> dict[str, Any]:
    """Return a command's defaults with the settings of a system's published evaluation over them.

    With `judged_only` these are the rules alone, for answers that exist already. Raises InputError for an unknown
    system.
    """
    if system not in SYSTEMS:
        (nearest,) = difflib.get_close_matches(system, SYSTEMS, n=1, cutoff=0.0)
        raise InputError(f"--as {system}: none of {', '.join(SYSTEMS)}; the nearest is {nearest}")
    layers = [values for _, values in _read_files(SHIPPED / "as" / f"{system}.yaml")]
    if judged_only:
        layers = [
            {"evaluate": {name: value for name, value in layer["evaluate"].items() if name in ("rule", "rules")}}
            for layer in layers
            if "evaluate" in layer
        ]
    merged = {name: value for name, value in beneath.items() if name != "sampling"}  # its strings end a run's own form
    for layer in layers:
        for section, values in layer.items():
            merged[section] = {**merged.get(section, {}), **values} if isinstance(values, Mapping) else values
    return merged


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the values of a YAML file by key; raises InputError, in one line, where it cannot be read."""
    try:
        values = pickle.loads(_parsed(Path(path).read_text(encoding="utf-8")))  # noqa: S301 - bytes of this process
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: not YAML: {error.problem or _first_line(error)}") from None
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {_first_line(error)}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected `key: value` lines at the top, found a list or a word")
    return {str(key): value for key, value in values.items()}


def with_empty_value(override: str, lists: Collection[str]) -> str:
    """Return `key=`, which YAML reads as null, as an empty text, or an empty list where `lists` names the key."""
    key, _, value = override.partition("=")
    if value.strip():
        return override
    return f"{key}=[]" if {key.strip(), key.strip().rpartition(".")[2]} & set(lists) else f"{key}=''"


def to_yaml(config: TrainConfig) -> str:
    """Write every value of a configuration as YAML that `load_config` reads back to an equal one."""
    text: str = yaml.dump(
        dataclasses.asdict(config), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text


class _Dumper(yaml.CSafeDumper):
    """Quotes a text that OmegaConf reads as a number, such as 1e3, which YAML 1.1 does not."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        try:
            float(data)
        except ValueError:
            return super().represent_str(data)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="'")


_Dumper.add_representer(str, _Dumper.represent_str)


def _paths(files: Path | str | Sequence[Path | str] | None) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files or ()]


def _read_sources(
    paths: Sequence[Path], overrides: Sequence[Override], origin: str
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (origin, values) of the files with their bases, and of each override, in order."""
    layers = [layer for path in paths for layer in _read_files(shipped(path))]
    return [*layers, *((origin, _read_override(override, origin)) for override in overrides)]


def _read_files(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (file name, its values) of a file's bases and of itself, the base first."""
    if path.resolve() in above:
        raise InputError(f"{path}: its `base` leads back to itself")
    values = read_yaml(path)
    base = values.pop("base", None)
    if base is None:
        return [(str(path), values)]
    bases = base if isinstance(base, list) else [base]
    if not all(isinstance(name, str) for name in bases):
        raise InputError(f"{path}: base must name a file or several, not {base!r}")
    read = [found for name in bases for found in _read_files(path.parent / name, (*above, path.resolve()))]
    return [*read, (str(path), values)]


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> bytes:
    """Return the values of a YAML text, pickled: a resumed run reads its file several times, and parsing is slow."""
    return pickle.dumps(OmegaConf.to_container(OmegaConf.load(io.StringIO(text))))


def _read_override(override: Override, origin: str) -> Mapping[str, Any]:
    """Return the nested values of an override; raises InputError for a text that is not `key.sub=value`."""
    if isinstance(override, Mapping):
        return _nested(override, origin)
    if not isinstance(override, str):
        raise InputError(f"{origin}: {override!r} is neither a mapping nor a text of the form key.sub=value")
    text = override
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{origin}: {text!r} is no key.sub=value")
    text = with_empty_value(text, {name for name, default in _defaults().items() if isinstance(default, list)})
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{origin}: {text!r}: {_first_line(error)}") from None
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


def _nested(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return a mapping with dotted keys as sections; paths become texts, and tuples lists.

    Raises InputError for an unknown key and a value of a wrong type.
    """
    flat = {key: _as_yaml(value) for key, value in flatten(values)}
    _check_keys(flat, origin)
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        node = nested
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return nested


def _as_yaml(value: object) -> object:
    """Return a value of Python as YAML has it."""
    if isinstance(value, PathLike):
        return fspath(value)
    return [_as_yaml(item) for item in value] if isinstance(value, list | tuple) else value


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Put nested values over others, in place."""
    for name, value in above.items():
        if isinstance(value, Mapping):
            _lay_over(below.setdefault(name, {}), value)
        else:
            below[name] = value


def _changes(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not the defaults: most values of a run's file are defaults."""
    return {
        name: _changes(value, defaults[name]) if isinstance(value, Mapping) and name in defaults else value
        for name, value in values.items()
        if name not in defaults or value != defaults[name]
    }


def _is_plain(values: Mapping[str, Any]) -> bool:
    """Return whether no value refers to another, none is OmegaConf's mark of a missing one, and no name is dotted."""
    return all(
        "." not in name and (_is_plain(value) if isinstance(value, Mapping) else not _MARKS.search(str(value)))
        for name, value in values.items()
    )


def _replaced(section: Any, values: Mapping[str, Any]) -> Any:
    """Return a section with other values, of the types of its own; OmegaConf does the same in ten times the time."""

    def typed(name: str, value: Any) -> Any:
        default = getattr(section, name)
        if isinstance(value, Mapping):
            return _replaced(default, value)
        return type(default)(value) if isinstance(default, float | str) else value

    return dataclasses.replace(section, **{name: typed(name, value) for name, value in values.items()})


def _resolved(values: Mapping[str, Any]) -> Any:
    """Return the configuration of values that may refer to one another."""
    merged = OmegaConf.unsafe_merge(pickle.loads(_schema()), values)  # noqa: S301 - bytes of this process
    return OmegaConf.to_object(merged)


def _refuse_layer(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise InputError for the first source that alone cannot be merged."""
    for origin, values in layers:
        try:
            OmegaConf.unsafe_merge(pickle.loads(_schema()), values)  # noqa: S301 - bytes of this process
        except OmegaConfBaseException as error:
            raise InputError(f"{origin}: {_first_line(error)}") from None


@functools.cache
def _schema() -> bytes:
    """Return the empty configuration, pickled: reading the dataclasses is 40 times slower, a deep copy 5 times."""
    return pickle.dumps(OmegaConf.structured(TrainConfig))


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """Return the default of every key."""
    return dict(flatten(dataclasses.asdict(TrainConfig())))


def _check_keys(values: Mapping[str, Any], origin: str) -> None:
    """Refuse a key of one source that is none, with the nearest that is, and a value that is not of its key's type."""
    known = _defaults()
    for key, value in flatten(values):
        if key not in known:
            if any(name.startswith(f"{key}.") for name in known):
                if value == {}:
                    continue
                raise InputError(f"{origin}: {key} is a section and needs keys below it, not {value!r}")
            raise InputError(f"{origin}: unknown key {key}; the nearest is {_nearest_key(key, list(known))}")
        is_reference = isinstance(value, str) and "${" in value
        if not is_reference and not _has_type_of(known[key], value):
            raise InputError(f"{origin}: {key} must be {type_words(known[key])}, not {value!r}")


def _nearest_key(key: str, known: list[str]) -> str:
    """Return the valid key that `key` most likely meant: the same section first, then the same last word."""
    section, _, name = key.rpartition(".")
    siblings = [other for other in known if other.rpartition(".")[0] == section]
    namesakes = [other for other in known if other.rpartition(".")[2] == name]
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.8)
    inner = difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0)
    return (close or inner or difflib.get_close_matches(key, known, n=1, cutoff=0.0))[0]


def _has_type_of(default: object, value: object) -> bool:
    """Return whether `value` may stand where `default` does; whole numbers are fine as floats, words are no numbers."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and math.isfinite(value)
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(default, str):
        return isinstance(value, str | int | float)
    return isinstance(value, type(default))


def type_words(default: object) -> str:
    """Return in words what may stand where a default does."""
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    return names.get(type(default), "a list of texts, as in [a, b]")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
