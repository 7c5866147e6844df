"""The section `distill`: a teacher, which is a model behind an endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import PositiveInt


@dataclass(frozen=True)
class DistillSettings(EndpointConfig):
    """A teacher behind an endpoint, from which `jaxrl-sql distill` requests reasoning and SQL."""

    out: Annotated[str, "Output folder."] = "runs/distill"
    samples: Annotated[PositiveInt, "Maximum number of requests per question."] = 1
    wanted: Annotated[PositiveInt, "Number of correct answers after which a question is not sent again."] = 1
    temperature: Annotated[float, "Temperature of the teacher's answers."] = 0.7
    max_tokens: Annotated[PositiveInt, "Maximum number of tokens of a teacher's answer."] = 4096

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        yield from super().find_errors(name)
        if self.wanted > self.samples:
            yield f"{name}.wanted={self.wanted} must be at most {name}.samples={self.samples}"
