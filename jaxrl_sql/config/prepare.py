"""Settings of `jaxrl-sql data prepare`: sources with what is chosen of each, and what is split off."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxrl_sql.config.fields import OneOf, PositiveInt
from jaxrl_sql.config.load import read_yaml, with_empty_value
from jaxrl_sql.types import Fields, InputError

TAKEN = ("train", "validation", "scripts")
"""Folders that preparing makes itself."""

_BALANCE = OneOf("none", "complexity", "hardness", "database")


@dataclass
class SourceConfig:
    """A set to take questions from: the folder `dir` and its `split`, and which of its questions are taken.

    Text: of those complexities (`complexity`, the set's own labels), of those of Spider's levels (`hardness`), without
    what a regular expression in `exclude` finds in the question, with SQL of at least `min_sql_characters`, in the file
    of ids `include_ids`. Pass rate: with `rates`, a file that `data filter` wrote, the share of right answers lies in
    [`low`, `high`]. Golds (`run_golds`): those that fail are left out, those that return no rows unless `empty_gold` is
    false, and those over `max_gold_steps` VM steps (0: any number). Of what is left one in `subsample_every`, and
    `count` questions at most (0: all), chosen by their ids and the seed, as many of each `balance` (`complexity`,
    `hardness`, `database`) as can be. `prefix` stands before its databases' names, for sets that use the same for
    different ones.
    """

    dir: str = ""
    split: str = ""
    include_ids: str = ""
    complexity: list[str] = field(default_factory=list)
    hardness: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    min_sql_characters: int = 0
    rates: str = ""
    low: float = 0.0
    high: float = 1.0
    run_golds: bool = True
    empty_gold: bool = True
    max_gold_steps: int = 0
    subsample_every: int = 1
    count: int = 0
    balance: str = "none"
    prefix: str = ""


@dataclass
class ValidationSplit:
    """Which questions are split off, all of some databases: about so many `questions` (0: none) of so many `databases`.

    With `databases` 0 it may be any number of them.
    """

    questions: int = 0
    databases: int = 0


@dataclass
class EvalSet:
    """A set to evaluate on while training: the folder `dir` and its `split`. All that has an answer is kept."""

    dir: str = ""
    split: str = ""


@dataclass
class PrepareConfig:
    """A merge of `sources`, by name, into the plain folders `out`/train and `out`/validation.

    `evals` are sets to evaluate on, by the name that `data.evals` has for each: whole, in `out`/<name>.

    What is chosen depends on the `seed` and the ids alone. `count` questions are kept for training (0: all). `repeats`
    leaves out a question that was asked before on the same database. `subsets` are lists of ids of every n-th training
    question, a smaller one part of a larger one. `link` links to the databases in place of copies. Golds run on
    `threads` threads (0: one a core) for `vm_steps` steps, of a backstop of `timeout_ms`.
    """

    out: str = ""
    seed: int = 0
    sources: dict[str, SourceConfig] = field(default_factory=dict)
    count: int = 0
    repeats: bool = True
    validation: ValidationSplit = field(default_factory=ValidationSplit)
    evals: dict[str, EvalSet] = field(default_factory=dict)
    subsets: list[int] = field(default_factory=list)
    link: bool = False
    threads: int = 0
    vm_steps: PositiveInt = 3_000_000_000
    timeout_ms: PositiveInt = 300_000


# Sections of sections, by names of one's own.
_NAMED: dict[str, type] = {"sources": SourceConfig, "evals": EvalSet}
_LISTS = ("complexity", "hardness", "exclude", "subsets")


def load_prepare(path: str | Path | None, overrides: Sequence[str] = ()) -> PrepareConfig:
    """Read the settings of a merge from a YAML file and `key.sub=value`.

    Raises InputError, in one line, for a file that cannot be read, an unknown key, and a value that is none.
    """
    merged = OmegaConf.structured(PrepareConfig)
    for origin, values in _read_sources(path, overrides):
        _check(PrepareConfig, values, origin)
        try:
            merged = OmegaConf.merge(merged, values)
        except OmegaConfBaseException as error:
            raise InputError(f"{origin}: {_line(error)}") from None
    found = OmegaConf.to_object(merged)
    assert isinstance(found, PrepareConfig)
    for words in _faults(found):
        raise InputError(f"{path or 'command line'}: {words}")
    return found


def _read_sources(path: str | Path | None, overrides: Sequence[str]) -> list[tuple[str, Fields]]:
    """Return (origin, values) of the file and of each override, in order."""
    file = [] if path is None else [(str(path), read_yaml(path))]
    return [*file, *((text, _read_override(text)) for text in overrides)]


def _read_override(text: str) -> Fields:
    if "=" not in text:
        raise InputError(f"command line: {text!r} is no key.sub=value")
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist([with_empty_value(text, _LISTS)]))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{text}: not YAML: {_line(error)}") from None
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


def _check(section: type, values: Fields, origin: str, prefix: str = "") -> None:
    """Refuse a key that is none, with the nearest that is."""
    hints = get_type_hints(section)
    for name, value in values.items():
        if name not in hints:
            (nearest,) = difflib.get_close_matches(name, hints, n=1, cutoff=0.0)
            raise InputError(f"{origin}: unknown key {prefix}{name}; the nearest is {prefix}{nearest}")
        inner: type = _NAMED.get(name, hints[name])
        if not is_dataclass(inner):
            continue
        if not isinstance(value, Mapping):
            raise InputError(f"{origin}: {prefix}{name} is a section and needs keys below it, not {value!r}")
        for key, one in value.items() if name in _NAMED else ((name, value),):
            if not isinstance(one, Mapping):
                raise InputError(f"{origin}: {name}.{key} is a section and needs keys below it, not {one!r}")
            _check(inner, one, origin, f"{prefix}{name}.{key}." if name in _NAMED else f"{prefix}{name}.")


def _faults(found: PrepareConfig) -> list[str]:
    faults = [] if found.out else ["out is empty: it names the folder that is written (--out)"]
    faults += [] if found.sources else ["sources is empty: name at least one set with its dir"]
    for name, held in found.evals.items():
        faults += [] if held.dir else [f"evals.{name}.dir is empty: it names the set's folder"]
        if name in TAKEN or not name.replace("_", "a").replace("-", "a").isalnum():
            faults.append(f"evals.{name} names a folder of its own in {found.out}: letters, digits, - and _ alone")
    for name, one in found.sources.items():
        faults += [] if one.dir else [f"sources.{name}.dir is empty: it names the set's folder"]
        if rule := _BALANCE.fault(one.balance):
            faults.append(f"sources.{name}.balance{rule}")
        if not one.low <= one.high:
            faults.append(f"sources.{name}: low={one.low} is above high={one.high}")
        if (one.low, one.high) != (0.0, 1.0) and not one.rates:
            faults.append(
                f"sources.{name}: low and high bound a pass rate: name rates, the file that data filter writes"
            )
    sections: dict[str, PrepareConfig | SourceConfig | ValidationSplit] = {"": found, "validation.": found.validation}
    sections |= {f"sources.{name}.": one for name, one in found.sources.items()}
    for where, section in sections.items():
        for key in fields(section):
            value, least = getattr(section, key.name), int(key.name in ("subsample_every", "vm_steps", "timeout_ms"))
            if isinstance(value, int | float) and value < least:
                faults.append(f"{where}{key.name}={value} must be {least} or more")
    faults += [f"subsets: {n} must be 2 or more" for n in found.subsets if n < 2]
    if found.validation.databases and not found.validation.questions:
        faults.append("validation.databases needs validation.questions: how many are split off")
    return faults


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
