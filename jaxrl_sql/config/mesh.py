"""The section `mesh`: devices along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from jaxrl_sql.config.fields import AtLeast, Synonyms

_Size = Annotated[int, AtLeast(-1)]


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis, over all processes."""

    data: Annotated[
        _Size, "Devices along the data axis, each with a copy of the weights; -1 uses the remaining ones."
    ] = 1
    fsdp: Annotated[
        _Size,
        "Devices over which the weights and the batch are sharded; -1 uses the remaining ones.",
        Synonyms(verl="actor_rollout_ref.actor.fsdp_config.fsdp_size"),
    ] = -1
    tensor: Annotated[_Size, "Devices over which each layer's matrices are sharded; -1 uses the remaining ones."] = 1
    processes: Annotated[
        int,
        "Number of processes of the run; 0 queries the cluster that started them.",
        Synonyms(verl="trainer.nnodes", note="processes, not machines"),
    ] = 1

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each invalid mesh size."""
        axes = {axis: size for axis, size in asdict(self).items() if axis != "processes"}
        if 0 in axes.values():
            yield f"{name} {axes}: a size must be 1 or more, or -1 for the rest"
        if list(axes.values()).count(-1) > 1:
            yield f"{name} {axes}: only one axis can use the rest (-1)"
