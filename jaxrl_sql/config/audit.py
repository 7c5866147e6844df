"""Settings of `jaxrl-sql data audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxrl_sql.config.fields import password_error
from jaxrl_sql.types import InputError


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The settings of an audit, which reports overlaps of training and evaluation sets and faults of gold queries.

    train, eval: folders of the sets.
    suite: folder with databases/<db_id>/*.sqlite, which have the sets' schemas and other rows.
    out: output folder.
    limit: number of questions per set, the first ones; 0: all.
    near_question, near_schema: minimum share of common words of two questions, or of common columns of two schemas, at
        which they are reported as near matches.
    timeout_ms: time limit of a gold query; slow_ms: time from which it is reported as slow (0: never).
    threads: number of concurrent queries; 0: one per CPU.
    no_golds: do not run the gold queries.
    database: database of the questions in your own files (setting `data.database`).
    """

    train: Sequence[Path] = ()
    eval: Sequence[Path] = ()
    suite: Path | None = None
    out: Path = Path("runs/audit")
    limit: int = 0
    near_question: float = 0.8
    near_schema: float = 0.8
    timeout_ms: int = 30_000
    slow_ms: float = 5_000
    threads: int = 0
    no_golds: bool = False
    database: str = ""

    def __post_init__(self) -> None:
        """Raise InputError for invalid settings."""
        for name in ("near_question", "near_schema"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"audit: {name} must lie in (0, 1], not {getattr(self, name)}")
        for name in ("limit", "timeout_ms", "slow_ms", "threads"):
            if not getattr(self, name) >= 0:
                raise InputError(f"audit: {name} must be 0 or more, not {getattr(self, name)}")
        for error in password_error("data.database", self.database):
            raise InputError(error)
        if not self.train and not self.eval:
            raise InputError("audit: name sets with --train and --eval")
        if self.suite and not (self.suite / "databases").is_dir():
            raise InputError(f"{self.suite} has no folder databases/")
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"{self.out} is not a folder")
