"""Settings of `jaxrl-sql data audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxrl_sql.config.fields import password_error
from jaxrl_sql.types import InputError


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The sets to audit, the thresholds of near matches, and the limits of gold execution."""

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
