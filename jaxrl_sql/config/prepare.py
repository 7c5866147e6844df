"""Settings of `jaxrl-sql data prepare`: sources with what is chosen of each, and what is split off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from jaxrl_sql.config.fields import OneOf, PositiveInt
from jaxrl_sql.config.load import load_named
from jaxrl_sql.config.roots import RootConfig

TAKEN = ("train", "validation", "scripts")
"""Folders that preparing makes itself."""


@dataclass(frozen=True)
class SourceConfig:
    """A set to take questions from, under a name of your own, and which of its questions are taken."""

    dir: Annotated[str, "Folder of the set."] = ""
    split: Annotated[str, "Split of the set; empty takes the only one or the usual one."] = ""
    include_ids: Annotated[str, "File of question ids; others are left out."] = ""
    complexity: Annotated[list[str], "The set's own complexity labels that are taken; empty takes all."] = field(
        default_factory=list
    )
    hardness: Annotated[list[str], "Spider's hardness levels that are taken; empty takes all."] = field(
        default_factory=list
    )
    exclude: Annotated[list[str], "Regular expressions; a question in which one is found is left out."] = field(
        default_factory=list
    )
    min_sql_characters: Annotated[int, "Least length of the gold SQL in characters."] = 0
    rates: Annotated[str, "File of pass rates, as `data filter` writes it; `low` and `high` choose by them."] = ""
    low: Annotated[float, "Least share of right answers in `rates`."] = 0.0
    high: Annotated[float, "Largest share of right answers in `rates`."] = 1.0
    run_golds: Annotated[bool, "Whether the golds are run, and those that fail left out."] = True
    empty_gold: Annotated[bool, "Whether questions whose gold returns no rows are left out; needs `run_golds`."] = True
    max_gold_steps: Annotated[int, "Most VM steps of a gold; 0 sets no limit; needs `run_golds`."] = 0
    subsample_every: Annotated[PositiveInt, "Take one in this many of the questions that are left."] = 1
    count: Annotated[int, "Most questions taken, chosen by their ids and the seed; 0 takes all."] = 0
    balance: Annotated[
        str,
        OneOf("none", "complexity", "hardness", "database"),
        "Take as many questions of each complexity, hardness or database as possible.",
    ] = "none"
    prefix: Annotated[
        str, "Text before the names of the set's databases, for sets that use a name for different databases."
    ] = ""

    def faults(self, name: str) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if not self.dir:
            yield f"{name}.dir is empty: it names the set's folder"
        if not self.low <= self.high:
            yield f"{name}: low={self.low} is above high={self.high}"
        if (self.low, self.high) != (0.0, 1.0) and not self.rates:
            yield f"{name}: low and high bound a pass rate: name rates, the file that data filter writes"


@dataclass(frozen=True)
class ValidationSplit:
    """Questions that are split off for validation, all of some databases."""

    questions: Annotated[int, "About how many questions are split off; 0 splits off none."] = 0
    databases: Annotated[int, "How many databases they are of; 0 allows any number."] = 0

    def faults(self, name: str) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if self.databases and not self.questions:
            yield f"{name}.databases needs {name}.questions: how many are split off"


@dataclass(frozen=True)
class EvalSet:
    """A set to evaluate on while training, all of whose questions with an answer are kept."""

    dir: Annotated[str, "Folder of the set."] = ""
    split: Annotated[str, "Split of the set; empty takes the only one or the usual one."] = ""

    def faults(self, name: str) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if not self.dir:
            yield f"{name}.dir is empty: it names the set's folder"


@dataclass(frozen=True)
class PrepareConfig(RootConfig):
    """A merge of `sources` into the plain folders `out`/train and `out`/validation.

    What is chosen depends on the seed and the ids alone.
    """

    commands: ClassVar[str] = "data prepare"

    out: Annotated[str, "Folder that is written."] = ""
    seed: Annotated[int, "Seed of the choices."] = 0
    sources: Annotated[dict[str, SourceConfig], "Sets to take questions from, by name."] = field(default_factory=dict)
    count: Annotated[int, "Most training questions that are kept; 0 keeps all."] = 0
    repeats: Annotated[bool, "Whether a question that was asked before on the same database is left out."] = True
    validation: ValidationSplit = field(default_factory=ValidationSplit)
    evals: Annotated[dict[str, EvalSet], "Sets to evaluate on, by the name that `data.evals` has for each."] = field(
        default_factory=dict
    )
    subsets: Annotated[
        list[int], "Write lists of ids of every n-th training question; a smaller list is part of a larger one."
    ] = field(default_factory=list)
    link: Annotated[bool, "Link to the databases instead of copying them."] = False
    threads: Annotated[int, "Threads that run golds; 0 takes one per core."] = 0
    vm_steps: Annotated[PositiveInt, "Most VM steps of a gold."] = 3_000_000_000
    timeout_ms: Annotated[PositiveInt, "Milliseconds after which a gold is stopped, whatever its steps."] = 300_000

    def faults(self) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if not self.out:
            yield "out is empty: it names the folder that is written (--out)"
        if not self.sources:
            yield "sources is empty: name at least one set with its dir"
        for name in self.evals:
            if name in TAKEN or not name.replace("_", "a").replace("-", "a").isalnum():
                yield f"evals.{name} names a folder of its own in {self.out}: letters, digits, - and _ alone"
        yield from (f"subsets: {n} must be 2 or more" for n in self.subsets if n < 2)


def load_prepare(path: str | Path | None, overrides: Sequence[str] = ()) -> PrepareConfig:
    """Read the settings of a merge from a YAML file and `key.sub=value`.

    Raises InputError, in one line, for a file that cannot be read, an unknown key, and a value that is none.
    """
    return load_named(PrepareConfig, path, overrides)
