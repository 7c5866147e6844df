"""The section `distill`: a teacher behind an endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import PositiveInt


@dataclass(frozen=True)
class DistillSettings(EndpointConfig):
    """A teacher behind an endpoint, which `jaxrl-sql distill` asks for reasoning and SQL."""

    out: Annotated[str, "Folder that is written."] = "runs/distill"
    samples: Annotated[PositiveInt, "Most requests per question."] = 1
    wanted: Annotated[PositiveInt, "Number of right answers after which a question is not asked again."] = 1
    temperature: Annotated[float, "Temperature of the teacher's answers."] = 0.7
    max_tokens: Annotated[PositiveInt, "Most tokens of a teacher's answer."] = 4096

    def faults(self, name: str) -> Iterator[str]:
        """Yield what the section's fields contradict."""
        yield from super().faults(name)
        if self.wanted > self.samples:
            yield (f"{name}.wanted={self.wanted} right answers of {name}.samples={self.samples}: ask at least as often")
