"""Prepared training data: sets chosen from, merged, split and written as plain folders with a manifest."""

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
from jaxrl_sql.config.prepare import TAKEN, EvalSet, PrepareConfig
from jaxrl_sql.databases.copy_database import copy_database, copy_descriptions, refuse_namesakes, write_natural_names
from jaxrl_sql.datagen.prepare.choose import Chosen, choose, without_repeats
from jaxrl_sql.datagen.prepare.split import split_off
from jaxrl_sql.text2sql.benchmarks import Benchmark, load_split, plain_record, skipped_lines
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.files.shares import one_in, rank
from jaxrl_sql.types import Example, InputError

MANIFEST, SCRATCH = "manifest.json", TAKEN[2]
_BLOCK = 1 << 20


def prepare(cfg: PrepareConfig) -> list[str]:
    """Choose, merge, split and write; return lines on what was taken and left out.

    Raises InputError for what cannot be merged, chosen or split.
    """
    out = Path(cfg.out)
    _refuse_other_work(out, cfg.evals)
    judged = {name: evaluated(name, one) for name, one in cfg.evals.items()}
    limits = ExecutorConfig(threads=cfg.threads, vm_steps=cfg.vm_steps, timeout_ms=cfg.timeout_ms)
    with make_executor(limits) as executor:
        chosen = {
            name: choose(name, one, cfg.seed, executor, out / SCRATCH / name) for name, one in cfg.sources.items()
        }
    kept, repeated = {name: one.examples for name, one in chosen.items()}, 0
    if cfg.repeats:
        kept, repeated = without_repeats(kept)
    digests = {path: _digest(Path(path)) for path in {one.db_path: None for found in kept.values() for one in found}}
    merged = merge(cfg, kept, digests)
    train, held = split_off(merged, cfg.validation, cfg.seed)
    surplus = max(0, len(train) - cfg.count) if cfg.count else 0
    if surplus:
        first = sorted(train, key=lambda one: rank(one.uid, f"train {cfg.seed}"))[: cfg.count]
        ids = {one.uid for one in first}
        train = [one for one in train if one.uid in ids]
    splits = {"train": train, **({"validation": held} if held else {})}
    splits |= {name: [*found.examples] for name, found in judged.items()}
    paths = {example.db_path: None for found in judged.values() for example in found.examples}
    digests |= {path: _digest(Path(path)) for path in paths}
    for name, examples in splits.items():
        write_split(out / name, examples, cfg.link)
    for n in cfg.subsets:
        wanted = one_in(train, n)
        write_lines(out / f"train_1_{n}.jsonl", [{"id": one.uid} for one in train if one.uid in wanted])
    dropped = {"asked before": repeated, "more than count": surplus}
    manifest = _manifest(cfg, chosen, splits, digests, {reason: n for reason, n in dropped.items() if n})
    manifest["evals"] = {
        name: {"left_out": dict(Counter(reason for _, reason in found.skipped)), "notes": list(found.notes)}
        for name, found in judged.items()
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.rmtree(out / SCRATCH, ignore_errors=True)
    return summary_lines(out, chosen, judged, splits, manifest)


def _refuse_other_work(out: Path, evals: Iterable[str]) -> None:
    """Make the folder; raises InputError where it holds something that this command did not write."""
    others = [one.name for one in out.iterdir()] if out.is_dir() else []
    if others and MANIFEST not in others and set(others) != {SCRATCH}:
        raise InputError(f"{out} holds {min(others)} and no {MANIFEST}: name a folder of its own")
    try:
        for name in (*TAKEN, *evals):
            shutil.rmtree(out / name, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("train_1_*.jsonl"):
            old.unlink()
        (out / MANIFEST).write_text('{"unfinished": true}\n', encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error


def evaluated(name: str, cfg: EvalSet) -> Benchmark:
    """Return what a set to evaluate on holds; raises InputError as loading it does, and for what no plain set says.

    That is golds that are no SQL, and two databases of one name.
    """
    split = load_split(cfg.dir, cfg.split)
    if tables := sum(bool(example.gold_tables) for example in split.examples):
        raise InputError(f"evals.{name}: {tables} golds are tables, not SQL: name the set itself in data.evals")
    refuse_namesakes(f"evals.{name}", split.examples)
    return split


def merge(cfg: PrepareConfig, sources: Mapping[str, Sequence[Example]], digests: Mapping[str, str]) -> list[Example]:
    """Return all questions, of several sources with their name before the id, and a name of its own for each database.

    Raises InputError where two databases of different content have one name.
    """
    owners: dict[str, tuple[str, str, str]] = {}
    found = []
    for name, examples in sources.items():
        refuse_namesakes(f"sources.{name}", examples)
        for example in examples:
            db_id = cfg.sources[name].prefix + example.db_id
            content = digests[example.db_path]
            owner, known, path = owners.setdefault(db_id.lower(), (name, content, example.db_path))
            if known != content:
                raise InputError(
                    f"database {db_id} of {owner} and of {name} are not the same: set sources.{name}.prefix, which "
                    "stands before its databases' names"
                )
            uid = f"{name}_{example.uid}" if len(sources) > 1 else example.uid
            found.append(dataclasses.replace(example, uid=uid, db_id=db_id, db_path=path))
    return found


def write_split(folder: Path, examples: Sequence[Example], is_linked: bool) -> None:
    """Write a split in the plain form, with copies of its databases and what describes them, or links."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "questions.jsonl", [plain_record(example) for example in examples])
    databases = {one.db_id: Path(one.db_path) for one in examples}
    for db_id, path in databases.items():
        target = folder / "databases" / db_id / f"{db_id}.sqlite"
        is_made = SCRATCH in path.parts and path.parents[3] == folder.parent
        copy_database(path, target, is_linked and not is_made)
        copy_descriptions(path, target)
    write_natural_names(folder, databases.items())


def _manifest(
    cfg: PrepareConfig,
    chosen: Mapping[str, Chosen],
    splits: Mapping[str, Sequence[Example]],
    digests: Mapping[str, str],
    dropped: Mapping[str, int],
) -> dict[str, Any]:
    sources = {
        name: {
            "dir": cfg.sources[name].dir,
            "format": one.form,
            "taken": len(one.examples),
            "databases": len({example.db_path for example in one.examples}),
            "hash": _hash(
                [*map(plain_record, one.examples), sorted({digests.get(e.db_path, "") for e in one.examples})]
            ),
            "left_out": dict(one.left_out.most_common()),
            "notes": one.notes,
        }
        for name, one in chosen.items()
    }
    written = {
        name: {
            "questions": len(examples),
            "databases": len({one.db_id for one in examples}),
            "difficulty": dict(Counter(one.difficulty or "-" for one in examples).most_common()),
            "hash": _hash([*map(plain_record, examples), sorted({digests[one.db_path] for one in examples})]),
        }
        for name, examples in splits.items()
    }
    return {"settings": dataclasses.asdict(cfg), "sources": sources, "left_out": dict(dropped), "written": written}


def _hash(lines: Sequence[Any]) -> str:
    whole = hashlib.sha256()
    for line in lines:
        whole.update(json.dumps(line, sort_keys=True, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n")
    return whole.hexdigest()


def _digest(path: Path) -> str:
    """Return the hash of a database's file."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()


def summary_lines(
    out: Path,
    chosen: Mapping[str, Chosen],
    judged: Mapping[str, Benchmark],
    splits: Mapping[str, Sequence[Example]],
    manifest: Mapping[str, Any],
) -> list[str]:
    """Return lines on the questions of each source and split, the last one the manifest's path."""
    lines = []
    for name, one in chosen.items():
        lines += [f"{name}: {note}" for note in one.notes]
        lines.append(f"{name}: {len(one.examples)} questions taken ({one.form})")
        lines += [f"  left out: {count:>8}  {reason}" for reason, count in one.left_out.most_common()]
    lines += [f"left out: {count:>8}  {reason}" for reason, count in manifest["left_out"].items()]
    for name, found in judged.items():
        lines += [f"{name}: {line}" for line in (*found.notes, *skipped_lines(found.skipped))]
    for name, examples in splits.items():
        lines.append(
            f"{out / name}: {len(examples)} questions on {len({example.db_id for example in examples})} databases"
        )
    return [*lines, str(out / MANIFEST)]
