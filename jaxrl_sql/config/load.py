"""Load a command's configuration from YAML files and `key.sub=value`, with one-line errors.

A root is the class of a command's configuration; its fields are the sections that the command reads. A layer is the
values of one source. Later layers override earlier ones.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from jaxrl_sql.config.check import check_config, flatten
from jaxrl_sql.config.fields import read_annotations
from jaxrl_sql.config.reading import Layer, read_files, read_override, refuse_spaces
from jaxrl_sql.config.roots import ROOTS, RootConfig
from jaxrl_sql.config.unknown import unknown_key
from jaxrl_sql.types import InputError

SHIPPED = Path(__file__).with_name("shipped")
"""The package's copy of the repository's folder `configs/`."""
SYSTEMS = tuple(sorted(path.stem for path in SHIPPED.glob("as/[!_]*.yaml")))
"""The published systems with an evaluation in `configs/as/`, which `evaluate --as` accepts."""

Override = str | Mapping[str, Any]
"""Values that override those of the files: `key.sub=value`, or a mapping with nested or dotted keys."""

Files = Path | str | Sequence[Path | str] | None
"""YAML files, each of which overrides the previous ones."""

COMMAND_LINE = "command line"
"""The origin of an override in error messages."""

Root = TypeVar("Root", bound=RootConfig)
Dataclass = TypeVar("Dataclass")


def find_shipped(path: str | Path) -> Path:
    """Return a path unchanged, or the package's copy of `configs/…` if the path does not exist."""
    path = Path(path)
    packaged = SHIPPED.joinpath(*path.parts[1:])
    return packaged if path.parts[:1] == ("configs",) and not path.exists() and packaged.exists() else path


def load_config(
    root: type[Root],
    files: Files,
    overrides: Sequence[Override] = (),
    defaults: Mapping[str, Any] | None = None,
    option_values: Mapping[str, Any] | None = None,
    origin: str = COMMAND_LINE,
    *,
    is_checked: bool = True,
) -> Root:
    """Read a command's configuration: the defaults, the YAML files and their bases, then the overrides in order.

    Later files override earlier ones: for example, a file for a machine overrides a recipe's file. Files may have
    sections that the command does not read, because several commands share them; overrides may not.

    defaults: a command's defaults or the values of an earlier run, nested by section, which files override.
    option_values: the command's options, which override everything.
    origin: name of the overrides and options in error messages.
    is_checked: whether the values are validated.
    A recipe that is code (`FILE.py:NAME`) must be named in a file, an override or an option. The values of a run may
    come from an untrusted source, so they must not cause the execution of code.

    A file may start with `base: other.yaml` (relative to itself) or a list of such files, which are read first. If the
    current folder has no such `configs/…`, the package's copy is used, also for `model.checkpoint`.
    Raises a one-line InputError for an unreadable file, an unknown key, a wrong type or an invalid choice.
    """
    user_layers = [*_layers(root, files, overrides, origin), (origin, option_values or {})]
    merged: dict[str, Any] = {}
    for source, values in [("defaults", defaults or {}), *user_layers]:
        _check_keys(root, values, source)
        _merge_nested(merged, {name: value for name, value in values.items() if name in read_annotations(root)})
    config = _replace_in_section(root(), merged)
    # Defaults that follow from other values, such as the learning rate of adapters, apply to keys that are not set.
    explicit_keys = {key for key, value in flatten(merged) if value != ""}
    config = replace_values(
        config, {key: value for key, value in config.derive_defaults().items() if key not in explicit_keys}
    )
    values = dict(flatten(dataclasses.asdict(config)))
    checkpoint, recipe = values.get("model.checkpoint", ""), values.get("recipe", "")
    if (shipped_checkpoint := find_shipped(checkpoint)) != Path(checkpoint):
        config = replace_values(config, {"model.checkpoint": str(shipped_checkpoint)})
    if ":" in recipe and not any("recipe" in layer for _, layer in user_layers):
        raise InputError(
            f"the run was trained with a custom recipe, which is code outside of the run: name it to allow its "
            f"execution, as in recipe={recipe}"
        )
    if is_checked:
        check_config(config)
    return config


def check_keys(root: type[RootConfig], files: Files, overrides: Sequence[Override], origin: str = COMMAND_LINE) -> None:
    """Reject unknown keys and wrong types of files and overrides, before the values of the run are known.

    Raises a one-line InputError like `load_config`.
    """
    for source, values in _layers(root, files, overrides, origin):
        _check_keys(root, values, source)


def section_names(files: Files) -> set[str]:
    """Return the names of the sections that files and their bases have; raises InputError for an unreadable file."""
    return {name for _, values in _file_layers(files) for name in values}


def replace_values(config: Dataclass, values: Mapping[str, Any]) -> Dataclass:
    """Return a configuration with replaced values by key (`section.name`), without validation."""

    def replace_at(node: Any, names: list[str], value: Any) -> Any:
        name, *below = names
        return dataclasses.replace(node, **{name: replace_at(getattr(node, name), below, value) if below else value})

    for key, value in values.items():
        config = replace_at(config, key.split("."), value)
    return config


