"""Checkpoints of a run: the state on the devices and the host's data for resuming, saved as one step.

The only importer of orbax. Saves run in the background and appear under their step's name when they are complete, so a
killed save is never the latest. The stable API is used: the experimental one still renames its functions.

A step's folder has the checksums of its files, which are compared before any file is read: neither Orbax nor
TensorStore notices a flipped bit in an array. Each process adds the checksums of the arrays that it wrote; to *seal*
files means to add their checksums.

A checkpoint's *rating* is the value of `run.best_by` in the evaluation of its step; higher is better.
"""

from __future__ import annotations

import io
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers, future

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.formats.checksums import SUMS, checked_bytes, find_damage, write_sums
from jaxrl_sql.parallel.processes import wait_for_all
from jaxrl_sql.runtime.folder import REPLACED, RunFolderError, write_error
from jaxrl_sql.runtime.progress import ProgressCallback, no_progress
from jaxrl_sql.types import Fields, InputError, Record

Arrays = Mapping[str, np.ndarray]
"""Arrays of the host by name."""

UNFINISHED = ".orbax-checkpoint-tmp"
"""A part of the name that orbax gives to the folder of an incomplete step."""
UNSUMMED = "_CHECKPOINT_METADATA"
"""A file without a checksum: orbax writes the commit time to it after the checksums exist. Runs do not read it."""
_RATING = "metrics/metrics"
"""The file of a step with its rating."""


StartTask = Callable[[str, int, str], AbstractContextManager[ProgressCallback]]
"""Starts a task by its name, total and unit, such as `Display.task`; yields its progress callback."""


def _without_progress(_name: str, _total: int, _unit: str) -> AbstractContextManager[ProgressCallback]:
    return nullcontext(no_progress)


class _SealingHandler(ocp.StandardCheckpointHandler):
    """Saves arrays; each process adds the checksums of its part after writing it.

    Orbax calls `async_save`, and runs the returned futures in the background.
    """

    async def async_save(self, directory: Any, *arguments: Any, **leaves_by_path: Any) -> list[future.Future]:
        writes = await super().async_save(directory, *arguments, **leaves_by_path)
        process_folder = Path(directory) / f"ocdbt.process_{jax.process_index()}"
        return [
            future.ChainedFuture(writes or [], lambda: write_sums(process_folder) if process_folder.is_dir() else None)
        ]


@ocp.args.register_with_handler(_SealingHandler, for_save=True)
class _SealingSave(ocp.args.StandardSave):
    """The arguments of `_SealingHandler.save`."""


@ocp.args.register_with_handler(_SealingHandler, for_restore=True)
class _SealingRestore(ocp.args.StandardRestore):
    """The arguments of `_SealingHandler.restore`."""


