"""Tell verdicts on SQL from missing values, which are run again once and never scored.

A `db_error` is a fault of the database or its server, `cancelled` a decision of the caller. A run whose worker process
another process killed (`stop` is `killed`), or without memory for its result (`memory`), is no verdict either.
A `crashed` without it is a verdict: the text crashed the process or the session that ran it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxrl_sql.text2sql.env.address import is_address, parse_address
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.types import InputError

NO_VERDICTS = frozenset({"db_error", "cancelled"})
"""Statuses that do not depend on the SQL."""

LOST_GOLDS = frozenset({"crashed", *NO_VERDICTS})
"""Statuses of a gold that runs again: a gold's worker may have been killed by others, too."""

_FOREIGN = frozenset({"cancelled", "killed", "memory", *NO_VERDICTS})
_CLOCKS = frozenset({"wall", "cpu"})


def is_verdict(status: str, stop: str | None = "") -> bool:
    """Return whether an outcome depends on its SQL; one that the clock stopped also depends on the machine."""
    return status not in NO_VERDICTS and stop not in _FOREIGN


def is_trusted(status: str, stop: str | None = "") -> bool:
    """Return whether an outcome depends on its SQL alone, and not on the machine's load."""
    return is_verdict(status, stop) and stop not in _CLOCKS


def execute_all(executor: SqlExecutor, requests: Sequence[tuple[str, str]]) -> list[SqlOutcome]:
    """Run (database, SQL) pairs; run those again, each by itself, that had no verdict.

    Raises InputError if a server cannot be reached.
    """
    outcomes = list(executor.execute_many(requests))
    again = [i for i, outcome in enumerate(outcomes) if not is_verdict(outcome.status, outcome.stopped_by)]
    stop_if_away(executor, (requests[i][0] for i in again if outcomes[i].status == "db_error"))
    for i in again:
        (outcomes[i],) = executor.execute_many([requests[i]])
    stop_if_away(executor, (requests[i][0] for i in again if outcomes[i].status == "db_error"))
    return outcomes


def stop_if_away(executor: SqlExecutor, databases: Iterable[str | Sequence[str]]) -> None:
    """Raise InputError for the first of the databases whose server answers no query; `databases` had a db_error."""
    names = [name for entry in databases for name in ([entry] if isinstance(entry, str) else entry)]
    for url in dict.fromkeys(name for name in names if is_address(name)):
        (outcome,) = executor.execute_many([(url, "SELECT 1")])
        if outcome.status == "db_error":
            error = parse_address(url).redacted(outcome.error or "")
            raise InputError(f"the server cannot be reached: {error}. Start it again and continue the run")
