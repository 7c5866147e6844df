"""The section `mesh`: devices along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from jaxrl_sql.config.fields import AtLeast, Synonyms

_Size = Annotated[int, AtLeast(-1)]


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis, of all processes together."""

    data: Annotated[
        _Size, "Devices along the data axis, each with a copy of the weights; -1 takes the remaining ones."
    ] = 1
    fsdp: Annotated[
        _Size,
        "Devices that the weights and the batch are split over; -1 takes the remaining ones.",
        Synonyms(verl="actor_rollout_ref.actor.fsdp_config.fsdp_size"),
    ] = -1
    tensor: Annotated[_Size, "Devices that each layer's matrices are split over; -1 takes the remaining ones."] = 1
    processes: Annotated[
        int,
        "Number of processes of the run; 0 asks the cluster that started them.",
        Synonyms(verl="trainer.nnodes", note="processes, not machines"),
    ] = 1

    def faults(self, name: str) -> Iterator[str]:
        """Yield which sizes no mesh can have."""
        axes = {axis: size for axis, size in asdict(self).items() if axis != "processes"}
        if 0 in axes.values():
            yield f"{name} {axes}: a size is 1 or more, or -1 for the rest"
        if list(axes.values()).count(-1) > 1:
            yield f"{name} {axes}: only one axis can take the rest (-1)"
