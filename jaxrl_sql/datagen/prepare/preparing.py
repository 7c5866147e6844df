"""Prepare training data: select questions of the configured sources, merge and split them, and write them.

Each split is a folder in the plain format (`questions.jsonl`, `databases/`). The manifest has the settings, and counts
and hashes of sources and splits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.config.prepare import RESERVED, EvalSetConfig, PrepareConfig
from jaxrl_sql.databases.copy_database import copy_database, copy_descriptions, refuse_namesakes, write_natural_names
from jaxrl_sql.datagen.prepare.choose import SelectedQuestions, choose, without_repeats
from jaxrl_sql.datagen.prepare.split import split_off
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.benchmarks import Benchmark, load_split, plain_record, summarize_skipped
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.files.shares import one_in, rank
from jaxrl_sql.types import Example, InputError

MANIFEST = "manifest.json"
SCRATCH = RESERVED[2]
"""The folder of databases that are built from scripts; it is removed at the end."""
_BLOCK_BYTES = 1 << 20


def prepare(cfg: PrepareConfig) -> list[str]:
    """Select, merge, split and write questions; return summary lines.

    Raises InputError if questions cannot be selected, merged or split.
    """
    out = Path(cfg.out)
    _refuse_other_work(out, cfg.evals)
    evals = {name: load_eval_set(name, eval_set) for name, eval_set in cfg.evals.items()}
    limits = ExecutorConfig(threads=cfg.threads, vm_steps=cfg.vm_steps, timeout_ms=cfg.timeout_ms)
    with make_executor(limits) as executor:
        chosen = {
            name: choose(name, source, cfg.seed, executor, out / SCRATCH / name) for name, source in cfg.sources.items()
        }
    selected, repeated = {name: choice.examples for name, choice in chosen.items()}, 0
    if cfg.repeats:
        selected, repeated = without_repeats(selected)
    digests = {
        path: _digest(Path(path))
        for path in {example.db_path: None for examples in selected.values() for example in examples}
    }
    merged = merge(cfg, selected, digests)
    train, validation = split_off(merged, cfg.validation, cfg.seed)
    surplus = max(0, len(train) - cfg.count) if cfg.count else 0
    if surplus:
        # `rank` is a hash of the id, so these are random questions.
        lowest = sorted(train, key=lambda example: rank(example.uid, f"train {cfg.seed}"))[: cfg.count]
        ids = {example.uid for example in lowest}
        train = [example for example in train if example.uid in ids]
    splits = {"train": train, **({"validation": validation} if validation else {})}
    splits |= {name: [*benchmark.examples] for name, benchmark in evals.items()}
    paths = {example.db_path: None for benchmark in evals.values() for example in benchmark.examples}
    digests |= {path: _digest(Path(path)) for path in paths}
    for name, examples in splits.items():
        write_split(out / name, examples, cfg.link)
    # The ids of random subsets: one question in `n`.
    for n in cfg.subsets:
        subset = one_in(train, n)
        write_lines(out / f"train_1_{n}.jsonl", [{"id": example.uid} for example in train if example.uid in subset])
    dropped = {"asked before": repeated, "more than count": surplus}
    manifest = _manifest(cfg, chosen, splits, digests, {reason: n for reason, n in dropped.items() if n})
    manifest["evals"] = {
        name: {"left_out": dict(Counter(reason for _, reason in benchmark.skipped)), "notes": list(benchmark.notes)}
        for name, benchmark in evals.items()
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.rmtree(out / SCRATCH, ignore_errors=True)
    return summary_lines(out, chosen, evals, splits, manifest)


def _refuse_other_work(out: Path, evals: Iterable[str]) -> None:
    """Create the output folder and remove an earlier result; raises InputError if it holds other files."""
    others = [path.name for path in out.iterdir()] if out.is_dir() else []
    if others and MANIFEST not in others and set(others) != {SCRATCH}:
        raise InputError(f"{out} holds {min(others)} and no {MANIFEST}: choose an empty folder")
    try:
        for name in (*RESERVED, *evals):
            shutil.rmtree(out / name, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("train_1_*.jsonl"):
            old.unlink()
        # A later run recognizes the folder by this file, also if this run is interrupted.
        (out / MANIFEST).write_text('{"unfinished": true}\n', encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error


def load_eval_set(name: str, cfg: EvalSetConfig) -> Benchmark:
    """Load an evaluation set.

    Raises InputError if it cannot be loaded, or cannot be written in the plain format: its golds are result tables
    instead of SQL, or two of its databases have one name.
    """
    split = load_split(cfg.dir, cfg.split)
    if tables := sum(bool(example.gold_tables) for example in split.examples):
        raise InputError(f"evals.{name}: {tables} golds are tables, not SQL: use the original set in data.evals")
    refuse_namesakes(f"evals.{name}", split.examples)
    return split


def merge(cfg: PrepareConfig, sources: Mapping[str, Sequence[Example]], digests: Mapping[str, str]) -> list[Example]:
    """Merge the questions of all sources; with several sources, ids start with the source's name.

    `digests` has the hash of each database by its path. A database of several sources is written once. Raises
    InputError if two databases of different content have one name.
    """
    # (source, digest, path) of the first database of each name
    owners: dict[str, tuple[str, str, str]] = {}
    merged = []
    for name, examples in sources.items():
        refuse_namesakes(f"sources.{name}", examples)
        for example in examples:
            db_id = cfg.sources[name].prefix + example.db_id
            content = digests[example.db_path]
            owner, first_content, path = owners.setdefault(db_id.lower(), (name, content, example.db_path))
            if first_content != content:
                raise InputError(
                    f"database {db_id} differs between {owner} and {name}: set sources.{name}.prefix, the prefix of "
                    "its database names"
                )
            uid = f"{name}_{example.uid}" if len(sources) > 1 else example.uid
            merged.append(dataclasses.replace(example, uid=uid, db_id=db_id, db_path=path))
    return merged


def write_split(folder: Path, examples: Sequence[Example], is_linked: bool) -> None:
    """Write a split in the plain format, with its databases and their descriptions.

    With `is_linked`, databases are links to the originals instead of copies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "questions.jsonl", [plain_record(example) for example in examples])
    databases = {example.db_id: Path(example.db_path) for example in examples}
    for db_id, path in databases.items():
        target = folder / "databases" / db_id / f"{db_id}.sqlite"
        # Databases built from scripts are copied always, because their folder is removed.
        is_scratch = SCRATCH in path.parts and path.parents[3] == folder.parent
        copy_database(path, target, is_linked and not is_scratch)
        copy_descriptions(path, target)
    write_natural_names(folder, databases.items())


