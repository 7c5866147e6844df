"""The order of examples: complete epochs, a shuffle per epoch, and no state but the cursor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.training.batching.order import Order, SchemaOrder
from jaxrl_sql.types import InputError


@settings(deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(-5, 5), steps=st.lists(st.integers(0, 90), max_size=6))
def test_sequence_does_not_depend_on_batch_sizes(n: int, seed: int, steps: list[int]) -> None:
    order, cursor, taken = Order(n, seed), 0, []
    for k in steps:
        indices, cursor = Order(n, seed).take(cursor, k)  # a new object each time: no state but the cursor
        assert len(indices) == k
        taken += indices
    assert cursor == sum(steps)
    assert taken == order.take(0, sum(steps))[0]
    for epoch in range(sum(steps) // n):
        assert sorted(taken[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_epochs_and_seeds_differ() -> None:
    first, cursor = Order(100, 0).take(0, 100)
    second, _ = Order(100, 0).take(cursor, 100)
    other, _ = Order(100, 1).take(0, 100)
    assert first != second
    assert first != other
    assert first != list(range(100))


def test_order_is_derived_from_raw_bits() -> None:
    # An independent implementation detects a change of the order, which would break resumed runs.
    bits = np.random.Philox(np.random.SeedSequence((3, 1))).random_raw(8)
    assert Order(8, 3).take(8, 8)[0] == sorted(range(8), key=lambda i: bits[i])


def test_empty_list_to_order_is_an_input_error() -> None:
    with pytest.raises(InputError, match="at least one example"):
        Order(0, 1)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    prompts_per_schema=st.integers(1, 4),
    seed=st.integers(-5, 5),
    steps=st.lists(st.integers(0, 9), max_size=6),
)
def test_examples_of_a_database_are_adjacent(
    sizes: list[int], prompts_per_schema: int, seed: int, steps: list[int]
) -> None:
    """Each block has one database, an epoch has every example, and the cursor is the only state."""
    databases = [f"db{i}" for i, size in enumerate(sizes) for _ in range(size)]
    mixed = [databases[i] for i in np.random.default_rng(0).permutation(len(databases))]
    order, cursor, taken = SchemaOrder(mixed, prompts_per_schema, seed), 0, []
    for k in steps:
        indices, cursor = SchemaOrder(mixed, prompts_per_schema, seed).take(cursor, k * prompts_per_schema)
        taken += indices
    assert taken == order.take(0, cursor)[0]
    assert all(
        len({mixed[i] for i in taken[at : at + prompts_per_schema]}) == 1
        for at in range(0, len(taken), prompts_per_schema)
    )
    assert order.n == sum(-(-size // prompts_per_schema) * prompts_per_schema for size in sizes)
    epochs = [order.take(epoch * order.n, order.n)[0] for epoch in range(2)]
    assert all(set(item) == set(range(len(mixed))) for item in epochs)
    assert len(mixed) < 12 or epochs[0] != epochs[1]


def test_partial_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 2"):
        SchemaOrder(["a", "a"], 2, 0).take(0, 3)
