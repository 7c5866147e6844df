"""The memory traffic of the paged kernel's calls by formula, for `planning`."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_sql.models.attention.paged_kernel import GPU_MIN_ROWS, TPU_MIN_ROWS, padded_rows


class Grid(NamedTuple):
    """Sizes of one call, to compute its memory traffic other than keys and values (`planning`).

    sequences: number of sequences, each with a program
    heads: key heads
    rows: padded rows of queries per sequence and key head
    head_dim: size of a head
    continues: whether the call continues earlier partial attention, which it reads
    """

    sequences: int
    heads: int
    rows: int
    head_dim: int
    continues: bool

    def bytes_moved(self, bytes_per_number: int, num_sequences: float) -> float:
        """Return the bytes read and written for `num_sequences` non-empty sequences; empty sequences cost nothing.

        These are int32 positions, queries of `bytes_per_number`, and float32 partial attention before (if the call
        continues it) and after. Per row and head, partial attention has a maximum, a total and `head_dim` values.
        """
        part_bytes = (1 + self.continues) * 4 * self.heads * self.rows * (2 + self.head_dim)
        return num_sequences * (4 * self.rows + bytes_per_number * self.heads * self.rows * self.head_dim + part_bytes)

    @property
    def part_bytes(self) -> int:
        """Return the bytes of partial attention in memory before and after the call."""
        return (1 + self.continues) * 4 * self.sequences * self.heads * self.rows * (2 + self.head_dim)


def grids_of(prompts: int, group: int, slots: int, heads: int, per_key: int, head_dim: int) -> tuple[Grid, Grid]:
    """Return the grids of a layer's two calls: for prompts with up to `group` slots each, and for slots.

    heads: key heads; per_key: query heads per key head.
    """
    min_rows = max(GPU_MIN_ROWS, TPU_MIN_ROWS)
    prompt_rows, slot_rows = (padded_rows(rows, min_rows) for rows in (group * per_key, per_key))
    return (
        Grid(prompts, heads, prompt_rows, head_dim, continues=False),
        Grid(slots, heads, slot_rows, head_dim, continues=True),
    )


def fetch_bytes(tokens: float, heads: int, head_dim: int, bytes_per_number: int) -> float:
    """Return the bytes of keys and values (hence 2) of `tokens` tokens, counted in whole blocks; heads: key heads."""
    return 2 * tokens * heads * head_dim * bytes_per_number
