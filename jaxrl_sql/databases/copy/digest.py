"""Digests of tables that do not depend on the order of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jaxrl_sql.types import Cell

_MODULUS = 1 << 64


class TableDigest(NamedTuple):
    """The number of a table's rows, and the sum of their 64-bit hashes modulo 2^64."""

    rows: int = 0
    digest: int = 0

    def plus(self, rows: Iterable[Sequence[Cell]]) -> TableDigest:
        """Return the digest of the rows so far and `rows`."""
        hashes = [hash_row(row) for row in rows]
        return TableDigest(self.rows + len(hashes), (self.digest + sum(hashes)) % _MODULUS)


def hash_row(row: Sequence[Cell]) -> int:
    r"""Return a hash of a row's values and types: BLAKE2b, truncated to 64 bits, of Python's `ascii` of the row.

    The hashed text is for example `(1, 0.5, 'a\xe9', b'\x00', None)`, with the shortest representation of floats. Minus
    zero counts as zero.
    """
    cells = tuple(row)
    text = ascii(cells)
    if "-0.0" in text:
        text = ascii(tuple(cell + 0.0 if isinstance(cell, float) else cell for cell in cells))
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=8).digest(), "big")
