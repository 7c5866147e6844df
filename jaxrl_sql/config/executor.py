"""The section `executor`: limits of the SQL executor and the databases of other dialects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveInt


@dataclass(frozen=True)
class DatabasesConfig:
    """Where each dialect of `data.dialects` runs: the folder of questions that `jaxrl-sql data copy` wrote.

    For a published set that a server has to run, BIRD's mini-dev or defog's, it is the server's URL. A server's
    password is not in it: PGPASSWORD and MYSQL_PWD hold it. What is `translated`, MySQL's alone, is run by SQLite.
    """

    mysql: str = ""
    postgresql: str = ""
    duckdb: str = ""


@dataclass(frozen=True)
class ExecutorConfig:
    """Limits of the SQL executor; training verdicts come from `vm_steps`, so that they do not depend on the clock.

    Other engines than SQLite count no steps: there a run has `engine_timeout_ms`, and what that stops twice is not
    learned from. `databases` says where other dialects run.

    `isolation`: `process` runs the SQL in worker processes, which can be killed and die alone; `thread` in this one.
    `sqlite_version`, such as 3.40.1, refuses functions and syntax that later versions of SQLite added, as a published
    scorer on that version does (empty: no restriction). It is refused with MySQL that is translated.
    """

    threads: int = 0
    isolation: Annotated[str, OneOf("process", "thread")] = "process"
    timeout_ms: PositiveInt = 30_000
    vm_steps: PositiveInt = 20_000_000
    max_rows: PositiveInt = 100_000
    max_bytes: PositiveInt = 64 << 20
    engine_timeout_ms: PositiveInt = 30_000
    sqlite_version: str = ""
    databases: DatabasesConfig = field(default_factory=DatabasesConfig)
