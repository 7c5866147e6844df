"""A validation split by database: whole databases whose questions add up to a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxrl_sql.config.prepare import ValidationSplit
from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.types import Example, InputError

# A sum that is further off than this share of what was asked for is told, and no split is made.
_TOLERANCE = 0.05


def split_off(examples: Sequence[Example], cfg: ValidationSplit, seed: int) -> tuple[list[Example], list[Example]]:
    """Return (training, validation) questions, which share no database; both in order.

    Which databases are taken depends on their names and the seed. Raises InputError where none add up.
    """
    if not cfg.questions:
        return list(examples), []
    counts = Counter(example.db_id for example in examples)
    names = sorted(counts, key=lambda name: rank(name, f"validation {seed}"))
    many = cfg.databases
    wanted = f"{many} databases" if many else "databases"
    if cfg.questions >= len(examples) or many >= len(names):
        raise InputError(
            f"validation: {cfg.questions} questions of {wanted} cannot be split off {len(examples)} of {len(names)}: "
            "some have to be left to train on"
        )
    held = pick([counts[name] for name in names], cfg.questions, many)
    total = sum(counts[names[i]] for i in held)
    if abs(total - cfg.questions) > _TOLERANCE * cfg.questions:
        near = f"the nearest are {total}" if held else "none are near"
        raise InputError(
            f"validation: no {wanted} have {cfg.questions} questions together ({near}): change its numbers"
        )
    chosen = {names[i] for i in held}
    return [one for one in examples if one.db_id not in chosen], [one for one in examples if one.db_id in chosen]


def pick(counts: Sequence[int], total: int, many: int = 0) -> list[int]:
    """Return which counts, so many (0: any number) of them, have the sum nearest to `total`; [] where none is near.

    Sums are found by bit sets: bit s of `reach[i][k]` says that k of the first i counts can have the sum s.
    """
    limit = total + max(1, total // 4)
    mask = (1 << (limit + 1)) - 1
    reach = [[1] + [0] * many]
    for count in counts:
        last = reach[-1]
        if many:
            reach.append([1, *(last[k] | (last[k - 1] << count) & mask for k in range(1, many + 1))])
        else:
            reach.append([last[0] | (last[0] << count) & mask])
    sums = reach[-1][many]
    near = [s for s in sorted(range(1, limit + 1), key=lambda s: abs(s - total)) if sums >> s & 1]
    if not near:
        return []
    left, k, chosen = near[0], many, []
    for i in range(len(counts), 0, -1):
        if reach[i - 1][k] >> left & 1:
            continue  # reached without this one
        chosen.append(i - 1)
        left -= counts[i - 1]
        k -= 1 if many else 0
    return chosen[::-1]