def apply_published_settings(system: str, defaults: Mapping[str, Any], judged_only: bool = False) -> dict[str, Any]:
    """Return a command's defaults, overridden by the settings of a system's published evaluation.

    With `judged_only`, only the comparison rules are overridden, because the answers exist already. Raises InputError
    for an unknown system.
    """
    if system not in SYSTEMS:
        (nearest,) = difflib.get_close_matches(system, SYSTEMS, n=1, cutoff=0.0)
        raise InputError(f"--as {system}: not one of {', '.join(SYSTEMS)}; the nearest is {nearest}")
    layers = [values for _, values in read_files(SHIPPED / "as" / f"{system}.yaml")]
    if judged_only:
        layers = [
            {"evaluate": {name: value for name, value in layer["evaluate"].items() if name in ("rule", "rules")}}
            for layer in layers
            if "evaluate" in layer
        ]
    merged: dict[str, Any] = {}
    _merge_nested(merged, defaults)
    # A trained run's stop strings are for its answer format, and the system has another one.
    merged.get("evaluate", {}).get("sampling", {}).pop("stop", None)
    for layer in layers:
        _merge_nested(merged, layer)
    return merged


def load_standalone(root: type[Root], path: Files, overrides: Sequence[str] = ()) -> Root:
    """Read a configuration whose sections no other command shares, from a YAML file and `key.sub=value`.

    null in place of a section under a name of the user's choice, such as `sources.gretel=null`, removes the section of
    an earlier file. Raises a one-line InputError like `load_config`.
    """
    merged: dict[str, Any] = {}
    for origin, values in _layers(root, path, overrides, COMMAND_LINE):
        _check(root, values, origin, root)
        _refuse_absent(values, merged, origin)
        _merge_nested(merged, values)
    config = _replace_in_section(root(), merged)
    check_config(config, str(path or COMMAND_LINE))
    return config


def _refuse_absent(values: Mapping[str, Any], merged: Mapping[str, Any], origin: str) -> None:
    """Reject null, which removes a named section, for a name that no earlier layer has."""
    for section, named in values.items():
        if not isinstance(named, Mapping):
            continue
        present = [name for name, value in merged.get(section, {}).items() if value is not None]
        for name in (name for name, value in named.items() if value is None and name not in present):
            raise InputError(f"{origin}: {section}.{name}=null drops nothing: there are {', '.join(present) or 'none'}")


def _layers(root: type[RootConfig], files: Files, overrides: Sequence[Override], origin: str) -> list[Layer]:
    """Return (origin, values) of the files with their bases, and of each override, in order."""
    refuse_spaces(overrides, origin)
    return [*_file_layers(files), *((origin, _read_override(root, override, origin)) for override in overrides)]


def _file_layers(files: Files) -> list[Layer]:
    """Return (origin, values) of the files with their bases, in order."""
    paths = [files] if isinstance(files, str | Path) else files or ()
    return [layer for path in paths for layer in read_files(find_shipped(path))]


def _read_override(root: type[RootConfig], override: Override, origin: str) -> dict[str, Any]:
    """Return the nested values of an override; raises InputError like `load_config`."""
    if isinstance(override, Mapping):
        pairs = [(key, _as_yaml(value)) for key, value in flatten(override)]
    elif isinstance(override, str):
        key, value = read_override(override, origin)
        is_empty_list = value == "" and get_origin(_type_of(root, key)) is list
        pairs = [(key, [] if is_empty_list else value)]
    else:
        raise InputError(f"{origin}: {override!r} is neither a mapping nor a text of the form key.sub=value")
    nested: dict[str, Any] = {}
    for key, value in pairs:
        *sections, name = key.split(".")
        layer: dict[str, Any] = {name: value}
        for section in reversed(sections):
            layer = {section: layer}
        _refuse_unread(root, layer, origin)
        _check_keys(root, layer, origin)
        _merge_nested(nested, layer)
    return nested


def _as_yaml(value: object) -> object:
    """Convert a Python value to the types that YAML has."""
    if isinstance(value, PathLike):
        return fspath(value)
    return [_as_yaml(item) for item in value] if isinstance(value, list | tuple) else value


def _type_of(root: type[RootConfig], key: str) -> Any:
    """Return the type of a key's values; None for an unknown key."""
    section: Any = root
    for name in key.split("."):
        if get_origin(section) is dict:
            section = get_args(section)[1]
        elif dataclasses.is_dataclass(section):
            section = read_annotations(section).get(name, (None, ()))[0]  # type: ignore[arg-type]
        else:
            return None
    return section


