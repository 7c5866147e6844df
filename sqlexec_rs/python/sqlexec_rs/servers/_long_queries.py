"""Count the queries of a reader that continue after their deadline."""

from __future__ import annotations

from sqlexec_rs._native import Executor


def count(executor: Executor, url: str, sql: str) -> str:
    """Return a line with the total count over the roles of a URL, because a role sees only its own sessions."""
    outcomes = [executor.execute(role, sql) for role in roles_of(url)]
    counts = [outcome.rows[0][0] for outcome in outcomes if outcome.status == "ok"]
    if not counts:
        return "queries that continue after their deadline: the role cannot count them"
    advice = ": they occupy the server's processors until they end or the server restarts" if sum(counts) else ""
    return f"queries that continue after their deadline, or for more than a minute: {sum(counts)}{advice}"


def roles_of(url: str) -> list[str]:
    """Return the URL of each role of `?roles=N`, or the URL itself."""
    head, _, query = url.partition("?")
    options = dict(option.partition("=")[::2] for option in query.split("&") if option)
    n_roles = int(options.pop("roles", "0"))
    if n_roles == 0:
        return [url]
    scheme, rest = head.split("://", 1)
    credentials, _, address = rest.rpartition("@")
    user, colon, password = credentials.partition(":")
    tail = "".join(f"{mark}{name}={value}" for mark, (name, value) in zip("?&&", options.items(), strict=False))
    return [f"{scheme}://{user}_{i}{colon}{password}@{address}{tail}" for i in range(1, n_roles + 1)]
