"""Choose the rows of a sample so that whatever a kept row refers to is kept as well.

Nothing here reads a database: tables are names, rows are anything that can be hashed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

Row = Hashable
"""What identifies a row within its table."""

Node = tuple[str, Row]
"""A row and its table."""

ParentsOf = Callable[[Sequence[Node]], Mapping[Node, Collection[Node]]]
"""Return the rows that each of some rows refers to; a reference that leads nowhere is not among them."""


class Reference(NamedTuple):
    """Columns of a table that refer, position by position, to the columns `targets` of the table `parent`."""

    child: str
    columns: tuple[str, ...]
    parent: str
    targets: tuple[str, ...]


class Choice(NamedTuple):
    """The rows that are kept, by table in the order in which they were chosen, and tables of which none could be."""

    kept: Mapping[str, list[Row]]
    empty: tuple[str, ...]


def group_tables(tables: Sequence[str], references: Iterable[Reference]) -> list[tuple[str, ...]]:
    """Return the tables in groups, each before the groups that it refers to.

    Tables that refer to one another in a circle form one group (Tarjan's strongly connected components).
    """
    parents: dict[str, list[str]] = {table: [] for table in tables}
    for reference in references:
        parents[reference.child].append(reference.parent)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    groups: list[tuple[str, ...]] = []
    for start in tables:
        calls = [(start, iter(parents[start]))] if start not in number else []
        while calls:
            table, left = calls[-1]
            if table not in number:
                number[table] = lowest[table] = len(number)
                path.append(table)
                on_path.add(table)
            parent = next(left, None)
            if parent is None:
                calls.pop()
                if calls:
                    child = calls[-1][0]
                    lowest[child] = min(lowest[child], lowest[table])
                if lowest[table] == number[table]:
                    group = path[path.index(table) :]
                    del path[-len(group) :]
                    on_path.difference_update(group)
                    groups.append(tuple(group))
            elif parent not in number:
                calls.append((parent, iter(parents[parent])))
            elif parent in on_path:
                lowest[table] = min(lowest[table], number[parent])
    return groups[::-1]  # Tarjan's algorithm ends a group after those that it refers to


def explore(
    start: Iterable[Node],
    parents_of: ParentsOf,
    levels: int | None = None,
    known: Mapping[Node, tuple[Node, ...]] | None = None,
) -> dict[Node, tuple[Node, ...]]:
    """Return the parents of some rows, of those parents, and so on, `levels` deep (None: to the end).

    A row that lies deeper is in the result as a parent, and has no entry of its own. What is known already is not
    asked for, and is in the result.
    """
    graph = dict(known or {})
    frontier = list(dict.fromkeys(start))
    seen = set(frontier)
    while frontier and levels != 0:
        unknown = [node for node in frontier if node not in graph]
        found = parents_of(unknown) if unknown else {}
        graph |= {node: tuple(found.get(node, ())) for node in unknown}
        parents = dict.fromkeys(parent for node in frontier for parent in graph[node])
        frontier = [node for node in parents if node not in seen]
        seen.update(frontier)
        levels = None if levels is None else levels - 1
    return graph


def choose(
    limit: int,
    candidates: Mapping[str, Sequence[Row]],
    graph: Mapping[Node, Collection[Node]],
    needed: Iterable[Node] = (),
) -> Choice:
    """Keep the needed rows, and of the candidates as many as fit, with all that they refer to.

    A candidate fits where no table would hold more than `limit` rows by it; tables take turns, and candidates come
    in their order. Rows without an entry in `graph` have parents that are unknown: a candidate that leads to one
    does not fit, and no needed row may.
    """
    kept: dict[Node, None] = {}
    for node in needed:
        more = _ancestors(node, graph, kept, None)
        assert more is not None, "a needed row with unknown parents"
        kept |= dict.fromkeys(more)
    counts = Counter(table for table, _ in kept)
    for rank in range(max(map(len, candidates.values()), default=0)):
        for table, rows in candidates.items():
            if rank >= len(rows) or counts[table] >= limit or (table, rows[rank]) in kept:
                continue
            more = _ancestors((table, rows[rank]), graph, kept, limit)
            added = Counter(table for table, _ in more or ())
            if more is not None and all(counts[name] + count <= limit for name, count in added.items()):
                kept |= dict.fromkeys(more)
                counts += added
    chosen: dict[str, list[Row]] = {table: [] for table in candidates}
    for table, row in kept:
        chosen.setdefault(table, []).append(row)
    return Choice(chosen, tuple(table for table, rows in candidates.items() if rows and not chosen[table]))


def _ancestors(
    node: Node, graph: Mapping[Node, Collection[Node]], kept: Collection[Node], limit: int | None
) -> list[Node] | None:
    """Return a row and the rows that it leads to, but those kept; None where a table would have more than `limit`."""
    if node in kept:
        return []
    found = {node: None}
    counts: Counter[str] = Counter()
    left = [node]
    while left:
        node = left.pop()
        counts[node[0]] += 1
        if node not in graph or (limit is not None and counts[node[0]] > limit):
            return None
        for parent in graph[node]:
            if parent not in found and parent not in kept:
                found[parent] = None
                left.append(parent)
    return list(found)
