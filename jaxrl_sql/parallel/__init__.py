"""Where arrays live: `mesh` makes the axes, `rules` is the one table that says what is split over them.

`processes` is what the processes of one run do together beside the devices.
"""

from __future__ import annotations

from jaxrl_sql.parallel.mesh import make_mesh
from jaxrl_sql.parallel.rules import (
    batch_sharding,
    constrain,
    place,
    replicated,
    rows_here,
    shard_batch,
    sharding_of,
)

__all__ = [
    "batch_sharding",
    "constrain",
    "make_mesh",
    "place",
    "replicated",
    "rows_here",
    "shard_batch",
    "sharding_of",
]
