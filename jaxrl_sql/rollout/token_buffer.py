"""The tokens of completions' current turns on the host; the log of a chunk is added for all slots at once.

A chunk is a number of decode steps, and its log has the sampled token of each step and decode slot. A completion is
identified by its number in the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_sql.rollout.decode import End


class Tokens(NamedTuple):
    """Token ids with their log-probabilities.

    logprobs: under the full distribution; behavior_logprobs: under the truncated distribution that was sampled from.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()

    def join(self, later: Tokens) -> Tokens:
        """Return these tokens followed by later ones."""
        if not self.ids:
            return later
        return Tokens(
            self.ids + later.ids,
            self.logprobs + later.logprobs,
            self.behavior_logprobs + later.behavior_logprobs,
        )


NO_TOKENS = Tokens()


class ChunkContents(NamedTuple):
    """The completions in a chunk's log.

    numbers, slots: the number and the slot of each completion, in the order of (slot, step).
    ended: (number, End) of completions whose turn ended, in the order of (step, number).
    num_tokens: tokens of the log.
    num_steps: steps with tokens in any slot.
    is_finite: whether all log-probabilities are finite.
    """

    numbers: list[int]
    slots: list[int]
    ended: list[tuple[int, End]]
    num_tokens: int
    num_steps: int
    is_finite: bool


class TokenBuffer:
    """Arrays [X,T] with a row for each completion whose current turn has tokens; both sizes grow as needed."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._length = np.zeros(0, np.int64)
        self._arrays = [np.zeros((0, 0), dtype) for dtype in (np.int32, np.float32, np.float32)]

    def append(self, log: Any) -> ChunkContents:
        """Add the tokens of a chunk's log (`StepLog` in NumPy) to their completions; return the chunk's contents."""
        # Transpose the log to slot by slot. A completion is in one slot only, so its tokens are then contiguous.
        num_steps = len(log.completion)
        by_slot = np.ascontiguousarray(log.completion.T).reshape(-1)
        token_positions = np.flatnonzero(by_slot >= 0)
        token_numbers = by_slot[token_positions]
        # For each completion: index of its first token among all tokens, and number of its tokens.
        first = np.flatnonzero(np.diff(token_numbers, prepend=-1))
        count = np.diff(first, append=len(token_numbers))
        slot, last_step = token_positions[first] // num_steps, token_positions[first + count - 1] % num_steps
        numbers = token_numbers[first].tolist()
        columns = [np.ascontiguousarray(column.T).reshape(-1)[token_positions] for column in log_columns(log)]
        is_finite = self._write(numbers, first, count, columns)
        end = log.end[last_step, slot]
        order = np.lexsort((token_numbers[first], last_step))
        order = order[end[order] != End.NOT]
        return ChunkContents(
            numbers=numbers,
            slots=slot.tolist(),
            ended=[(numbers[i], End(int(end[i]))) for i in order.tolist()],
            num_tokens=len(token_positions),
            num_steps=int((log.completion >= 0).any(axis=1).sum()),
            is_finite=is_finite,
        )

    def get(self, number: int) -> Tokens:
        """Return the tokens of a completion's current turn."""
        row = self._rows.get(number)
        if row is None:
            return NO_TOKENS
        length = self._length[row]
        ids, logprobs, behavior_logprobs = (tuple(array[row, :length].tolist()) for array in self._arrays)
        return Tokens(ids, logprobs, behavior_logprobs)

    def pop(self, number: int) -> Tokens:
        """Remove and return the tokens of a completion's current turn."""
        tokens, row = self.get(number), self._rows.pop(number, None)
        if row is not None:
            self._length[row] = 0
            self._free.append(row)
        return tokens

    def _write(
        self, numbers: Sequence[int], first: np.ndarray, count: np.ndarray, columns: Sequence[np.ndarray]
    ) -> bool:
        """Add count[i] values of each column, from index first[i] on, to completion numbers[i].

        Returns whether all values are finite.
        """
        new = [number for number in numbers if number not in self._rows]
        self._grow(len(self._rows) + len(new), 0)
        for number in new:
            self._rows[number] = self._free.pop()
        row = np.array([self._rows[number] for number in numbers], np.int64)
        start = self._length[row]
        self._length[row] += count
        self._grow(0, int(self._length[row].max(initial=0)))
        row_size = self._arrays[0].shape[1]
        # Token k of the log is token k - first[i] of its completion i, so it is written to index
        # row * row_size + start + k - first[i] of the flattened array.
        target = np.repeat(row * row_size + start - first, count) + np.arange(len(columns[0]))
        for array, values in zip(self._arrays, columns, strict=True):
            array.reshape(-1)[target] = values
        return all(bool(np.isfinite(values).all()) for values in columns)

    def _grow(self, rows: int, tokens: int) -> None:
        """Make room for this number of rows and of tokens per row; a size that is too small at least doubles."""
        old_rows, old_tokens = self._arrays[0].shape
        new_rows, new_tokens = (
            max(needed, 2 * old) if needed > old else old for needed, old in ((rows, old_rows), (tokens, old_tokens))
        )
        if (new_rows, new_tokens) == (old_rows, old_tokens):
            return
        self._free += range(new_rows - 1, old_rows - 1, -1)
        self._length = np.concatenate([self._length, np.zeros(new_rows - old_rows, np.int64)])
        for i, array in enumerate(self._arrays):
            # Elements without tokens are never written, so the system provides no memory for pages of them.
            self._arrays[i] = np.zeros((new_rows, new_tokens), array.dtype)
            self._arrays[i][:old_rows, :old_tokens] = array


def log_columns(log: Any) -> tuple[np.ndarray, ...]:
    """Return a log's columns [steps,N] in the order of the fields of `Tokens`."""
    return log.token, log.logprob, log.behavior_logprob
