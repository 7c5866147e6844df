"""Which outcomes are verdicts on their SQL; the others are missing values: run again once, and never scored.

A `db_error` is a fault of the database or its server, `cancelled` a decision of the caller. A run whose worker process
somebody else killed (`stop` is `killed`), or whose result found no memory (`memory`), says nothing either.
A `crashed` without it is a verdict: the text crashed the process or the session that ran it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxrl_sql.sqlenv.address import is_address, parse_address
from jaxrl_sql.sqlenv.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.types import InputError

NO_VERDICTS = frozenset({"db_error", "cancelled"})
"""Statuses that say nothing of the SQL."""

LOST_GOLDS = frozenset({"crashed", *NO_VERDICTS})
"""Statuses of a gold that runs again: a gold's worker may have been killed by others, too."""

_FOREIGN = frozenset({"cancelled", "killed", "memory", *NO_VERDICTS})
_CLOCKS = frozenset({"wall", "cpu"})


def is_verdict(status: str, stop: str | None = "") -> bool:
    """Return whether an outcome says something of its SQL; a clock's does, of the machine too (see `is_trusted`)."""
    return status not in NO_VERDICTS and stop not in _FOREIGN


def is_trusted(status: str, stop: str | None = "") -> bool:
    """Return whether an outcome says something of its SQL alone, the machine's load left out."""
    return is_verdict(status, stop) and stop not in _CLOCKS


def execute_all(executor: SqlExecutor, requests: Sequence[tuple[str, str]]) -> list[SqlOutcome]:
    """Run (database, SQL) pairs; run those again, each by itself, that had no verdict.

    Raises InputError where a server stays away.
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
            raise InputError(f"the server stays away: {error}. Start it again and continue the run")
