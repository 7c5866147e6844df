"""The section `executor`: limits of the SQL executor and the databases of other dialects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import Matches, OneOf, PositiveInt

_PASSWORDS = {"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD", "duckdb": "nothing"}


@dataclass(frozen=True)
class DatabasesConfig:
    """Where the SQL of each dialect of `data.dialects` runs.

    For a published set that a server has to run, BIRD's mini-dev or Defog's, a value is the server's URL without the
    password, which PGPASSWORD or MYSQL_PWD holds.
    """

    mysql: Annotated[
        str,
        "Folder of questions that `jaxrl-sql data copy` wrote, a server's URL, or `translated`, which SQLite runs; "
        "empty where no question asks for MySQL.",
    ] = ""
    postgresql: Annotated[
        str,
        "Folder of questions that `jaxrl-sql data copy` wrote, or a server's URL; empty where no question asks for "
        "PostgreSQL.",
    ] = ""
    duckdb: Annotated[
        str, "Folder of questions that `jaxrl-sql data copy` wrote; empty where no question asks for DuckDB."
    ] = ""

    def faults(self, name: str) -> Iterator[str]:
        """Yield which URLs hold a password."""
        for dialect, place in asdict(self).items():
            user, _, password = place.partition("://")[2].rpartition("@")[0].partition(":")
            if password:
                yield f"{name}.{dialect} holds the password of {user}: leave it out, and set {_PASSWORDS[dialect]}"


@dataclass(frozen=True)
class ExecutorConfig:
    """Limits of the SQL executor.

    Training verdicts of SQLite come from `vm_steps`, so that they do not depend on the clock. Other engines count no
    steps: there a query has `engine_timeout_ms`, and an answer that exceeds it twice is not learned from. `jaxrl-sql
    evaluate` and `ask` have larger limits by default, which `--print-config` shows.
    """

    threads: Annotated[int, "Number of queries that run at the same time; 0 uses one per CPU."] = 0
    isolation: Annotated[
        str,
        OneOf("process", "thread"),
        "Where SQL runs: in worker processes, which can be killed and crash alone, or in threads of this process.",
    ] = "process"
    timeout_ms: Annotated[
        PositiveInt, "Time limit of a SQLite query in milliseconds, far above the time that `executor.vm_steps` need."
    ] = 30_000
    vm_steps: Annotated[PositiveInt, "Most steps of SQLite's virtual machine per query."] = 300_000_000
    max_rows: Annotated[PositiveInt, "Most rows of a result."] = 100_000
    max_bytes: Annotated[PositiveInt, "Most bytes of a result."] = 64 << 20
    engine_timeout_ms: Annotated[
        PositiveInt, "Time limit in milliseconds of a query on an engine other than SQLite."
    ] = 30_000
    sqlite_version: Annotated[
        str,
        Matches(r"(?:3\.[4-9]\d(?:\.\d+)?)?", "3.40.0 or later, of three parts (YAML reads 3.40 as 3.4), or empty"),
        "SQLite version, such as 3.40.1, whose later functions and syntax are refused, as in a published scorer on "
        "that version; empty refuses none. It does not support MySQL that is translated.",
    ] = ""
    databases: DatabasesConfig = field(default_factory=DatabasesConfig)
