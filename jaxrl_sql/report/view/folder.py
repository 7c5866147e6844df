"""Write the folder of answers of one or two sources, and update it as they grow.

A source is the folder of a run, an evaluation or a comparison. Its groups are read in chunks, such as the shards of a
run, and each chunk becomes a part of the written folder. To judge an answer is to execute it and to compare its result
with the gold's by every rule.
"""

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
from jaxrl_sql.report.facts import describe_evaluation
from jaxrl_sql.report.folder import AnswersFolder, IndexRow, collect_token_ids, row_of
from jaxrl_sql.report.groups import (
    EVALUATION,
    NUMBERS,
    RUN,
    AnswerGroup,
    Chunk,
    ResultFolder,
    add_advantages,
    last_evaluations,
    list_chunks,
    open_result_folder,
    read_chunk,
    read_tokens,
)
from jaxrl_sql.report.html import run_data
from jaxrl_sql.report.intervals import Evaluations
from jaxrl_sql.report.load import config_of, load_run, settings_of
from jaxrl_sql.report.view.judging import Judge, JudgeRequest, judge_requests
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.evals.differences import REASONS
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.render import ddl
from jaxrl_sql.types import InputError

Advantages = dict[tuple[int, int], list[list[float]]]
"""Advantages of training batches, as `groups.ChunkContent` has them."""
PartKey = tuple[int, Path, int]
"""The identity of a chunk: the index of its source, its file and its number."""


class Scan(NamedTuple):
    """The content of a chunk before it is written: answers to judge, and data that the whole folder needs.

    `stamp` is that of the chunk when it was read, `steps` those of its groups, `requests` the answers to judge,
    `tokens` the ids of all tokens in answers, and `databases` the paths of SQLite files by database id.
    """

    stamp: tuple[int, ...]
    steps: tuple[int, ...]
    requests: list[JudgeRequest]
    advantages: Advantages
    tokens: set[int]
    databases: dict[str, str]
    is_incomplete: bool


class PartState(NamedTuple):
    """The index entries of a written part, and the inputs on which its content depends.

    The part is written again if these inputs change.
    """

    depends_on: tuple[Any, ...]
    rows: list[IndexRow]


@contextmanager
def open_view(
    folders: Sequence[str], out: Path | None, max_judged: int, seconds: float, report: Callable[[str], None] | None
) -> Iterator[View]:
    """Open one or two runs or evaluations, and the executor that judges their answers; yield their view.

    `out` defaults to RUN/view. At most `max_judged` distinct answers are judged by every rule, for about `seconds` in
    each update. `report` gets lines about the progress.
    """
    sources = [open_result_folder(folder) for folder in folders]
    runs = [source for source in sources if source.kind == RUN]
    with ExitStack() as stack:
        judge = None
        if max_judged > 0 and runs:
            executor = stack.enter_context(make_executor(*executor_settings(runs)))
            judge = Judge(executor, max_judged, seconds)
        yield View(sources, out or sources[0].folder / "view", judge, report)


@dataclass(frozen=True)
class JudgedRun(RootConfig):
    """The settings of a run that its answers are judged with."""

    data: DataConfig = field(default_factory=DataConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)


def executor_settings(runs: Sequence[ResultFolder]) -> tuple[ExecutorConfig, list[str]]:
    """Return the limits of the first run's executor, and the hidden columns of all.

    A run without a configuration has the default limits and no hidden columns. Raises InputError for a configuration
    that cannot be read, because its hidden columns would be shown.
    """
    paths = {number: run.folder / CONFIG for number, run in enumerate(runs)}
    configs = {number: load_config(JudgedRun, path) for number, path in paths.items() if path.is_file()}
    limits = configs[0].executor if 0 in configs else ExecutorConfig()
    return limits, [name for config in configs.values() for name in config.data.hide]