def _manifest(
    cfg: PrepareConfig,
    chosen: Mapping[str, SelectedQuestions],
    splits: Mapping[str, Sequence[Example]],
    digests: Mapping[str, str],
    dropped: Mapping[str, int],
) -> dict[str, Any]:
    sources = {
        name: {
            "dir": cfg.sources[name].dir,
            "format": choice.form,
            "taken": len(choice.examples),
            "databases": len({example.db_path for example in choice.examples}),
            "hash": _hash(
                [*map(plain_record, choice.examples), sorted({digests.get(e.db_path, "") for e in choice.examples})]
            ),
            "left_out": dict(choice.left_out.most_common()),
            "notes": choice.notes,
        }
        for name, choice in chosen.items()
    }
    written = {
        name: {
            "questions": len(examples),
            "databases": len({example.db_id for example in examples}),
            "difficulty": dict(Counter(example.difficulty or "-" for example in examples).most_common()),
            "hash": _hash([*map(plain_record, examples), sorted({digests[example.db_path] for example in examples})]),
        }
        for name, examples in splits.items()
    }
    return {"settings": dataclasses.asdict(cfg), "sources": sources, "left_out": dict(dropped), "written": written}


def _hash(lines: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(json.dumps(line, sort_keys=True, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n")
    return digest.hexdigest()


def _digest(path: Path) -> str:
    """Return the SHA-256 of a database file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def summary_lines(
    out: Path,
    chosen: Mapping[str, SelectedQuestions],
    evals: Mapping[str, Benchmark],
    splits: Mapping[str, Sequence[Example]],
    manifest: Mapping[str, Any],
) -> list[str]:
    """Return summary lines per source and split; the last line is the manifest's path."""
    lines = []
    for name, choice in chosen.items():
        lines += [f"{name}: {note}" for note in choice.notes]
        lines.append(f"{name}: {quantity(len(choice.examples), 'questions')} selected ({choice.form})")
        lines += [f"  left out: {count:>8}  {reason}" for reason, count in choice.left_out.most_common()]
    lines += [f"left out: {count:>8}  {reason}" for reason, count in manifest["left_out"].items()]
    for name, benchmark in evals.items():
        lines += [
            f"{name}: {line}" for line in (*benchmark.notes, *summarize_skipped(benchmark.skipped, benchmark.lines))
        ]
    for name, examples in splits.items():
        lines.append(
            f"{out / name}: {quantity(len(examples), 'questions')} on "
            f"{quantity(len({example.db_id for example in examples}), 'databases')}"
        )
    return [*lines, str(out / MANIFEST)]
