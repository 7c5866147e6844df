"""The run folder: whether a run may start or resume there, and its saved configuration.

A resumed run is bit-equal to an uninterrupted one. So its settings must match the original run, except those that only
control its length, its output, its saved files, and when it stops.

Settings "by key" are a mapping from dotted keys, such as `grpo.steps`, to values.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxrl_sql.config import ModelConfigSection, RolloutConfig, RunConfig, TrainConfig, load_config
from jaxrl_sql.config.check import flatten, values_by_key
from jaxrl_sql.config.load import Root
from jaxrl_sql.types import Fields, InputError, JaxrlSqlError, Json, Record

CONFIG, METRICS, SAMPLES, CHECKPOINTS = "config.yaml", "metrics.jsonl", "samples.jsonl", "checkpoints"

REPLACED = ".replaced"
"""Suffix of a step's earlier checkpoint while the step is saved again, until the new one is complete."""
LAST_SAVED = "last_checkpoint"
"""File with the step of the newest checkpoint; with it, a run whose checkpoints are lost does not restart silently."""
_ACCUMULATION_KEY = ".gradient_accumulation_steps"
BLOCKS = ("prompt_blocks", "completion_blocks", "prefix_blocks")
"""Settings of `rollout`: numbers of blocks of the KV cache. If 0, the run computes them from the free memory."""

CHANGEABLE = (
    "run.", "health.", "validation.every", "sft.log_every", "sft.eval_every", "executor.threads", "executor.isolation",
)  # fmt: skip
"""Keys, or prefixes of keys, that may change when a run resumes."""

MOVABLE_PATHS = (
    "model.checkpoint", "data.dir", "data.tokenizer.path", "data.chat.template", "data.retrieval.synonyms",
    "data.select.include_ids", "data.traces",
)  # fmt: skip
"""Keys of files and folders that may have moved when a run resumes; `training.inputs` compares their content."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a write: the disk is full, over quota or read-only, or the file is too large."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Bytes under which a disk counts as full: a failed write may have left the rest of its block.
_LEAST_SPACE = 1 << 16


class RunFolderError(JaxrlSqlError):
    """A run's folder cannot be written: one line with the reason and the last complete checkpoint."""


def open_folder(run: RunConfig, values: Fields, text: str, is_first: bool) -> Path:
    """Create or check a run's folder and return it; `values` are the settings of the run by key.

    The first of the run's processes (`is_first`) writes the configuration to it; `text` is its YAML. Raises InputError
    for a folder that `check_folder` refuses or that cannot be written.
    """
    folder = check_folder(run, values)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_first:
            write_config(folder, text)
            if not list_saved_steps(folder):  # a kill left the checkpoint incomplete, and orbax removes it
                (folder / LAST_SAVED).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"run.dir: {folder} cannot be written: {error.strerror or error}") from error
    return folder


def check_folder(run: RunConfig, values: Fields) -> Path:
    """Return a run's folder, which may not exist yet; `values` are the settings of the run by key.

    Raises InputError if the folder has a run and `run.resume` is off, if that run was started with other settings, or
    if its checkpoints are lost.
    """
    folder = Path(run.dir)
    if run.resume:
        _refuse_lost_checkpoints(folder)
        _refuse_changed_settings(folder, values)
    elif has_steps(folder):
        raise InputError(f"{folder} already holds a run: choose another run.dir, or resume it with run.resume=true")
    return folder


def read_saved_values(folder: Path) -> Record:
    """Return the settings by key of a run's saved steps; empty if no step is saved."""
    is_saved = list_saved_steps(folder) and (folder / CONFIG).is_file()
    return values_by_key(load_config(TrainConfig, folder / CONFIG)) if is_saved else {}


def paths_from_start(run: RunConfig) -> Record:
    """Return the `MOVABLE_PATHS` of a resumed run as they were at its start; their files may have changed since."""
    start_values = read_saved_values(Path(run.dir)) if run.resume else {}
    return {key: start_values[key] for key in MOVABLE_PATHS} if start_values else {}


def write_config(folder: Path, text: str) -> None:
    """Write a run's configuration to its folder atomically."""
    scratch = folder / f"{CONFIG}.tmp"
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(folder / CONFIG)