class View:
    """Write the folder `out` of sources; `update` writes changes and returns whether there were any.

    Without a `judge`, answers have only the verdicts of their records. `note` gets lines about the progress. Raises
    InputError for a source without answers, and as `AnswersFolder` and `Judge` do.
    """

    def __init__(
        self, sources: Sequence[ResultFolder], out: Path, judge: Judge | None, note: Callable[[str], None] | None = None
    ) -> None:
        for source in sources:
            list_chunks(source)  # invalid sources fail before anything is written
        self._sources, self._judge, self._note = sources, judge, note or (lambda _: None)
        self.out = out
        self._scans: dict[PartKey, Scan] = {}
        self._parts: dict[PartKey, int] = {}
        self._written: dict[PartKey, PartState] = {}
        self._source_state: Any = None
        self._stamp = 0

    def make_folder(self) -> None:
        """Create the folder before reading; raises InputError for a folder with other files."""
        _ = self._folder

    @cached_property
    def _folder(self) -> AnswersFolder:
        return AnswersFolder(self.out)

    def update(self, is_live: bool = False) -> bool:
        """Write the changes of the sources, then a new version number; return whether there were changes.

        `is_live`: the sources may still grow, so an open page asks for new versions. A folder that is not live must
        have answers; else InputError is raised.
        """
        chunks_by_key = {
            (i, chunk.path, chunk.number): chunk
            for i, source in enumerate(self._sources)
            for chunk in list_chunks(source)
        }
        other_files = map(_size_and_time, self._other_files())
        source_state = (is_live, *(chunk.stamp for chunk in chunks_by_key.values()), *other_files)
        if source_state == self._source_state:
            return False
        self._scans = {key: scan for key, scan in self._scans.items() if key in chunks_by_key}
        self._scan(chunks_by_key)
        if not is_live and not any(scan.steps for scan in self._scans.values()):
            names = ", ".join(sorted({str(path) for _, path, _ in chunks_by_key})[:3])
            raise InputError(f"no answer can be read in {names}: cut or broken")
        if self._judge is not None:
            self._judge.judge(self._ordered_requests())
        for key in chunks_by_key:  # a part keeps its number, also when the run deletes its chunk
            self._parts.setdefault(key, len(self._parts))
        for key, number in self._parts.items():
            self._write_part(key, number, chunks_by_key.get(key))
        self._write_rest()
        self._source_state, self._stamp = source_state, self._stamp + 1
        self._folder.write_stamp(self._stamp, is_live)
        return True

    def _scan(self, chunks_by_key: dict[PartKey, Chunk]) -> None:
        """Read the chunks that are new or have grown."""
        for index, (key, chunk) in enumerate(chunks_by_key.items()):
            cached = self._scans.get(key)
            if cached is None or cached.stamp != chunk.stamp:
                groups, advantages, is_incomplete = read_chunk(chunk)
                self._scans[key] = Scan(
                    chunk.stamp,
                    tuple(dict.fromkeys(group["step"] for group in groups)),
                    judge_requests(groups),
                    advantages,
                    collect_token_ids(groups),
                    {group["db"]: group["example"].db_path for group in groups if group["example"]},
                    is_incomplete,
                )
                self._note(f"read {index + 1} of {len(chunks_by_key)} chunks")

    def _ordered_requests(self) -> Iterator[JudgeRequest]:
        """Yield the answers to judge: evaluations before rollouts, the newest first."""
        newest = sorted(self._scans, key=lambda key: ("eval-" in key[1].name, key[2]), reverse=True)
        for key in newest:
            yield from self._scans[key].requests

    def _write_part(self, key: PartKey, number: int, chunk: Chunk | None) -> None:
        """Write a part if it has changed; a part whose chunk the run has deleted is empty."""
        if chunk is None:
            self._written[key] = PartState((), [])
            self._folder.write_part(number, [])
            return
        scan = self._scans[key]
        advantages = self._advantages(key[0], set(scan.steps))
        depends_on = (scan.stamp, tuple(advantages), self._judge.count_judged(scan.requests) if self._judge else 0)
        cached = self._written.get(key)
        if cached is not None and cached.depends_on == depends_on:
            return
        groups: list[AnswerGroup] = read_chunk(chunk).groups
        add_advantages(groups, advantages)
        if self._judge is not None:
            self._judge.attach(groups)
        self._folder.write_part(number, groups)
        self._written[key] = PartState(depends_on, [row_of(group, key[0]) for group in groups])
        self._note(f"written {number + 1} of {len(self._parts)} chunks")

    def _advantages(self, run: int, steps: set[int]) -> Advantages:
        """Return the advantages of the source with index `run` for rollouts of some steps."""
        all_advantages = (scan.advantages for key, scan in self._scans.items() if key[0] == run)
        return {batch: rows for advantages in all_advantages for batch, rows in advantages.items() if batch[0] in steps}

    def _write_rest(self) -> None:
        """Write the texts of tokens, the schemas, the index and the page."""
        rows = [self._written[key].rows for key in self._parts]
        texts = [read_tokens(source) for source in self._sources]
        used = set().union(*(scan.tokens for scan in self._scans.values()))
        longest = max(texts, key=len)  # two runs have the same vocabulary, and one may not have saved it
        self._folder.write_data(
            "tokens", {str(token): longest[token] for token in sorted(used) if token < len(longest)}
        )
        paths = {db: path for scan in self._scans.values() for db, path in scan.databases.items()}
        self._folder.write_data("schemas", {db: text for db, path in paths.items() if (text := schema_of(path))})
        names = _names(self._sources)
        runs = [
            {**self._source_data(source), "name": name, "answers": self._count_answers(i)}
            for i, (source, name) in enumerate(zip(self._sources, names, strict=True))
        ]
        head = {"title": " and ".join(names), "runs": runs, "notes": self._notes(), "reasons": REASONS}
        self._folder.write_index(head, rows)

    def _source_data(self, source: ResultFolder) -> dict[str, Any]:
        """Return the data of a source's overview page."""
        if source.kind != RUN:
            rules = rules_of(source.folder) if source.kind == EVALUATION else []
            settings = [("folder", source.name), *describe_evaluation(settings_of(config_of(source.folder)))]
            return {"kind": source.kind, "ran": settings, "rules": rules}
        evaluations: Evaluations = last_evaluations(source)
        data = run_data(load_run(source.folder), evaluations)
        return {name: value for name, value in data.items() if name not in ("samples", "kept")}

    def _count_answers(self, run: int) -> int:
        return sum(len(row.rewards) for key, part in self._written.items() if key[0] == run for row in part.rows)

    def _notes(self) -> list[str]:
        notes = []
        incomplete = sorted({key[1].name for key, scan in self._scans.items() if scan.is_incomplete})
        if incomplete:
            notes.append(f"A part of {', '.join(incomplete)} cannot be read and is omitted.")
        shard_numbers = sorted(key[2] for key in self._scans if key[1].name.startswith("train-"))
        if shard_numbers and shard_numbers[0] > 0:
            notes.append("The run's oldest answers were dropped (run.keep_rollouts).")
        judge = self._judge
        if judge is not None and judge.missing:
            notes.append(f"Not judged: {', '.join(judge.missing[:3])}.")
        if judge is not None and judge.num_judged < judge.num_requested and not judge.missing:
            notes.append(
                f"{judge.num_judged:,} of {judge.num_requested:,} distinct answers were judged by every rule: "
                "view --judge N and --seconds S set the limits."
            )
        return notes

    def _other_files(self) -> list[Path]:
        return [source.folder / name for source in self._sources for name in ("metrics.jsonl", "about.json")]


def rules_of(folder: Path) -> list[dict[str, Any]]:
    """Return the shares of an evaluation by set and rule with their 95 % intervals, from the metrics `SET/RULE`.

    Raises InputError for an invalid file.
    """
    try:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
        rules = []
        for name in numbers:
            if name.endswith("/low") and f"{name.removesuffix('/low')}/high" in numbers:
                key = name.removesuffix("/low")
                set_name, _, rule = key.rpartition("/")
                bounds = {"low": float(numbers[name]), "high": float(numbers[f"{key}/high"])}
                rules.append({"set": set_name, "rule": rule, "mean": float(numbers[key]), **bounds})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / NUMBERS}: no numbers of an evaluation: evaluate again") from error
    return rules


def schema_of(path: str) -> str:
    """Return a database's schema as text; "" if the file cannot be read."""
    with suppress(sqlite3.Error, InputError, OSError, ValueError):
        return ddl(read_schema(path))
    return ""


def _names(sources: Sequence[ResultFolder]) -> list[str]:
    names = [source.name for source in sources]
    return names if len(set(names)) == len(names) else [str(source.folder) for source in sources]


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return the size and the modification time of a file, which change with its content; zeros without a file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)
