"""The section `mesh`: devices along each axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import AtLeast


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis, of all processes together; -1 takes what is left.

    `processes` is how many processes the run has; 0 asks the cluster that started them.
    """

    data: Annotated[int, AtLeast(-1)] = 1
    fsdp: Annotated[int, AtLeast(-1)] = -1
    tensor: Annotated[int, AtLeast(-1)] = 1
    processes: int = 1