def settings_from_start(run: RunConfig, date: str, rollout: RolloutConfig, model: ModelConfigSection) -> Record:
    """Return, by key, the values that a resumed run chose at its start for settings that leave the choice to the run.

    These are the date in chat prompts, the mesh of the rollout engine, the numbers of KV-cache blocks and the memory
    for logits. `date` is `data.chat.date`. Keys that `date`, `rollout` and `model` set explicitly are omitted.
    """
    folder = Path(run.dir)
    if not run.resume or not (folder / CONFIG).is_file():
        return {}
    start_values = values_by_key(load_config(TrainConfig, folder / CONFIG))
    keys = [] if date else ["data.chat.date"]
    if list_saved_steps(folder):
        keys += ["rollout.mesh"] if rollout.mesh == "auto" else []
        keys += [] if model.kept_logits_mib else ["model.kept_logits_mib"]
        if not (rollout.prompt_blocks and rollout.completion_blocks):
            keys += [f"rollout.{name}" for name in BLOCKS if not getattr(rollout, name)]
    return {key: start_values[key] for key in keys}


def load_resumed_config(root: type[Root], folder: Path, overrides: list[str]) -> Root:
    """Return the configuration of the run in a folder, to resume it, with overrides `key.sub=value`.

    `root` is the class of the command's configuration. Raises InputError if the folder has no run.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(f"--resume {folder}: no {CONFIG} there, so no run to resume")
    saved = dataclasses.asdict(load_config(root, folder / CONFIG))
    return load_config(root, None, [*overrides, f"run.dir={folder}", "run.resume=true"], defaults=saved)


def refuse_edited_settings(folder: Path, saved: Fields, current: Fields) -> None:
    """Raise InputError if a run's settings differ from those of its checkpoint.

    `current` are the run's settings by key, `saved` those of the checkpoint as nested sections. Settings of gradient
    accumulation may differ: they may depend on the number of devices.
    """
    saved_values = {
        key: value for key, value in flatten(saved) if key in current and not key.endswith(_ACCUMULATION_KEY)
    }
    changes = [
        f"{key} ({old_value!r} then, {value!r} now)"
        for key, old_value, value in _changes({**current, **saved_values}, current)
    ]
    if changes:
        raise InputError(
            f"{folder / CONFIG}: the newest checkpoint was saved with {', '.join(changes)}: restore the file"
        )


def list_saved_steps(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints in order."""
    paths = (folder / CHECKPOINTS).iterdir() if (folder / CHECKPOINTS).is_dir() else []
    names = {path.name.removesuffix(REPLACED) for path in paths}
    return sorted(int(name) for name in names if name.isdecimal())


def note_saved(folder: Path, step: int) -> None:
    """Record in a run's folder that the checkpoint of a step is about to be complete."""
    scratch = folder / f"{LAST_SAVED}.tmp"
    scratch.write_text(f"{step}\n", encoding="utf-8")
    scratch.replace(folder / LAST_SAVED)


def blocked_folder_error(error: OSError) -> InputError:
    """Return the error of a folder that cannot be created because a file has its name or that of a parent."""
    return InputError(f"{error.filename}: no folder can be created: a file has this name; choose another folder")


def file_error(error: OSError, paths: Iterable[str] = ()) -> JaxrlSqlError:
    """Return the operating system's error on a file as an exception with one line; raise other errors unchanged.

    The error of a full disk names no file. Its message names the folders without space among those of `paths`, the
    paths that the command may write.
    """
    if error.filename is None and error.errno not in UNWRITABLE:
        raise error
    full = find_full_folders(paths) if error.filename is None and error.errno in _NO_SPACE else []
    if full:
        return JaxrlSqlError(f"no space left on {' and '.join(full)}: free some, or name another folder")
    remedy = ": free some space, or name another folder" if error.filename and error.errno in _NO_SPACE else ""
    return JaxrlSqlError(f"{error.filename or 'a file cannot be written'}: {error.strerror}{remedy}")


def find_full_folders(paths: Iterable[str]) -> list[str]:
    """Return the folders whose disk is full, at most one per disk.

    Each of `paths` is a path or a setting `key=path`; for a path that is no folder, the nearest existing parent counts.
    """
    full: dict[int, str] = {}
    for path in paths:
        folder = Path(path.rpartition("=")[2] or ".").absolute()
        with suppress(OSError, ValueError):
            while not folder.is_dir() and folder != folder.parent:
                folder = folder.parent
            disk = os.statvfs(folder)
            is_full = disk.f_blocks > 0 and (disk.f_bavail == 0 or disk.f_bavail * disk.f_frsize < _LEAST_SPACE)
            if is_full or (disk.f_files > 0 and disk.f_favail == 0):
                full.setdefault(folder.stat().st_dev, str(folder))
    return list(full.values())


def resume_command(folder: Path) -> str:
    """Return the command that resumes the run in a folder, and the step of its newest checkpoint."""
    steps = list_saved_steps(folder)
    start = f"from the checkpoint of step {steps[-1]}" if steps else "from the beginning: no checkpoint is saved"
    return f"`{shlex.join(['jaxrl-sql', 'train', '--resume', str(folder)])}` ({start})"


