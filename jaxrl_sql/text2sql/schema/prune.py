"""Remove columns of a schema until its prompt fits; only for training, which knows the columns that the gold reads.

The columns that the gold SQL reads, and the keys of their tables, always stay. First the keys of other tables are
added, then other columns, each in a random order seeded by (seed, uid), until the prompt is full. PaVeRL-SQL and
OmniSQL prune their training prompts similarly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.text2sql.schema.read import Schema, part_of
from jaxrl_sql.text2sql.schema.used import Name, UsedColumns, find_used_columns


def find_columns_of_all(queries: Sequence[str], schema: Schema) -> UsedColumns | None:
    """Return the union of the columns that queries read; None without queries, or if any query cannot be analysed."""
    used_by_query = [find_used_columns(sql, schema) for sql in queries]
    parsed = [used for used in used_by_query if used is not None]
    if not used_by_query or len(parsed) < len(used_by_query):
        return None
    tables, columns = zip(*parsed, strict=True)
    return UsedColumns(frozenset().union(*tables), frozenset().union(*columns))


def keys_of(schema: Schema) -> frozenset[Name]:
    """Return the columns of primary and foreign keys, and the targets of foreign keys."""
    keys: set[Name] = set()
    for table in schema.tables:
        keys |= {(table.name, name) for name in table.primary_key}
        for key in table.foreign_keys:
            keys |= {(table.name, name) for name in key.columns} | {(key.table, name) for name in key.targets}
    return frozenset(keys)


def prune(schema: Schema, used: UsedColumns, seed: int, uid: str, fits: Callable[[Schema], bool]) -> Schema | None:
    """Return the used columns, their keys and as much of the schema as fits; None if the used columns do not fit.

    `used` are the columns that the gold reads, and `fits` returns whether a schema's prompt is short enough. The number
    of calls of `fits` is logarithmic in the number of columns.
    """
    always, others = _order_columns(schema, used, seed, uid)

    def part(count: int) -> Schema:
        return part_of(schema, always.union(*others[:count]))

    if not fits(part(0)):
        return None
    return part(find_largest(len(others), lambda count: fits(part(count))))


def find_largest(maximum: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to `maximum` that fits; `fits` must be monotone, and 0 must fit.

    Exponential search from below, then bisection, avoids calls with far too large numbers.
    """
    low, step = 0, 1
    while low < maximum and fits(candidate := min(low + step, maximum)):
        low, step = candidate, 2 * step
    high = candidate - 1 if low < maximum else maximum
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _order_columns(schema: Schema, used: UsedColumns, seed: int, uid: str) -> tuple[frozenset[Name], list[list[Name]]]:
    """Return the columns that always stay, and the others in random order: keys table by table, then single columns."""

    def sort_key(*names: str) -> int:
        """Return a hash, by which names are in a random order that depends on seed and question only."""
        return rank("\0".join((str(seed), uid, *names)), "prune")

    keys = keys_of(schema)
    always: set[Name] = set(used.columns)
    unused_table_keys: list[tuple[int, list[Name]]] = []
    other_columns: list[tuple[int, list[Name]]] = []
    for table in schema.tables:
        names = [(table.name, column.name) for column in table.columns]
        table_keys = [name for name in names if name in keys]
        if table.name in used.tables:
            always |= set(table_keys)
            if not table_keys and always.isdisjoint(names):
                always.add(names[0])  # only COUNT(*) reads it: a table needs at least one column
        elif table_keys:
            unused_table_keys.append((sort_key(table.name), table_keys))
        other_columns += [(sort_key(*name), [name]) for name in names if name not in always and name not in keys]
    return frozenset(always), [names for _, names in (*sorted(unused_table_keys), *sorted(other_columns))]
