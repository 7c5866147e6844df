"""The folder of one or two sources, written at once, and again where they have grown."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import DataConfig, ExecutorConfig, RootConfig, load_config
from jaxrl_sql.report.facts import Evaluations, what_was_evaluated
from jaxrl_sql.report.folder import AnswersFolder, Row, row_of, used_tokens
from jaxrl_sql.report.groups import (
    EVALUATION,
    NUMBERS,
    RUN,
    Chunk,
    Group,
    ResultFolder,
    add_advantages,
    chunks,
    last_evaluations,
    open_result_folder,
    read_chunk,
    read_tokens,
)
from jaxrl_sql.report.html import run_data
from jaxrl_sql.report.load import config_of, load_run, settings_of
from jaxrl_sql.report.view.judging import Asked, Judge, asked_of
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.evals.differences import REASONS
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.render import ddl
from jaxrl_sql.types import InputError

Advantages = dict[tuple[int, int], list[list[float]]]
Key = tuple[int, Path, int]


class Scan(NamedTuple):
    """What is known of a piece before it is written: what there is to judge, and what the whole folder needs."""

    stamp: tuple[int, ...]
    steps: tuple[int, ...]
    asked: list[Asked]
    advantages: Advantages
    tokens: set[int]
    databases: dict[str, str]
    is_cut: bool


class WrittenPart(NamedTuple):
    """A piece as it was written last, and what it hung on."""

    hangs_on: tuple[Any, ...]
    rows: list[Row]


@contextmanager
def open_view(
    folders: Sequence[str], out: Path | None, most_judged: int, seconds: float, report: Callable[[str], None] | None
) -> Iterator[View]:
    """Open one or two runs or evaluations, and the executor that judges their answers; yield their view.

    `out`: RUN/view where None; `most_judged`: distinct answers to judge by every rule, in calls of about `seconds`.
    """
    sources = [open_result_folder(folder) for folder in folders]
    runs = [source for source in sources if source.kind == RUN]
    with ExitStack() as opened:
        judge = None
        if most_judged > 0 and runs:
            executor = opened.enter_context(make_executor(*executor_settings(runs)))
            judge = Judge(executor, most_judged, seconds)
        yield View(sources, out or sources[0].folder / "view", judge, report)


@dataclass(frozen=True)
class JudgedRun(RootConfig):
    """The settings of a run that its answers are judged by."""

    data: DataConfig = field(default_factory=DataConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)


def executor_settings(runs: Sequence[ResultFolder]) -> tuple[ExecutorConfig, list[str]]:
    """Return the limits of the first run's executor, and the hidden columns of all.

    A run without a configuration has the default limits and no hidden columns. Raises InputError for a configuration
    that cannot be read, because its hidden columns would be shown.
    """
    settings = {number: run.folder / CONFIG for number, run in enumerate(runs)}
    configs = {number: load_config(JudgedRun, path) for number, path in settings.items() if path.is_file()}
    limits = configs[0].executor if 0 in configs else ExecutorConfig()
    return limits, [name for config in configs.values() for name in config.data.hide]


class View:
    """Write the folder `out` of sources; `update` writes what is other than before and returns whether anything was.

    `judge` may be None: then answers have the verdicts that stand with them. Raises InputError as its parts do.
    """

    def __init__(
        self, sources: Sequence[ResultFolder], out: Path, judge: Judge | None, tell: Callable[[str], None] | None = None
    ) -> None:
        for source in sources:
            chunks(source)  # refused before anything is written
        self._sources, self._judge, self._tell = sources, judge, tell or (lambda _: None)
        self.out = out
        self._scans: dict[Key, Scan] = {}
        self._parts: dict[Key, int] = {}
        self._written: dict[Key, WrittenPart] = {}
        self._looked: Any = None
        self._stamp = 0

    def make_folder(self) -> None:
        """Make the folder before anything is read; InputError for one that holds something else."""
        _ = self._folder

    @cached_property
    def _folder(self) -> AnswersFolder:
        return AnswersFolder(self.out)

    def update(self, is_live: bool = False) -> bool:
        """Write what has changed in the sources, and last that it has."""
        found = {
            (i, chunk.path, chunk.number): chunk for i, source in enumerate(self._sources) for chunk in chunks(source)
        }
        looked = (is_live, *(chunk.stamp for chunk in found.values()), *map(_size, self._other_files()))
        if looked == self._looked:
            return False
        self._scans = {key: scan for key, scan in self._scans.items() if key in found}
        self._scan(found)
        if not is_live and not any(scan.steps for scan in self._scans.values()):
            names = ", ".join(sorted({str(path) for _, path, _ in found})[:3])
            raise InputError(f"no answer can be read in {names}: cut or broken")
        if self._judge is not None:
            self._judge.judge(self._in_order())
        for key in found:
            self._parts.setdefault(key, len(self._parts))
        for key, number in self._parts.items():
            self._write_part(key, number, found.get(key))
        self._write_rest()
        self._looked, self._stamp = looked, self._stamp + 1
        self._folder.write_stamp(self._stamp, is_live)
        return True

    def _scan(self, found: dict[Key, Chunk]) -> None:
        """Look at the pieces that are new or have grown."""
        for at, (key, chunk) in enumerate(found.items()):
            known = self._scans.get(key)
            if known is None or known.stamp != chunk.stamp:
                groups, advantages, is_cut = read_chunk(chunk)
                self._scans[key] = Scan(
                    chunk.stamp,
                    tuple(dict.fromkeys(one["step"] for one in groups)),
                    asked_of(groups),
                    advantages,
                    used_tokens(groups),
                    {one["db"]: one["example"].db_path for one in groups if one["example"]},
                    is_cut,
                )
                self._tell(f"read {at + 1} of {len(found)} pieces")

    def _in_order(self) -> Iterator[Asked]:
        """Yield what is to be judged: evaluations before rollouts, the newest first."""
        newest = sorted(self._scans, key=lambda key: ("eval-" in key[1].name, key[2]), reverse=True)
        for key in newest:
            yield from self._scans[key].asked

    def _write_part(self, key: Key, number: int, chunk: Chunk | None) -> None:
        """Write a piece, unless it is as it was; one that the run has dropped is empty."""
        if chunk is None:
            self._written[key] = WrittenPart((), [])
            self._folder.write_part(number, [])
            return
        scan = self._scans[key]
        advantages = self._advantages(key[0], set(scan.steps))
        hangs_on = (scan.stamp, tuple(advantages), self._judge.known(scan.asked) if self._judge else 0)
        known = self._written.get(key)
        if known is not None and known.hangs_on == hangs_on:
            return
        groups: list[Group] = read_chunk(chunk).groups
        add_advantages(groups, advantages)
        if self._judge is not None:
            self._judge.attach(groups)
        self._folder.write_part(number, groups)
        self._written[key] = WrittenPart(hangs_on, [row_of(one, key[0]) for one in groups])
        self._tell(f"written {number + 1} of {len(self._parts)} pieces")

    def _advantages(self, run: int, steps: set[int]) -> Advantages:
        found = (scan.advantages for key, scan in self._scans.items() if key[0] == run)
        return {at: rows for one in found for at, rows in one.items() if at[0] in steps}

    def _write_rest(self) -> None:
        rows = [self._written[key].rows for key in self._parts]
        texts = [read_tokens(source) for source in self._sources]
        used = set().union(*(scan.tokens for scan in self._scans.values()))
        longest = max(texts, key=len)  # of two runs one vocabulary is shown
        self._folder.write_more("tokens", {str(one): longest[one] for one in sorted(used) if one < len(longest)})
        paths = {db: path for scan in self._scans.values() for db, path in scan.databases.items()}
        self._folder.write_more("schemas", {db: text for db, path in paths.items() if (text := schema_of(path))})
        names = _names(self._sources)
        runs = [
            {**self._of_run(source), "name": name, "answers": self._answers(i)}
            for i, (source, name) in enumerate(zip(self._sources, names, strict=True))
        ]
        head = {"title": " and ".join(names), "runs": runs, "told": self._told(), "reasons": REASONS}
        self._folder.write_index(head, rows)

    def _of_run(self, source: ResultFolder) -> dict[str, Any]:
        if source.kind != RUN:
            rules = rules_of(source.folder) if source.kind == EVALUATION else []
            ran = [("folder", source.name), *what_was_evaluated(settings_of(config_of(source.folder)))]
            return {"kind": source.kind, "ran": ran, "rules": rules}
        evaluations: Evaluations = last_evaluations(source)
        found = run_data(load_run(source.folder), evaluations)
        return {name: value for name, value in found.items() if name not in ("samples", "kept")}

    def _answers(self, run: int) -> int:
        return sum(len(row.rewards) for key, one in self._written.items() if key[0] == run for row in one.rows)

    def _told(self) -> list[str]:
        told = []
        cut = sorted({key[1].name for key, scan in self._scans.items() if scan.is_cut})
        if cut:
            told.append(f"A part of {', '.join(cut)} cannot be read and is left out.")
        dropped = sorted(key[2] for key in self._scans if key[1].name.startswith("train-"))
        if dropped and dropped[0] > 0:
            told.append("The run's oldest answers were dropped (run.keep_rollouts).")
        judge = self._judge
        if judge is not None and judge.missing:
            told.append(f"Not judged: {', '.join(judge.missing[:3])}.")
        if judge is not None and judge.judged < judge.asked and not judge.missing:
            told.append(
                f"{judge.judged:,} of {judge.asked:,} distinct answers were judged by every rule: "
                "view --judge N and --seconds S bound it."
            )
        return told

    def _other_files(self) -> list[Path]:
        return [one.folder / name for one in self._sources for name in ("metrics.jsonl", "about.json")]


def rules_of(folder: Path) -> list[dict[str, Any]]:
    """Return the shares of an evaluation by set and rule, with their intervals; nothing where its numbers are none."""
    try:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
        found = []
        for name in numbers:
            if name.endswith("/low") and f"{name.removesuffix('/low')}/high" in numbers:
                whole = name.removesuffix("/low")
                of, _, rule = whole.rpartition("/")
                bounds = {"low": float(numbers[name]), "high": float(numbers[f"{whole}/high"])}
                found.append({"set": of, "rule": rule, "mean": float(numbers[whole]), **bounds})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / NUMBERS}: no numbers of an evaluation: evaluate again") from error
    return found


def schema_of(path: str) -> str:
    """Return a database's schema as it may be shown; "" where the file cannot be read."""
    with suppress(sqlite3.Error, InputError, OSError, ValueError):
        return ddl(read_schema(path))
    return ""


def _names(sources: Sequence[ResultFolder]) -> list[str]:
    names = [one.name for one in sources]
    return names if len(set(names)) == len(names) else [str(one.folder) for one in sources]


def _size(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)
