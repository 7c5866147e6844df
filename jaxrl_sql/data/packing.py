"""Answers packed into fewer rows: an update then runs the tokens that there are, and less of their padding."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrl_sql.batch import GroupBatch, bucket


def with_packed_rows(batch: GroupBatch) -> GroupBatch:
    """Return a host's batch whose completions are packed into rows of T tokens, R of them a prompt; as it is for R = G.

    Longest first, each into the first row that has room (first-fit decreasing, Johnson 1973). R is the most that a
    prompt of the batch needs, of few numbers, so that a run compiles a handful of shapes.
    """
    width, group = batch.completion.shape[2], batch.completion.shape[1]
    found = [_first_fit(lengths, width) for lengths in np.asarray(batch.completion_len)]
    rows = bucket(max(len(used) for _, used in found), smallest=2)
    if rows >= group:
        return batch
    length = np.zeros((len(found), rows), np.int32)
    for of_prompt, (_, used) in zip(length, found, strict=True):
        of_prompt[: len(used)] = used
    packed: dict[str, Any] = {"packed_start": np.stack([start for start, _ in found]), "packed_length": length}
    return dataclasses.replace(batch, **packed)


def _first_fit(lengths: np.ndarray, width: int) -> tuple[np.ndarray, list[int]]:
    """Return where each of some lengths [G] begins among rows of `width` places [G], and the tokens of each row."""
    start, used = np.zeros(len(lengths), np.int32), list[int]()
    for i in np.argsort(-lengths, kind="stable"):
        size = int(lengths[i])
        row = next((row for row, taken in enumerate(used) if taken + size <= width), len(used))
        if row == len(used):
            used.append(0)
        start[i] = row * width + used[row]
        used[row] += size
    return start, used
