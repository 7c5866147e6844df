"""What asking a chat endpoint has cost, and how much it may: requests, tokens, and money where prices are known."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from jaxrl_sql.types import Fields, InputError, JaxrlSqlError


class BudgetSpentError(JaxrlSqlError):
    """The requests or the money that were allowed are used up."""


class Spent(NamedTuple):
    """Requests that were sent, failed ones too, and the tokens that servers counted for those they answered."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: Spent) -> Spent:
        """Return both together."""
        return Spent(*map(sum, zip(self, other, strict=True)))

    @classmethod
    def of(cls, record: Fields) -> Self:
        """Read what a record of a journal says was spent; what it does not name is 0."""
        return cls(**{name: int(record.get(name, 0)) for name in cls._fields})

    @classmethod
    def total(cls, records: Iterable[Fields]) -> Spent:
        """Return what all records together say."""
        whole = Spent()
        for record in records:
            whole = whole.plus(cls.of(record))
        return whole


class Prices(NamedTuple):
    """What a million tokens cost, in whatever currency; 0 is unknown."""

    prompt: float = 0.0
    completion: float = 0.0

    def cost(self, spent: Spent) -> float:
        """Return what tokens cost. Servers that charge less for some of them (cached ones) charge less than this."""
        return (spent.prompt_tokens * self.prompt + spent.completion_tokens * self.completion) / 1e6


@dataclass
class Budget:
    """Bounds on what is `spent`, which begins with what earlier runs did; 0 is no bound. Safe to use from threads.

    A reply's cost is known when it is there: no request is sent once `max_cost` is reached, and those under way then
    are finished and may exceed it.
    """

    max_requests: int = 0
    max_cost: float = 0.0
    prices: Prices = field(default_factory=Prices)
    spent: Spent = field(default_factory=Spent)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def cost(self) -> float:
        """Return what was spent, in the currency of the prices."""
        return self.prices.cost(self.spent)

    @property
    def limit(self) -> str:
        """Return the bound that was reached, by its name and value; "" while none is."""
        if 0 < self.max_requests <= self.spent.requests:
            return f"max_requests={self.max_requests}"
        return f"max_cost={self.max_cost}" if 0 < self.max_cost <= self.cost else ""

    def take(self) -> bool:
        """Count a request that is about to be sent; return whether it may."""
        with self._lock:
            may = not self.limit
            self.spent = self.spent.plus(Spent(int(may)))
            return may

    def add(self, tokens: Spent | None) -> None:
        """Count the tokens of a reply, None where the server tells none.

        Raises InputError where money is bounded and cannot be counted.
        """
        if tokens is None and self.max_cost:
            raise InputError(f"the server tells no usage, so that max_cost={self.max_cost} cannot be kept to")
        with self._lock:
            self.spent = self.spent.plus(tokens or Spent())

    def numbers(self) -> dict[str, float]:
        """Return what was spent by name: whole numbers, and `cost` where prices are known."""
        return self.spent._asdict() | ({"cost": round(self.cost, 6)} if any(self.prices) else {})

    def shown(self) -> dict[str, float]:
        """Return the same as a display shows it (`runtime.display.SHOWN`)."""
        return {f"spent/{name}": value for name, value in self.numbers().items()}

    def words(self) -> str:
        """Return in one line what was spent, and of how much."""
        requests = f"{self.spent.requests:,}{f' of {self.max_requests:,}' if self.max_requests else ''} requests"
        tokens = f"{self.spent.prompt_tokens:,} + {self.spent.completion_tokens:,} tokens"
        money = f", cost {self.cost:.4g}{f' of {self.max_cost:g}' if self.max_cost else ''}" if any(self.prices) else ""
        return f"{requests}, {tokens}{money}"
