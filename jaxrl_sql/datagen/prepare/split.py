"""Split off a validation set of whole databases, whose numbers of questions add up to a requested number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxrl_sql.config.prepare import ValidationSplit
from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.types import Example, InputError

# Largest accepted deviation from the requested number of questions, as a share of it.
_TOLERANCE = 0.05


def split_off(examples: Sequence[Example], cfg: ValidationSplit, seed: int) -> tuple[list[Example], list[Example]]:
    """Return (training, validation) questions in order, without a common database.

    The databases are chosen at random, by their names and the seed. Raises InputError if no choice has the requested
    number of questions, within 5 %.
    """
    if not cfg.questions:
        return list(examples), []
    counts = Counter(example.db_id for example in examples)
    names = sorted(counts, key=lambda name: rank(name, f"validation {seed}"))
    num_databases = cfg.databases
    requested = f"{num_databases} databases" if num_databases else "databases"
    if cfg.questions >= len(examples) or num_databases >= len(names):
        raise InputError(
            f"validation: cannot split {cfg.questions} questions of {requested} off {len(examples)} of {len(names)}: "
            "the training split would be empty"
        )
    held_out = pick([counts[name] for name in names], cfg.questions, num_databases)
    total = sum(counts[names[i]] for i in held_out)
    if abs(total - cfg.questions) > _TOLERANCE * cfg.questions:
        hint = f"the nearest sum is {total}" if held_out else "no sum is near"
        raise InputError(f"validation: no {requested} add up to {cfg.questions} questions ({hint}): change the numbers")
    chosen = {names[i] for i in held_out}
    training = [example for example in examples if example.db_id not in chosen]
    return training, [example for example in examples if example.db_id in chosen]


def pick(counts: Sequence[int], total: int, num_picked: int = 0) -> list[int]:
    """Return indices of `num_picked` counts (0: any number) whose sum is nearest to `total`; [] if no sum is near.

    Subset sum by dynamic programming on bit sets: bit s of `reach[i][k]` is set if k of the first i counts can have the
    sum s. For any number of counts, only k = 0 is used, for all numbers together. Sums above 1.25 `total` are ignored.
    """
    limit = total + max(1, total // 4)
    mask = (1 << (limit + 1)) - 1
    reach = [[1] + [0] * num_picked]
    for count in counts:
        last = reach[-1]
        if num_picked:
            reach.append([1, *(last[k] | (last[k - 1] << count) & mask for k in range(1, num_picked + 1))])
        else:
            reach.append([last[0] | (last[0] << count) & mask])
    sums = reach[-1][num_picked]
    near = [s for s in sorted(range(1, limit + 1), key=lambda s: abs(s - total)) if sums >> s & 1]
    if not near:
        return []
    remaining, k, chosen = near[0], num_picked, []
    for i in range(len(counts), 0, -1):
        if reach[i - 1][k] >> remaining & 1:
            continue  # reachable without this count
        chosen.append(i - 1)
        remaining -= counts[i - 1]
        k -= 1 if num_picked else 0
    return chosen[::-1]
