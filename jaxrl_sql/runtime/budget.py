"""The budget of a chat endpoint: requests, tokens, and their cost if prices are known."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from jaxrl_sql.types import Fields, InputError, JaxrlSqlError


class BudgetSpentError(JaxrlSqlError):
    """The limit on requests or on cost is reached."""


class Usage(NamedTuple):
    """The number of requests that were sent, failed ones included, and the tokens that servers counted in replies."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage(*map(sum, zip(self, other, strict=True)))

    @classmethod
    def of(cls, record: Fields) -> Self:
        """Read the counts in a journal's record, whose keys are the names of these fields; a missing count is 0."""
        return cls(**{name: int(record.get(name, 0)) for name in cls._fields})

    @classmethod
    def total(cls, records: Iterable[Fields]) -> Usage:
        """Return the sum over records."""
        total = Usage()
        for record in records:
            total = total.plus(cls.of(record))
        return total


class Prices(NamedTuple):
    """Price of a million tokens, in any currency; 0 is unknown."""

    prompt: float = 0.0
    completion: float = 0.0

    def cost(self, spent: Usage) -> float:
        """Return the cost of tokens, an upper bound: servers may charge less for cached tokens."""
        return (spent.prompt_tokens * self.prompt + spent.completion_tokens * self.completion) / 1e6


@dataclass
class Budget:
    """Limits on requests and cost; 0 is no limit. Thread-safe.

    `spent` is the use so far, that of earlier runs of the command included.

    The cost of a request is known only after its reply. Once `max_cost` is reached, no request is sent; requests in
    flight complete and may exceed it.
    """

    max_requests: int = 0
    max_cost: float = 0.0
    prices: Prices = field(default_factory=Prices)
    spent: Usage = field(default_factory=Usage)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def cost(self) -> float:
        """Return the cost so far, in the currency of the prices."""
        return self.prices.cost(self.spent)

    @property
    def reached_limit(self) -> str:
        """Return the reached limit as `name=value`, or ""."""
        if 0 < self.max_requests <= self.spent.requests:
            return f"max_requests={self.max_requests}"
        return f"max_cost={self.max_cost}" if 0 < self.max_cost <= self.cost else ""

    def take(self) -> bool:
        """Return whether another request may be sent, and count it if so."""
        with self._lock:
            is_allowed = not self.reached_limit
            self.spent = self.spent.plus(Usage(int(is_allowed)))
            return is_allowed

    def add(self, tokens: Usage | None) -> None:
        """Count the tokens of a reply; None if the server reports no usage.

        Raises InputError if the cost is limited and cannot be computed.
        """
        if tokens is None and self.max_cost:
            raise InputError(f"the server reports no usage, so max_cost={self.max_cost} cannot be enforced")
        with self._lock:
            self.spent = self.spent.plus(tokens or Usage())

    def numbers(self) -> dict[str, float]:
        """Return the counts by name, and `cost` if prices are known."""
        return self.spent._asdict() | ({"cost": round(self.cost, 6)} if any(self.prices) else {})

    def as_metrics(self) -> dict[str, float]:
        """Return the counts under the names of a display's metrics (`runtime.display.STEP_METRICS`)."""
        return {f"spent/{name}": value for name, value in self.numbers().items()}

    def text(self) -> str:
        """Return the counts and their limits as one line."""
        requests = f"{self.spent.requests:,}{f' of {self.max_requests:,}' if self.max_requests else ''} requests"
        tokens = f"{self.spent.prompt_tokens:,} + {self.spent.completion_tokens:,} tokens"
        cost = f", cost {self.cost:.4g}{f' of {self.max_cost:g}' if self.max_cost else ''}" if any(self.prices) else ""
        return f"{requests}, {tokens}{cost}"
