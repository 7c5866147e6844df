"""The interface of SQL executors for rewards, filters and evaluation.

`sqlexec_rs.Executor`, the native executor, implements it, and callers may implement their own. This module does not
import it. A gold is a question's reference query or result. A rule decides whether a prediction's rows equal the
gold's: `bird` compares them as sets, as BIRD's script does; `docs/reference/rules.md` lists all rules. The executor
runs and compares queries itself, so scores leave it, but not the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.types import Cell, Fields, Golds, Record

Options = Record | Sequence[Record | None] | None
"""Options of a comparison (see `score_predictions`): one dict for all items, or one per item."""


class SqlOutcome(Protocol):
    """The outcome of one query; `status` is `ok` or the name of the failure."""

    @property
    def status(self) -> str:
        """Return the name of the status."""
        ...

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Return the names of the columns."""
        ...

    @property
    def rows(self) -> Sequence[tuple[Cell, ...]]:
        """Return the rows as Python values; empty if the query failed."""
        ...

    @property
    def set_digest(self) -> int | None:
        """Return a hash of the set of rows: equal sets have equal hashes; None if the query failed."""
        ...

    @property
    def stopped_by(self) -> str | None:
        """Return the limit that stopped it, `wall`, `cpu`, `vm_steps`, `cancelled`, `killed` or `memory`, if any."""
        ...

    @property
    def error(self) -> str | None:
        """Return the database's error message if the query failed."""
        ...

    @property
    def elapsed_ms(self) -> float:
        """Return the wall time in milliseconds."""
        ...

    @property
    def vm_steps(self) -> int:
        """Return the number of instructions of SQLite's virtual machine."""
        ...


class SqlJob(Protocol):
    """Work submitted to an executor."""

    def done(self) -> bool:
        """Return whether the result is available."""
        ...

    def result(self) -> Any:
        """Wait for the result and return it."""
        ...

    def cancel(self) -> Any:
        """Cancel the work."""
        ...


class SqlExecutor(Protocol):
    """Run SQL read-only within limits, and compare results."""

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
        """Run predictions and golds and compare them by each rule.

        Item i compares `pred_sqls[i]` with `golds[i]`, of which any may match, on `db_paths[i]`. If that is a list,
        they must match on each of its databases. Returns arrays with a value per item, see `executor.score_rows`.
        """
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
        """Submit the work of `score_many` and return immediately."""
        ...


class ScoreRow(NamedTuple):
    """The score of one prediction: the statuses of prediction and gold, and the value of each rule by name, 0 to 1.

    A status is `ok`, or the name of the failure, such as `syntax_error` or `timeout`. `stop` is the limit that stopped
    the prediction, if any: `wall`, `cpu`, `vm_steps`, `cancelled`, `killed` or `memory`.
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
        """Return the value of a rule; 0 if the prediction or the gold failed."""
        return self.scores.get(rule, 0.0) if self.executes and self.gold_status == "ok" else 0.0

    def matches(self, rule: str) -> bool:
        """Return whether both ran and the rule has its full value, 1."""
        return self.value(rule) == 1.0


# Scores of completions that are not executed. Their golds do not run either, so nothing is wrong with those.
NO_SQL = ScoreRow("no_sql", "ok", {})
"""The score of a completion without SQL."""
NOT_TRANSLATED = ScoreRow("syntax_error", "ok", {})
"""The score of a completion whose SQL does not parse in its dialect, or has no translation to SQLite."""
