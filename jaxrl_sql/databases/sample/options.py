"""The arguments of the commands that sample a database. Importing them loads no more than a command line needs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jaxrl_sql.text2sql.env.address import is_address
from jaxrl_sql.types import InputError


def add_leave_out(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    """Add the option --leave-out. It takes `several` names, or one for a command that takes words after it."""
    parser.add_argument(
        "--leave-out", nargs="+" if several else 1, action="extend", default=[], metavar="TABLE[.COLUMN]",
        help="tables and columns of a server's database that the sample does not hold; may be repeated",
    )  # fmt: skip


def is_served(text: str) -> bool:
    """Return whether `--db` names a database of another engine, and not a SQLite file."""
    return is_address(text) or text.startswith("duckdb:")


def refuse_leave_out(leave_out: Sequence[str], db: str) -> None:
    """Raise InputError for --leave-out with a SQLite file, which is shown as it is."""
    if leave_out:
        raise InputError(
            f"--leave-out {leave_out[0]}: is for a --db of a server; {db} is shown as it is, but for data.hide=[…]"
        )
