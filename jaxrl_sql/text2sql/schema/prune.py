"""Leave out columns of a schema until its prompt fits: for training alone, where what the gold reads is known.

Keys and what the gold reads always stay; the other columns come back in a random order of (seed, uid) for as long as
there is room (PaVeRL-SQL, OmniSQL). Where the keys alone are too many, those of whole tables come back in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.text2sql.schema.read import Schema, part_of
from jaxrl_sql.text2sql.schema.used import Name, Used, used_by


def used_by_all(queries: Sequence[str], schema: Schema) -> Used | None:
    """Return what several queries read together; None where there is none, or one of which it is not known."""
    found = [used_by(sql, schema) for sql in queries]
    known = [used for used in found if used is not None]
    if not found or len(known) < len(found):
        return None
    tables, columns = zip(*known, strict=True)
    return Used(frozenset().union(*tables), frozenset().union(*columns))


def keys_of(schema: Schema) -> frozenset[Name]:
    """Return the columns of primary and foreign keys, and those that foreign keys refer to."""
    found: set[Name] = set()
    for table in schema.tables:
        found |= {(table.name, name) for name in table.primary_key}
        for key in table.foreign_keys:
            found |= {(table.name, name) for name in key.columns} | {(key.table, name) for name in key.targets}
    return frozenset(found)


def prune(schema: Schema, used: Used, seed: int, uid: str, fits: Callable[[Schema], bool]) -> Schema | None:
    """Return as much of the schema as fits, beside what is used and its keys; None where not even that does.

    `fits` is asked a number of times that grows with the logarithm of the number of columns.
    """
    kept, others = _in_order(schema, used, seed, uid)

    def part(count: int) -> Schema:
        return part_of(schema, kept.union(*others[:count]))

    if not fits(part(0)):
        return None
    return part(largest(len(others), lambda count: fits(part(count))))


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to `most` that fits, where 0 and all below one that fits do.

    Numbers are tried from below, ever further apart, and then between the last two: what is far too many is not asked.
    """
    low, step = 0, 1
    while low < most and fits(ahead := min(low + step, most)):
        low, step = ahead, 2 * step
    high = ahead - 1 if low < most else most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _in_order(schema: Schema, used: Used, seed: int, uid: str) -> tuple[frozenset[Name], list[list[Name]]]:
    """Return what always stays, and what comes back: the keys of a table at a time, then single columns."""

    def place(*names: str) -> int:
        return rank("\0".join((str(seed), uid, *names)), "prune")

    keys = keys_of(schema)
    kept: set[Name] = set(used.columns)
    whole: list[tuple[int, list[Name]]] = []
    single: list[tuple[int, list[Name]]] = []
    for table in schema.tables:
        names = [(table.name, column.name) for column in table.columns]
        own = [name for name in names if name in keys]
        if table.name in used.tables:
            kept |= set(own)
            if not own and kept.isdisjoint(names):
                kept.add(names[0])  # counted and nothing else: a table is shown by a column at least
        elif own:
            whole.append((place(table.name), own))
        single += [(place(*name), [name]) for name in names if name not in kept and name not in keys]
    return frozenset(kept), [names for _, names in (*sorted(whole), *sorted(single))]
