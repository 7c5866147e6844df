"""Select a share of the questions by their ids: the same ones in every run, independent of the other questions.

Ids are sorted by a hash and the first ones are taken, so a smaller share is a subset of a larger one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from jaxrl_sql.types import Example


def rank(uid: str, purpose: str) -> int:
    """Return an id's sort key: 64 uniformly distributed bits, the same on every machine.

    Different purposes, such as "subsample", give independent orders of the same ids.
    """
    return int.from_bytes(hashlib.blake2b(f"{purpose}\0{uid}".encode(), digest_size=8).digest())


def hold_out(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Split examples into (training, held out), both in order; a share above 0 holds out at least one."""
    count = min(max(round(share * len(examples)), 1), len(examples)) if share > 0 else 0
    held_out = _first_by_rank(examples, count, "held out")
    train = [example for example in examples if example.uid not in held_out]
    return train, [example for example in examples if example.uid in held_out]


def one_in(examples: Sequence[Example], n: int) -> frozenset[str]:
    """Return the ids of a pseudorandom share 1/n of the examples, rounded up."""
    return _first_by_rank(examples, -(-len(examples) // n), "subsample")


def _first_by_rank(examples: Sequence[Example], count: int, purpose: str) -> frozenset[str]:
    """Return the ids of the first `count` examples in the order of `rank`."""
    return frozenset(sorted((example.uid for example in examples), key=lambda uid: rank(uid, purpose))[:count])
