"""Placement of arrays: `mesh` makes the mesh, and `rules` is the one table of the axes that split arrays.

`processes` coordinates the processes of a run on the host.
"""

from __future__ import annotations

from jaxrl_sql.parallel.mesh import make_mesh
from jaxrl_sql.parallel.rules import (
    batch_sharding,
    constrain,
    local_rows,
    place,
    replicated_sharding,
    shard_batch,
    sharding_of,
)

__all__ = [
    "batch_sharding",
    "constrain",
    "local_rows",
    "make_mesh",
    "place",
    "replicated_sharding",
    "shard_batch",
    "sharding_of",
]
