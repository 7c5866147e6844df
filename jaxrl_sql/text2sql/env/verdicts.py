"""Distinguish outcomes that are verdicts on the SQL from failures for other reasons.

A failure for another reason is retried once. If it fails again, the value is missing: it is never scored as wrong. Such
failures are a `db_error` (of the database or its server) and `cancelled` (by the caller). So are executions whose
worker process was killed from outside (`stop` is `killed`) or had no memory for the result (`memory`). `crashed`
without these is a verdict: the SQL crashed its process or session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jaxrl_sql.text2sql.env.address import PASSWORD_VARIABLES, is_address, parse_address
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.types import InputError

NO_VERDICTS = frozenset({"db_error", "cancelled"})
"""Statuses that do not depend on the SQL."""

LOST_GOLDS = frozenset({"crashed", *NO_VERDICTS})
"""Statuses of a gold that is retried; if it is `crashed`, its worker may have been killed from outside."""

_EXTERNAL_STOPS = frozenset({"cancelled", "killed", "memory", *NO_VERDICTS})
_TIME_LIMITS = frozenset({"wall", "cpu"})
# The executor's messages for a role that has more rights than a reader, on a server that answers.
_REFUSED_ROLE = re.compile("can do more than read|can read the queries of its other sessions")


class UnreachableServerError(InputError):
    """A database server that cannot be used: the `cause`, and a remedy after which the command can be repeated."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}. {remedy} and repeat the command")
        self.cause, self.remedy = cause, remedy


def is_verdict(status: str, stop: str | None = "") -> bool:
    """Return whether an outcome depends on its SQL, even if it also depends on the machine, as at a time limit."""
    return status not in NO_VERDICTS and stop not in _EXTERNAL_STOPS


def is_trusted(status: str, stop: str | None = "") -> bool:
    """Return whether an outcome depends on its SQL alone, not on the machine's load."""
    return is_verdict(status, stop) and stop not in _TIME_LIMITS


def execute_all(executor: SqlExecutor, requests: Sequence[tuple[str, str]]) -> list[SqlOutcome]:
    """Run (database, SQL) pairs; retry those without a verdict, one at a time.

    Raises UnreachableServerError if a server is unreachable.
    """
    outcomes = list(executor.execute_many(requests))
    retried = [i for i, outcome in enumerate(outcomes) if not is_verdict(outcome.status, outcome.stopped_by)]
    raise_if_unreachable(executor, (requests[i][0] for i in retried if outcomes[i].status == "db_error"))
    for i in retried:
        (outcomes[i],) = executor.execute_many([requests[i]])
    raise_if_unreachable(executor, (requests[i][0] for i in retried if outcomes[i].status == "db_error"))
    return outcomes


def raise_if_unreachable(executor: SqlExecutor, databases: Iterable[str | Sequence[str]]) -> None:
    """Raise UnreachableServerError for the first server of `databases` that is unreachable or refuses its role.

    Their queries had a db_error. An item of `databases` is a file, a URL, or a list of them.
    """
    paths_or_urls = [name for entry in databases for name in ([entry] if isinstance(entry, str) else entry)]
    for url in dict.fromkeys(name for name in paths_or_urls if is_address(name)):
        (outcome,) = executor.execute_many([(url, "SELECT 1")])
        if outcome.status == "db_error":
            address = parse_address(url)
            error = address.redact(outcome.error or "")
            if _REFUSED_ROLE.search(error):
                raise InputError(f"the role is refused: {error}")
            if "password" in error:
                variable = PASSWORD_VARIABLES[address.engine]
                raise UnreachableServerError(f"the server refuses {address.user}: {error}", f"Check {variable}")
            raise UnreachableServerError(f"the server cannot be reached: {error}", "Start it")