def _merge_nested(merged: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Override the nested values of `merged` with `values`, in place."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if merged.get(name) is None:  # absent, or removed by an earlier file
                merged[name] = {}
            _merge_nested(merged[name], value)
        else:
            merged[name] = value


def _replace_in_section(section: Any, values: Mapping[str, Any]) -> Any:
    """Return a section with replaced values, converted to the types of its fields."""

    def convert(name: str, value: Any) -> Any:
        annotation = read_annotations(type(section))[name][0]
        if get_origin(annotation) is dict:  # sections under names of the user's choice
            section_type = get_args(annotation)[1]
            return {
                key: _replace_in_section(section_type(), inner) for key, inner in value.items() if inner is not None
            }
        if isinstance(value, Mapping):
            return _replace_in_section(getattr(section, name), value)
        return annotation(value) if annotation in (float, str) else value

    return dataclasses.replace(section, **{name: convert(name, value) for name, value in values.items()})


def _owners(name: str) -> dict[type, type[RootConfig]]:
    """Return the roots that have a section or a key of that name, by the type of its values."""
    return {read_annotations(root)[name][0]: root for root in reversed(ROOTS) if name in read_annotations(root)}


def _refuse_unread(root: type[RootConfig], values: Mapping[str, Any], origin: str) -> None:
    """Reject values of a section that only other commands read."""
    for name in values:
        if name not in read_annotations(root) and _owners(name):
            commands = ", ".join(dict.fromkeys(other.commands for other in ROOTS if name in read_annotations(other)))
            replacement = _replacement_key(root, next(flatten(values))[0])
            advice = f"; set {replacement}" if replacement else ""
            raise InputError(f"{origin}: this command does not read {name}, which applies to: {commands}{advice}")


def _replacement_key(root: type[RootConfig], key: str) -> str:
    """Return the key of a command that corresponds to a key of a section that it does not read; "" if there is none.

    For example, `evaluate.sampling.turns` corresponds to `sampling.turns`.
    """
    sections = [name for name, (type_, _) in read_annotations(root).items() if dataclasses.is_dataclass(type_)]
    key_in_section = key.partition(".")[2]
    shared_keys = [shared for shared in (key, key_in_section) if "." in shared]
    candidates = [*(f"{section}.{name}" for section in sections for name in shared_keys), *shared_keys]
    return next((candidate for candidate in candidates if _type_of(root, candidate) is not None), "")


def _check_keys(root: type[RootConfig], values: Mapping[str, Any], origin: str) -> None:
    """Reject an unknown key of a layer and suggest the nearest, and reject a value of the wrong type.

    Sections that only other commands read are checked too.
    """
    for name, value in values.items():
        owner = root if name in read_annotations(root) else next(iter(_owners(name).values()), root)
        _check(owner, {name: value}, origin, owner)


def _check(section: Any, values: Mapping[str, Any], origin: str, root: type[RootConfig], prefix: str = "") -> None:
    """Check the keys and types of a section's values; `section` is its class, and `prefix` begins its dotted keys."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        annotation = read_annotations(section).get(str(name), (None, ()))[0]
        # The class of sections under names of the user's choice.
        named_section = get_args(annotation)[1] if get_origin(annotation) is dict else None
        if annotation is None and "." in str(name) and _type_of(root, key) is not None:
            *sections, last = str(name).split(".")
            nested = f"{': {'.join(sections)}: {{{last}: …}}"
            raise InputError(f"{origin}: unknown key {key}: in a file, sections are nested: write {nested}")
        if annotation is None:
            annotations = read_annotations(section)
            siblings = [
                f"{prefix}{other}" for other in annotations if not dataclasses.is_dataclass(annotations[other][0])
            ]
            raise InputError(f"{origin}: {unknown_key(next(flatten({key: value}))[0], root, siblings)}")
        if named_section or dataclasses.is_dataclass(annotation):
            if not isinstance(value, Mapping):
                raise InputError(f"{origin}: {key} is a section and needs keys below it, not {value!r}")
            if named_section is None:
                _check(annotation, value, origin, root, f"{key}.")
                continue
            for entry, inner in value.items():
                if inner is None:
                    continue
                if not isinstance(inner, Mapping):
                    raise InputError(f"{origin}: {key}.{entry} is a section and needs keys below it, not {inner!r}")
                _check(named_section, inner, origin, root, f"{key}.{entry}.")
        elif isinstance(value, Mapping) and value:
            raise InputError(f"{origin}: {unknown_key(next(flatten(value, f'{key}.'))[0], root)}")
        elif not _has_type(annotation, value):
            raise InputError(f"{origin}: {key} must be {type_text(annotation)}, not {value!r}")


def _has_type(annotation: Any, value: object) -> bool:
    """Return whether a value is valid for a type: an integer is a valid float, a bool is not a valid number."""
    if get_origin(annotation) is list:
        return isinstance(value, list) and all(isinstance(item, get_args(annotation)) for item in value)
    if annotation is bool or isinstance(value, bool):
        return annotation is bool and isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, str | int | float) if annotation is str else isinstance(value, annotation)


def type_text(annotation: Any) -> str:
    """Return the description of a type in messages."""
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    lists = {(str,): "a list of texts, as in [a, b]", (int,): "a list of whole numbers, as in [1, 2]"}
    return names.get(annotation) or lists[get_args(annotation)]
