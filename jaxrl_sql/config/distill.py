"""The section `distill`: a teacher behind an endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import PositiveInt


@dataclass(frozen=True)
class DistillSettings(EndpointConfig):
    """A teacher behind an endpoint, which the command `distill` asks for reasoning and SQL.

    Each question is asked up to `samples` times, until `wanted` answers were right. `out` is the folder that is
    written.
    """

    out: str = "runs/distill"
    samples: PositiveInt = 1
    wanted: PositiveInt = 1
    temperature: float = 0.7
    max_tokens: PositiveInt = 4096
