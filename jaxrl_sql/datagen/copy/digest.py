"""Digests of tables that do not hang on the order of rows: equal on both sides where all rows are."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.copy.kinds import Cell

_MODULUS = 1 << 64


class TableDigest(NamedTuple):
    """How many rows a table has, and the sum of their 64-bit hashes modulo 2^64."""

    rows: int = 0
    digest: int = 0

    def plus(self, rows: Iterable[Sequence[Cell]]) -> TableDigest:
        """Return the digest of these rows and more."""
        hashes = [hash_row(row) for row in rows]
        return TableDigest(self.rows + len(hashes), (self.digest + sum(hashes)) % _MODULUS)


def hash_row(row: Sequence[Cell]) -> int:
    """Return a hash of a row's values and types: BLAKE2b, cut to 64 bits, of an encoding that no other row has."""
    return int.from_bytes(hashlib.blake2b(b"".join(map(_encoded, row)), digest_size=8).digest(), "big")


def _encoded(value: Cell) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return b"T%d:%b" % (len(raw), raw)
    if isinstance(value, bytes):
        return b"B%d:%b" % (len(value), value)
    if isinstance(value, int):
        return b"I%d;" % value
    return b"R" + struct.pack(">d", value + 0.0)  # minus zero is zero
