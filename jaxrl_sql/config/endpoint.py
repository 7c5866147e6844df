"""A model behind an OpenAI-compatible endpoint, part of the sections that request one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class EndpointConfig:
    """A model behind an OpenAI-compatible endpoint, and limits of the requests to it.

    The limits apply to all requests of an output folder, including those before a resumption.
    """

    base_url: Annotated[str, "Base URL of the endpoint, without `/chat/completions`; if empty, none is used."] = ""
    model: Annotated[str, "Name of the model at the endpoint."] = ""
    key_env: Annotated[str, "Environment variable that holds the endpoint's key; if empty, no key is sent."] = (
        "OPENAI_API_KEY"
    )
    concurrency: Annotated[PositiveInt, "Number of concurrent requests."] = 8
    timeout_s: Annotated[PositiveFloat, "Time limit of a request, in seconds."] = 300.0
    retries: Annotated[int, "Number of times that a request is repeated after a transient error."] = 5
    wait_s: Annotated[float, "Seconds before the first retry; the delay doubles with each further retry."] = 1.0
    token_limit: Annotated[
        str,
        OneOf("max_tokens", "max_completion_tokens"),
        "Name of the endpoint's parameter for the maximum number of tokens of an answer.",
    ] = "max_tokens"  # noqa: S105 - a name
    reasoning_effort: Annotated[
        str,
        OneOf("", "none", "minimal", "low", "medium", "high", "xhigh"),
        "Effort of reasoning that is requested of the endpoint; if empty, the field is not sent.",
    ] = ""
    max_requests: Annotated[int, "Maximum number of requests in all; 0 sets no limit."] = 0
    max_cost: Annotated[float, "Maximum cost of all requests, in the currency of the prices; 0 sets no limit."] = 0.0
    prompt_price: Annotated[float, "Price per million prompt tokens; 0 is unknown."] = 0.0
    completion_price: Annotated[float, "Price per million completion tokens; 0 is unknown."] = 0.0

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the endpoint's fields."""
        if self.reasoning_effort and not self.base_url:
            yield f"{name}.reasoning_effort={self.reasoning_effort} is for an endpoint ({name}.base_url)"
        if self.max_cost and self.prompt_price + self.completion_price <= 0:
            yield f"{name}.max_cost={self.max_cost} needs {name}.prompt_price and {name}.completion_price"
        if "@" in self.base_url.partition("://")[2].partition("/")[0]:
            yield (
                f"{name}.base_url holds a user or password, which would be written to files: set {name}.key_env to the "
                "name of the key's variable"
            )
