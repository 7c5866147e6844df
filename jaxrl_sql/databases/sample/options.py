"""Check the options for a sampled database. This module imports little, so that commands start fast."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.text2sql.env.address import is_address
from jaxrl_sql.types import InputError


def is_external(text: str) -> bool:
    """Return whether `--db` names a database of another engine instead of a SQLite file."""
    return is_address(text) or text.startswith("duckdb:")


def refuse_leave_out(leave_out: Sequence[str], db: str) -> None:
    """Raise InputError for --leave-out with a SQLite file, which is used without a sample."""
    if leave_out:
        raise InputError(
            f"--leave-out {leave_out[0]}: requires a --db on a server; for the file {db}, set data.hide=[…]"
        )
