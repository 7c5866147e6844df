"""Which rows of a sample are kept: chains, circles, rows that refer to themselves, and limits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from jaxrl_sql.datagen.snapshot.closure import Node, ParentsOf, Reference, choose, explore, group_tables

TABLES = ("a", "b", "c", "d")


def refer(*pairs: str) -> list[Reference]:
    return [Reference(pair[0], ("x",), pair[1], ("id",)) for pair in pairs]


def looked_up(graph: Mapping[Node, Sequence[Node]], asked: list[int]) -> ParentsOf:
    def parents_of(nodes: Sequence[Node]) -> Mapping[Node, Sequence[Node]]:
        asked.append(len(nodes))
        return {node: graph[node] for node in nodes if graph.get(node)}

    return parents_of


def test_children_come_before_their_parents() -> None:
    assert group_tables(TABLES, refer("ab", "bc", "ad")) in (
        [("a",), ("d",), ("b",), ("c",)],
        [("a",), ("b",), ("c",), ("d",)],
        [("a",), ("b",), ("d",), ("c",)],
    )


def test_tables_in_a_circle_are_one_group() -> None:
    groups = group_tables(TABLES, refer("ab", "bc", "cb", "cd", "dd"))
    assert [set(group) for group in groups] == [{"a"}, {"b", "c"}, {"d"}]


def test_a_long_chain_of_tables_is_no_recursion() -> None:
    names = [str(number) for number in range(5_000)]
    references = [Reference(a, ("x",), b, ("id",)) for a, b in itertools.pairwise(names)]
    assert group_tables(names[::-1], references) == [(name,) for name in names]


@given(st.sets(st.tuples(st.sampled_from(TABLES), st.sampled_from(TABLES))))
def test_groups_are_what_reaches_one_another(pairs: set[tuple[str, str]]) -> None:
    groups = group_tables(TABLES, refer(*(a + b for a, b in sorted(pairs))))
    reached = {table: {table} for table in TABLES}
    for _ in TABLES:
        for a, b in pairs:
            for seen in reached.values():
                if a in seen:
                    seen |= {b}
    of = {table: place for place, group in enumerate(groups) for table in group}
    assert sorted(table for group in groups for table in group) == list(TABLES)
    for a in TABLES:
        for b in reached[a]:
            assert (of[a] == of[b]) == (a in reached[b])
            assert of[a] <= of[b]


def test_exploring_asks_once_a_level_and_for_no_row_twice() -> None:
    graph = {("a", 1): [("b", 1), ("b", 2)], ("b", 1): [("c", 1)], ("b", 2): [("c", 1)], ("c", 1): [("a", 1)]}
    asked: list[int] = []
    found = explore([("a", 1), ("a", 1)], looked_up(graph, asked))
    assert found == {node: tuple(parents) for node, parents in graph.items()}
    assert asked == [1, 2, 1]


def test_exploring_ends_at_its_level() -> None:
    chain = {("a", i): [("a", i + 1)] for i in range(9)}
    found = explore([("a", 0)], looked_up(chain, []), levels=3)
    assert list(found) == [("a", 0), ("a", 1), ("a", 2)]
    assert explore([("a", 0)], looked_up(chain, [])).keys() == {("a", i) for i in range(10)}


def test_exploring_goes_on_from_what_is_known() -> None:
    chain = {("a", i): [("a", i + 1)] for i in range(9)}
    asked: list[int] = []
    known = explore([("a", 0)], looked_up(chain, []), levels=3)
    assert explore([("a", 0)], looked_up(chain, asked), known=known).keys() == {("a", i) for i in range(10)}
    assert asked == [1] * 7


def test_needed_rows_come_first_and_candidates_fill_up() -> None:
    choice = choose(3, {"a": [5, 6, 7, 8]}, dict.fromkeys([("a", i) for i in range(9)], ()), [("a", 1), ("a", 6)])
    assert choice.kept == {"a": [1, 6, 5]}


def test_more_than_the_limit_is_kept_only_where_it_is_needed() -> None:
    graph = dict.fromkeys([("a", i) for i in range(9)], ())
    assert choose(2, {"a": [5, 6]}, graph, [("a", i) for i in range(4)]).kept == {"a": [0, 1, 2, 3]}


def test_a_candidate_whose_parents_do_not_fit_is_passed_over() -> None:
    chain = {("a", i): [("a", i + 1)] for i in range(5)} | {("a", 5): [], ("a", 9): []}
    assert choose(2, {"a": [0, 4, 9]}, chain).kept == {"a": [4, 5]}
    assert choose(3, {"a": [0, 4, 9]}, chain).kept == {"a": [4, 5, 9]}


def test_where_nothing_fits_the_table_is_named() -> None:
    ring = {("a", i): [("a", (i + 1) % 5)] for i in range(5)}
    assert choose(4, {"a": [3, 1]}, ring) == ({"a": []}, ("a",))
    choice = choose(4, {"a": [3, 1]}, ring, [("a", 3)])
    assert sorted(choice.kept["a"]) == [0, 1, 2, 3, 4]
    assert choice.empty == ()


def test_a_candidate_with_unknown_parents_does_not_fit() -> None:
    assert choose(9, {"a": [0, 2]}, {("a", 0): [("a", 1)], ("a", 2): []}).kept == {"a": [2]}


def test_a_row_that_refers_to_itself_is_one_row() -> None:
    assert choose(1, {"a": [0]}, {("a", 0): [("a", 0)]}).kept == {"a": [0]}


NODES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 6))


@given(
    st.dictionaries(NODES, st.lists(NODES, max_size=3)),
    st.lists(st.integers(0, 6), unique=True),
    st.lists(st.integers(0, 6), unique=True),
    st.sets(NODES, max_size=3),
    st.integers(1, 6),
)
def test_what_is_kept_is_closed_and_within_its_limit(
    edges: dict[Node, list[Node]], first: list[int], second: list[int], needed: set[Node], limit: int
) -> None:
    graph = {(table, row): edges.get((table, row), []) for table in "ab" for row in range(7)}
    choice = choose(limit, {"a": first, "b": second}, graph, sorted(needed))
    kept = {(table, row) for table, rows in choice.kept.items() for row in rows}
    assert all(set(graph[node]) <= kept for node in kept)
    assert needed <= kept
    must = set(needed)
    while more := {parent for node in must for parent in graph[node]} - must:
        must |= more
    least = Counter(table for table, _ in must)
    counts = Counter(table for table, _ in kept)
    assert all(counts[table] <= max(limit, least[table]) for table in "ab")
    for table, rows in (("a", first), ("b", second)):
        alone = [row for row in rows if not set(graph[table, row]) - {(table, row)}]
        assert counts[table] >= min(limit, len(alone))  # what needs nobody else always fits
