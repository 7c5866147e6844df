"""What rewards, filters and evaluation ask of an executor, without importing the native module.

The native executor has these methods; so may a caller's own. Rows stay inside it: scores come back as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.types import Cell, Fields, Golds, Record

Options = Record | Sequence[Record | None] | None
"""What a comparison is told beside its rule: one dict for all items, or one for each."""


class SqlOutcome(Protocol):
    """What one query did; `status` is `ok` or the name of what went wrong."""

    @property
    def status(self) -> str:
        """Return the name of the status."""
        ...

    @property
    def row_count(self) -> int:
        """Return how many rows came back."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Return the names of the columns."""
        ...

    @property
    def rows(self) -> Sequence[tuple[Cell, ...]]:
        """Return the rows as Python's values, none where the query failed."""
        ...

    @property
    def set_digest(self) -> int | None:
        """Return what results share that are equal as sets of rows, and no others; None where the query failed."""
        ...

    @property
    def stopped_by(self) -> str | None:
        """Return which bound stopped it, `wall`, `cpu`, `vm_steps`, `cancelled`, `killed` or `memory`, if one did."""
        ...

    @property
    def error(self) -> str | None:
        """Return the message of the database, if the query failed."""
        ...

    @property
    def elapsed_ms(self) -> float:
        """Return how long it took, in milliseconds of wall time."""
        ...

    @property
    def vm_steps(self) -> int:
        """Return how many instructions of SQLite's virtual machine it took."""
        ...


class SqlJob(Protocol):
    """Work that an executor has taken on."""

    def done(self) -> bool:
        """Return whether the result is there."""
        ...

    def result(self) -> Any:
        """Wait for the result and return it."""
        ...

    def cancel(self) -> Any:
        """Give the work up."""
        ...


class SqlExecutor(Protocol):
    """Runs SQL read-only within limits, and compares results."""

    def execute_many(self, requests: Sequence[tuple[str, str]], /) -> Sequence[SqlOutcome]:
        """Run (database, SQL) pairs and return their outcomes in order."""
        ...

    def score_many(
        self,
        db_paths: Sequence[str | list[str]],
        pred_sqls: Sequence[str],
        golds: Sequence[Golds],
        *,
        rules: Sequence[str],
        options: Options = ...,
    ) -> Fields:
        """Run predictions and golds and compare them by each rule; of several databases all have to agree."""
        ...

    def submit_score(
        self,
        db_paths: Sequence[str | list[str]],
        pred_sqls: Sequence[str],
        golds: Sequence[Golds],
        *,
        rules: Sequence[str],
        options: Options = ...,
    ) -> SqlJob:
        """Begin what `score_many` does and return at once."""
        ...


class ScoreRow(NamedTuple):
    """What came of one prediction: the two statuses by name and the value of each rule, 0 to 1.

    `stop` names the bound that stopped the prediction, if one did: `wall`, `cpu`, `vm_steps`, `cancelled`, `killed` or
    `memory`.
    """

    pred_status: str
    gold_status: str
    scores: Mapping[str, float]
    stop: str = ""

    @property
    def executes(self) -> bool:
        """Return whether the prediction ran within its limits."""
        return self.pred_status == "ok"

    def value(self, rule: str) -> float:
        """Return how much of the gold a rule finds in the prediction; 0 where one of them did not run."""
        return self.scores.get(rule, 0.0) if self.executes and self.gold_status == "ok" else 0.0

    def matches(self, rule: str) -> bool:
        """Return whether both ran and are equal by a rule."""
        return self.value(rule) == 1.0


# A completion without SQL is never run, nor is one that does not parse in its own dialect; nothing was learnt about its
# gold.
NO_SQL = ScoreRow("no_sql", "ok", {})
NOT_TRANSLATED = ScoreRow("syntax_error", "ok", {})
