"""A model behind an OpenAI-compatible endpoint, part of the sections that request one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class EndpointConfig:
    """A model behind an OpenAI-compatible endpoint, and what asking it may cost; part of the sections that ask one.

    `base_url` ends before `/chat/completions`. The key is read from the environment variable named by `key_env` (empty:
    none is sent). `concurrency` requests are under way at once, of `timeout_s` seconds each; one that fails for a
    passing reason is tried `retries` more times, after `wait_s` seconds and twice as long each time. `token_limit` is
    the server's word for the most tokens of an answer. `max_requests` and `max_cost` bound them all, over every run
    that went on in the same folder (0: no bound); `prompt_price` and `completion_price` are for a million tokens (0:
    unknown).
    """

    base_url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    concurrency: PositiveInt = 8
    timeout_s: PositiveFloat = 300.0
    retries: int = 5
    wait_s: float = 1.0
    token_limit: Annotated[str, OneOf("max_tokens", "max_completion_tokens")] = "max_tokens"  # noqa: S105 - a name
    max_requests: int = 0
    max_cost: float = 0.0
    prompt_price: float = 0.0
    completion_price: float = 0.0
