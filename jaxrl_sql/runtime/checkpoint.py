"""Checkpoints of a run: the state on the devices and what the host must know to go on, saved as one step.

The only importer of orbax. Saves run in the background and appear under their step's name when they are complete, so a
killed save is never the latest. The stable API is used: the experimental one still renames its functions.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxrl_sql.types import InputError

PyTree = Any


class Checkpoints:
    """The checkpoints of a run folder; the newest `keep` of them stay. Use it as a context manager or `close` it."""

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        self.folder = Path(folder).absolute()
        logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports every save there, over our display
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, cleanup_tmp_directories=True)
        handlers = {"state": ocp.StandardCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def save(self, step: int, state: PyTree, host: dict[str, Any]) -> None:
        """Start to save a state and a JSON object under `step`; the arrays may be donated once this returns.

        A step that is there already stays as it is: training is exact, so it holds the same.
        """
        self.wait()
        if step in self._manager.all_steps():
            return
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(_named(state)), host=ocp.args.JsonSave(host))
        self._manager.save(step, args=arguments, force=True)

    def latest(self) -> int | None:
        """Return the newest complete step, or None."""
        self.wait()
        step = self._manager.latest_step()
        return None if step is None else int(step)

    def rewind(self, step: int) -> None:
        """Delete what is newer than `step`: a run that starts or goes on from there writes it again."""
        self.wait()
        for newer in [found for found in self._manager.all_steps() if found > step]:
            self._manager.delete(newer)

    def restore(self, step: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Return (state, host) of `step`, each array on the sharding that it has in `like`.

        Raises InputError when there is no such step, it cannot be read, or it holds another model than `like`.
        """
        self.wait()
        if step not in self._manager.all_steps():
            raise InputError(f"{self.folder}: no checkpoint of step {step}")
        where = self.folder / str(step)
        wanted = {name: _abstract(leaf) for name, leaf in _named(like).items()}
        try:
            self._refuse_another(step, wanted)
            arguments = ocp.args.Composite(state=ocp.args.StandardRestore(wanted), host=ocp.args.JsonRestore())
            restored = self._manager.restore(step, args=arguments)
        except (KeyError, OSError, TypeError, ValueError) as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{where}: this checkpoint cannot be read: {first_line}") from error
        return jax.tree.unflatten(jax.tree.structure(like), [restored.state[name] for name in wanted]), restored.host

    def wait(self) -> None:
        """Block until the save that runs in the background is complete, and raise what made it fail."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish the save in flight and let the threads go."""
        self.wait()
        self._manager.close()

    def _refuse_another(self, step: int, wanted: dict[str, jax.ShapeDtypeStruct]) -> None:
        """Raise InputError with the first array that is missing, left over, or of another shape or type."""
        found = {name: (tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in self._stored(step).items()}
        where = f"{self.folder / str(step)}: a checkpoint of another model"
        for name, leaf in wanted.items():
            if name not in found:
                raise InputError(f"{where}: {name} is missing there")
            shape, kind = found[name]
            if shape != leaf.shape:
                raise InputError(f"{where}: {name} is {shape} there and {leaf.shape} here")
            if kind != leaf.dtype:
                raise InputError(f"{where}: {name} is {kind} there and {leaf.dtype} here")
        for name in found:
            if name not in wanted:
                raise InputError(f"{where}: {name} is there and not here")

    def _stored(self, step: int) -> dict[str, Any]:
        """Return what is known of the stored arrays, by name, without reading them."""
        metadata = self._manager.item_metadata(step)["state"]
        if metadata is None:
            raise ValueError("it has no state")
        return dict(getattr(metadata, "tree", metadata))


def _named(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a pytree by path, which keeps None, tuples and dataclasses out of the stored form."""
    leaves = jax.tree.leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    assert len(named) == len(leaves), "two leaves of the state have one path"
    return named


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
