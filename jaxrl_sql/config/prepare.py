"""Settings of `jaxrl-sql data prepare`: sources, selection of questions, and the validation split.

A gold is the reference query of a question. VM steps are the instructions of SQLite's virtual machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from jaxrl_sql.config.fields import OneOf, PositiveInt
from jaxrl_sql.config.load import load_standalone
from jaxrl_sql.config.roots import RootConfig

RESERVED = ("train", "validation", "scripts")
"""Names of folders that preparation creates, which no evaluation set may have; `scripts` is temporary."""


@dataclass(frozen=True)
class SourceConfig:
    """A source of questions, under a name of your choice, and the selection of its questions.

    The pass rate of a question is the share of right answers among a model's samples.
    """

    dir: Annotated[str, "Folder of the set."] = ""
    split: Annotated[str, "Split of the set; if empty, the only one or the default one."] = ""
    include_ids: Annotated[str, "File of question ids; others are omitted."] = ""
    complexity: Annotated[list[str], "Complexity labels of the set's files to select; if empty, all."] = field(
        default_factory=list
    )
    hardness: Annotated[
        list[str], "Difficulties to select, by Spider's rules from the SQL: easy, medium, hard, extra; if empty, all."
    ] = field(default_factory=list)
    exclude: Annotated[list[str], "Regular expressions; questions whose text matches are omitted."] = field(
        default_factory=list
    )
    min_sql_characters: Annotated[int, "Minimum length of the gold SQL in characters."] = 0
    rates: Annotated[str, "File of pass rates that `data filter` wrote, for `low` and `high`."] = ""
    low: Annotated[float, "Minimum pass rate in `rates`."] = 0.0
    high: Annotated[float, "Maximum pass rate in `rates`."] = 1.0
    run_golds: Annotated[bool, "Run the gold queries and omit questions whose gold query fails."] = True
    empty_gold: Annotated[bool, "Omit questions whose gold query returns no rows; needs `run_golds`."] = True
    max_gold_steps: Annotated[
        int, "Maximum number of SQLite VM steps of a gold query; 0 sets no limit; needs `run_golds`."
    ] = 0
    subsample_every: Annotated[PositiveInt, "Sampling interval of the remaining questions; 2 keeps every second."] = 1
    count: Annotated[int, "Maximum number of questions, selected by their ids and the seed; 0: all."] = 0
    balance: Annotated[
        str,
        OneOf("none", "complexity", "hardness", "database"),
        "Label by which the `count` questions are balanced: equal numbers per value, as far as each has enough.",
    ] = "none"
    prefix: Annotated[
        str, "Prefix of the set's database names, for sets that use the same name for different databases."
    ] = ""

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if not self.dir:
            yield f"{name}.dir is empty: it names the set's folder"
        if not self.low <= self.high:
            yield f"{name}: low={self.low} is above high={self.high}"
        if (self.low, self.high) != (0.0, 1.0) and not self.rates:
            yield f"{name}: low and high limit a pass rate: set rates, the file that data filter writes"


@dataclass(frozen=True)
class ValidationSplit:
    """Validation split: all questions of some databases."""

    questions: Annotated[int, "Approximate number of validation questions; 0 for none."] = 0
    databases: Annotated[int, "Number of their databases; 0 allows any number."] = 0

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if self.databases and not self.questions:
            yield f"{name}.databases needs {name}.questions, the number of validation questions"


@dataclass(frozen=True)
class EvalSetConfig:
    """A set for evaluation during training; all questions with an answer are included."""

    dir: Annotated[str, "Folder of the set."] = ""
    split: Annotated[str, "Split of the set; if empty, the only one or the default."] = ""

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if not self.dir:
            yield f"{name}.dir is empty: it names the set's folder"


@dataclass(frozen=True)
class PrepareConfig(RootConfig):
    """A merge of `sources` into the plain folders `out`/train and `out`/validation.

    The selection depends only on the seed and the ids.
    """

    commands: ClassVar[str] = "data prepare"

    out: Annotated[str, "Output folder."] = ""
    seed: Annotated[int, "Seed of the selection."] = 0
    sources: Annotated[dict[str, SourceConfig], "Sources of questions, by name."] = field(default_factory=dict)
    count: Annotated[int, "Maximum number of training questions that are kept; 0 keeps all."] = 0
    repeats: Annotated[bool, "Omit repeated questions on the same database."] = True
    validation: ValidationSplit = field(default_factory=ValidationSplit)
    evals: Annotated[dict[str, EvalSetConfig], "Evaluation sets, by their names in `data.evals`."] = field(
        default_factory=dict
    )
    subsets: Annotated[
        list[int], "Write lists of ids of every n-th training question; smaller lists are subsets of larger ones."
    ] = field(default_factory=list)
    link: Annotated[bool, "Create symbolic links to the databases instead of copying them."] = False
    threads: Annotated[int, "Number of gold queries that run concurrently; 0 uses one per core."] = 0
    vm_steps: Annotated[PositiveInt, "Maximum number of SQLite VM steps of a gold query."] = 3_000_000_000
    timeout_ms: Annotated[PositiveInt, "Time limit of a gold query in milliseconds, regardless of its steps."] = 300_000

    def find_errors(self) -> Iterator[str]:
        """Yield a line for each value that cannot be used."""
        if not self.out:
            yield "out is empty: it names the output folder (--out)"
        if not self.sources:
            yield "sources is empty: name at least one set with its dir"
        for name in self.evals:
            if name in RESERVED or not name.replace("_", "a").replace("-", "a").isalnum():
                yield f"evals.{name} names a folder in {self.out}: only letters, digits, - and _, and not {RESERVED}"
        yield from (f"subsets: {n} must be 2 or more" for n in self.subsets if n < 2)


def load_prepare(path: str | Path | None, overrides: Sequence[str] = ()) -> PrepareConfig:
    """Read the settings of a merge from a YAML file and `key.sub=value`.

    Raises a one-line InputError for an unreadable file, an unknown key or an invalid value.
    """
    return load_standalone(PrepareConfig, path, overrides)