def write_error(folder: Path, error: BaseException) -> RunFolderError:
    """Return the error of a failed write in a run's folder; resuming repairs incomplete files."""
    steps = list_saved_steps(folder)
    remedy = (
        f"the checkpoint of step {steps[-1]} is complete: resume with run.resume=true"
        if steps
        else "no checkpoint is saved"
    )
    return RunFolderError(f"{folder} cannot be written: {_reason(error)}; {remedy}")


@contextmanager
def report_unwritable(path: str | Path) -> Iterator[None]:
    """Raise RunFolderError, one line, if the block fails because the disk is full, over quota or read-only.

    The message advises to repeat the command, so this is for commands that then resume.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise RunFolderError(f"{path} cannot be written: {error.strerror}; repeat the command to resume") from error


def _reason(error: BaseException) -> str:
    """Return the reason of a failed write: the system's message if it is known, else the error's first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    message = str(error).strip() or type(error).__name__
    for error_code in UNWRITABLE:  # errors of other libraries may contain the system's message
        if os.strerror(error_code) in message:
            return os.strerror(error_code)
    return message.splitlines()[0]


def has_steps(folder: Path) -> bool:
    """Return whether a folder holds a run with recorded steps, which only `run.resume` continues."""
    metrics = folder / METRICS
    return bool(list_saved_steps(folder)) or (metrics.exists() and metrics.stat().st_size > 0)


def _refuse_lost_checkpoints(folder: Path) -> None:
    """Raise InputError if a run has lost its checkpoints: it would restart and overwrite its metrics and answers.

    A run that was killed before its first checkpoint was complete may restart.
    """
    checkpoints, last_saved = folder / CHECKPOINTS, folder / LAST_SAVED
    if list_saved_steps(folder):
        return
    last_step = last_saved.read_text(encoding="utf-8", errors="replace").strip() if last_saved.is_file() else ""
    # Orbax writes a checkpoint to `STEP.<suffix>` and renames the folder once it is complete.
    was_killed = bool(last_step) and checkpoints.is_dir() and any(checkpoints.glob(f"{last_step}.*"))
    if (last_saved.is_file() and not was_killed) or (not checkpoints.is_dir() and has_steps(folder)):
        newest = f", the newest of step {last_step}," if last_step else ""
        raise InputError(
            f"{checkpoints}: checkpoints of this run{newest} are missing: restore them to resume, choose another "
            f"run.dir to start again, or delete {folder}"
        )


def _refuse_changed_settings(folder: Path, values: Fields) -> None:
    """Raise InputError with the keys that differ from those of the saved steps."""
    old = read_saved_values(folder)
    changes = [f"{key} ({old_value!r} then, {current!r} now)" for key, old_value, current in _changes(old, values)]
    if changes:
        raise InputError(
            f"{folder}: these settings differ from those of the run: {', '.join(changes)}; a resumed run must compute "
            "the same as an uninterrupted one: restore them, or choose another run.dir"
        )


def _changes(old: Fields, new: Fields) -> Iterator[tuple[str, Json, Json]]:
    """Yield (key, old value, new value) of the changes that affect a run's results."""
    for key, old_value in old.items():
        if old_value != new[key] and not _is_changeable(key, old) and not _is_extension(key, old, new):
            yield key, old_value, new[key]


def _is_changeable(key: str, old: Fields) -> bool:
    """Return whether a key does not affect a run's results.

    Settings of evaluations affect them where an evaluation decides how training continues.
    """
    if key == "sft.eval_every" and old["sft.patience"]:  # evaluations decide when the supervised phase stops
        return False
    # The second stage begins with the checkpoint that evaluations rate best.
    if key in {"validation.every", "run.keep_best", "run.best_by"} and old["second_stage.steps"]:
        return False
    return key.startswith(CHANGEABLE) or key in MOVABLE_PATHS


def _is_extension(key: str, old: Fields, new: Fields) -> bool:
    """Return whether a change of the number of steps leaves the computation of the finished steps unchanged.

    It does not where the learning rate's schedule depends on the number of steps, or where a later phase follows.
    """
    if key == "grpo.steps":  # with rollout.ahead, a step also starts the next rollout, except the last step
        is_constant = new["grpo.optim.schedule"] == "constant"
        return is_constant and not new["rollout.ahead"] and not old["second_stage.steps"]
    return (
        key == "sft.steps"
        and not old["sft.patience"]
        and new["sft.optim.schedule"] == "constant"
        and not (old["grpo.steps"] or new["grpo.steps"])
    )