class Checkpoints:
    """The checkpoints in `folder`: it keeps the newest `keep`, and the `keep_best` best of those with a rating.

    Use it as a context manager or `close` it. With `is_read_only` nothing is removed or repaired, for readers of a run
    that may be saving. `on_saved` is called in the first process with each saved step, when all of its files are
    written but the step does not have its final name yet. `task` shows the progress of reading.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 2,
        keep_best: int = 0,
        is_read_only: bool = False,
        on_saved: Callable[[int], object] | None = None,
        task: StartTask = _without_progress,
    ) -> None:
        self._task = task
        self.folder = Path(folder).absolute()
        self._has_replaced = False  # a step is being saved again, and its earlier version is renamed
        self._on_saved = on_saved
        self._saving: int | None = None  # the step whose save was started last
        self._intact: set[int] = set()  # the steps whose checksums were compared
        if not is_read_only:
            _restore_replaced(self.folder)
            wait_for_all("checkpoints that were set aside")  # the other processes must not list steps before
            self._check_ratings()
        # Orbax reports every save there, which disturbs the display, and failed saves, whose errors it also raises.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        best = checkpoint_managers.BestN(get_metric_fn=_rating, n=keep_best, keep_checkpoints_without_metrics=False)
        preserved = checkpoint_managers.AnyPreservationPolicy([checkpoint_managers.LatestN(keep), best])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preserved,
            best_fn=_rating,
            create=not is_read_only,
            cleanup_tmp_directories=not is_read_only,
            read_only=is_read_only,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        handlers = {
            "state": _SealingHandler(),
            "host": ocp.JsonCheckpointHandler(),
            "arrays": ocp.StandardCheckpointHandler(),
        }
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(RunFolderError):  # the error that ended the run is reported instead
            self.close()

    def save(
        self,
        step: int,
        state: PyTree,
        host: Fields,
        arrays: Arrays | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Start to save a state under `step`; its arrays may be donated once this returns.

        `host` is a JSON object. `arrays` are further arrays of the host by name, such as batches that are not learned
        yet, of any type that NumPy can save. `metrics["best_by"]` is the rating; without it, or if it is NaN, the
        checkpoint has none. A step that exists is not saved again, because a repeated step computes exactly the same
        state. It is saved again only if it had no rating and has one now.
        """
        self.wait()
        is_rated = metrics is not None and math.isfinite(metrics["best_by"])
        if step in self._manager.all_steps():
            if not is_rated or self._rating_of(step) is not None:
                return
            self._set_aside(step)
        arguments = ocp.args.Composite(
            state=_SealingSave(_flatten(state)),
            host=ocp.args.JsonSave(dict(host)),
            arrays=ocp.args.StandardSave({"npz": _pack(arrays or {})}),
        )
        rating = {"best_by": float(metrics["best_by"])} if metrics is not None and is_rated else None
        self._saving = step
        self._intact.discard(step)
        with self._as_folder_error():
            self._manager.save(step, args=arguments, metrics=rating, force=True)

    def latest(self) -> int | None:
        """Return the newest complete step, or None."""
        self.wait()
        step = self._manager.latest_step()
        return None if step is None else int(step)

    def best(self) -> int | None:
        """Return the step of the existing checkpoint with the best rating, the later of two equal; None without one."""
        self.wait()
        rated = [(rating, step) for step in self._manager.all_steps() if (rating := self._rating_of(step)) is not None]
        return int(max(rated)[1]) if rated else None

    def host(self, step: int) -> Record:
        """Return the JSON object that was saved with `step`, without reading anything else."""
        step_folder = self._folder_of(step)
        try:
            return dict(self._manager.restore(step, args=ocp.args.Composite(host=ocp.args.JsonRestore())).host)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise _unreadable_error(step_folder, error) from error

    def restore(self, step: int, like: PyTree) -> tuple[PyTree, Record, dict[str, np.ndarray]]:
        """Return (state, host, arrays) of `step`, as they were passed to `save`.

        `like` is a state of the same structure, shapes and types: each restored array gets the sharding of its array
        there. Raises InputError if there is no such step, it cannot be read, or its arrays differ from those of `like`.
        """
        step_folder = self._folder_of(step)
        expected = {name: _abstract(leaf) for name, leaf in _flatten(like).items()}
        try:
            self._check_same_model(step, expected)
            arguments = ocp.args.Composite(
                state=_SealingRestore(expected),
                host=ocp.args.JsonRestore(),
                arrays=ocp.args.StandardRestore(),
            )
            restored = self._manager.restore(step, args=arguments)
            arrays = _unpack(np.asarray(restored.arrays["npz"]))
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise _unreadable_error(step_folder, error) from error
        state = jax.tree.unflatten(jax.tree.structure(like), [restored.state[name] for name in expected])
        return state, restored.host, arrays

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Return all arrays of a step's state on the host, by their paths in the state (`trainable.…`)."""
        step_folder, device = self._folder_of(step), jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        try:
            stored = self._read_metadata(step).items()
            expected = {n: jax.ShapeDtypeStruct(tuple(x.shape), np.dtype(x.dtype), sharding=device) for n, x in stored}
            arguments = ocp.args.Composite(state=_SealingRestore(expected))
            return {name: np.asarray(x) for name, x in self._manager.restore(step, args=arguments).state.items()}
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise _unreadable_error(step_folder, error) from error

    def wait(self) -> None:
        """Block until the save that runs in the background is complete; raises RunFolderError when it failed."""
        with self._as_folder_error():
            self._manager.wait_until_finished()
            if self._has_replaced:
                _restore_replaced(self.folder)
            self._has_replaced = False

    def close(self) -> None:
        """Wait for the save that runs in the background and end the threads."""
        self.wait()
        with self._as_folder_error():
            # Wait for a thread of orbax that removes the files of a killed run.
            self._manager._maybe_await_cleanup_tmp_directory()  # noqa: SLF001
            self._manager.close()  # it raises the error of a failed save again

    def _set_aside(self, step: int) -> None:
        """Rename a step that is saved again, so that the old version remains if the process is killed meanwhile."""
        with self._as_folder_error():
            if jax.process_index() == 0:
                (self.folder / str(step)).rename(self.folder / f"{step}{REPLACED}")
            wait_for_all("a checkpoint that is saved again")
            self._manager.reload()
        self._has_replaced = True

    def _check_ratings(self) -> None:
        """Raise InputError for a damaged rating; partial files of a killed save are ignored."""
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            is_complete = folder.name.isdecimal() and (folder / SUMS).is_file() and (folder / _RATING).is_file()
            if is_complete and (error := find_damage(folder, _RATING)):
                raise _unreadable_error(folder, error)

    def _seal(self) -> None:
        """Add the checksums of the step that is being saved; orbax calls this before it renames the complete step."""
        (folder,) = self.folder.glob(f"{self._saving}{UNFINISHED}*")
        write_sums(folder, exclude={UNSUMMED})
        if self._on_saved is not None and self._saving is not None:
            self._on_saved(self._saving)

    def _folder_of(self, step: int) -> Path:
        """Return the folder of a complete step; raises InputError if a file of it is damaged."""
        self.wait()
        if step not in self._manager.all_steps():
            raise InputError(f"{self.folder}: no checkpoint of step {step}")
        folder = self.folder / str(step)
        if step not in self._intact:
            mib = checked_bytes(folder) // (1 << 20)
            with self._task(f"checking the checkpoint of step {step}", mib, "MiB") as on_progress:
                error = find_damage(folder, on_progress=on_progress)
            if error:
                raise _unreadable_error(folder, error)
            self._intact.add(step)
        return folder

    def _rating_of(self, step: int) -> float | None:
        metrics = self._manager.metrics(step)
        return None if metrics is None else _rating(metrics)

    @contextmanager
    def _as_folder_error(self) -> Iterator[None]:
        """Turn errors of orbax and its threads into a RunFolderError with one line; earlier checkpoints stay."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            raise write_error(self.folder.parent, error) from error

    def _check_same_model(self, step: int, expected: dict[str, jax.ShapeDtypeStruct]) -> None:
        """Raise InputError with the first array that is missing, left over, or of another shape or type."""
        stored = {name: (tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in self._read_metadata(step).items()}
        where = f"{self.folder / str(step)}: a checkpoint of another model"
        for name, leaf in expected.items():
            if name not in stored:
                raise InputError(f"{where}: {name} is missing there")
            shape, dtype = stored[name]
            if shape != leaf.shape:
                raise InputError(f"{where}: {name} is {shape} there and {leaf.shape} here")
            if dtype != leaf.dtype:
                raise InputError(f"{where}: {name} is {dtype} there and {leaf.dtype} here")
        for name in stored:
            if name not in expected:
                raise InputError(f"{where}: {name} is there and not here")

    def _read_metadata(self, step: int) -> Record:
        """Return the metadata (shape and type) of the stored arrays, by name, without reading the arrays."""
        metadata = self._manager.item_metadata(step)["state"]
        if metadata is None:
            raise ValueError("it has no state")
        return dict(getattr(metadata, "tree", metadata))


def _restore_replaced(folder: Path) -> None:
    """Remove renamed checkpoints (`_set_aside`) whose new version is complete, and rename the others back."""
    for replaced in folder.glob(f"*{REPLACED}") if jax.process_index() == 0 else ():
        if (step_folder := replaced.with_suffix("")).exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(step_folder)


def _flatten(tree: PyTree) -> Record:
    """Return the leaves of a pytree by path; so the stored form has no None, tuples and dataclasses."""
    leaves = jax.tree.leaves_with_path(tree)
    leaves_by_path = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    assert len(leaves_by_path) == len(leaves), "two leaves of the state have one path"
    return leaves_by_path


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _rating(metrics: Mapping[str, float]) -> float:
    return float(metrics["best_by"])


def _unreadable_error(step_folder: Path, error: Exception | str) -> InputError:
    """Return an error with the advice to use an earlier checkpoint, if there is one."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    steps = [int(path.name) for path in step_folder.parent.iterdir() if path.name.isdecimal()]
    earlier = max((step for step in steps if step < int(step_folder.name)), default=None)
    advice = "start over in another run.dir" if earlier is None else f"delete it to resume from step {earlier}"
    return InputError(
        f"{step_folder}: this checkpoint cannot be read: {first_line}; put it back from a copy, or {advice}"
    )


def _pack(arrays: Arrays) -> np.ndarray:
    """Return named arrays as the bytes of one NPZ file, because orbax supports neither empty arrays nor texts."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    return np.frombuffer(file.getvalue(), np.uint8)


def _unpack(packed: np.ndarray) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(packed.tobytes()), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
