"""The section `executor`: limits of the SQL executor and the databases of other dialects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import Matches, OneOf, PositiveInt, password_error


@dataclass(frozen=True)
class DatabasesConfig:
    """The databases that run the SQL of each dialect of `data.dialects`.

    For a published set that requires a server, such as BIRD's mini-dev or Defog's, a value is the server's URL without
    the password, which is read from PGPASSWORD or MYSQL_PWD.
    """

    mysql: Annotated[
        str,
        "Folder of questions that `jaxrl-sql data copy` wrote, a server's URL, or `translated`, which translates to "
        "SQLite; empty if no question asks for MySQL.",
    ] = ""
    postgresql: Annotated[
        str,
        "Folder of questions that `jaxrl-sql data copy` wrote, or a server's URL; empty if no question asks for "
        "PostgreSQL.",
    ] = ""
    duckdb: Annotated[
        str, "Folder of questions that `jaxrl-sql data copy` wrote; empty if no question asks for DuckDB."
    ] = ""

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each URL that holds a password."""
        for dialect, url in asdict(self).items():
            yield from password_error(f"{name}.{dialect}", url)


@dataclass(frozen=True)
class ExecutorConfig:
    """Limits of the SQL executor.

    `vm_steps` limits training queries on SQLite, so that verdicts (right, wrong, failed) do not depend on the clock.
    Other engines count no steps: their queries have `engine_timeout_ms`, and an answer that exceeds it twice is
    excluded from training.
    `jaxrl-sql evaluate` and `ask` have larger limits by default, which `--print-config` shows.
    """

    threads: Annotated[int, "Number of concurrent queries; 0 uses one per CPU."] = 0
    isolation: Annotated[
        str,
        OneOf("process", "thread"),
        "Isolation of queries: worker processes, which can be killed and crash alone, or threads of this process.",
    ] = "process"
    timeout_ms: Annotated[
        PositiveInt, "Time limit of a SQLite query in milliseconds, far above the time for `executor.vm_steps`."
    ] = 30_000
    vm_steps: Annotated[PositiveInt, "Maximum number of steps of SQLite's virtual machine per query."] = 300_000_000
    max_rows: Annotated[PositiveInt, "Maximum number of rows of a result."] = 100_000
    max_bytes: Annotated[PositiveInt, "Maximum number of bytes of a result."] = 64 << 20
    engine_timeout_ms: Annotated[
        PositiveInt, "Time limit in milliseconds of a query on an engine other than SQLite."
    ] = 30_000
    sqlite_version: Annotated[
        str,
        Matches(
            r"(?:3\.[4-9]\d(?:\.\d+)?)?",
            "3.40.0 or later (with three parts, because YAML reads 3.40 as 3.4), or empty",
        ),
        "SQLite version, such as 3.40.1. Functions and syntax of later versions are rejected, as by a published scorer "
        "on that version; empty rejects none. It does not support translated MySQL.",
    ] = ""
    databases: DatabasesConfig = field(default_factory=DatabasesConfig)
