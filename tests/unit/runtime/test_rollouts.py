"""Stored rollouts: complete, without duplicates and within their limit, also after a killed run."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.runtime.rollouts import (
    FOLDER,
    RolloutWriter,
    list_shards,
    pack_ids,
    pack_logprobs,
    read_shard,
    unpack_ids,
    unpack_logprobs,
)
from jaxrl_sql.types import InputError


def group(number: int, answers: int = 2) -> dict[str, Any]:
    return {"step": number, "uid": f"q{number}", "answers": [{"sql": f"SELECT {number}, {i}"} for i in range(answers)]}


def stored_steps(folder: Path, kind: str = "train") -> list[int]:
    return [record["step"] for shard in list_shards(folder / FOLDER, kind) for record in read_shard(shard.path).records]


def raw(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}


def test_pieces_are_gzip_files_of_lines(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [group(1), {"step": 1, "sql": "\u2028\ud800"}])
    writer.write("train", [group(2)])
    (path,) = (tmp_path / FOLDER).iterdir()
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=False)
    assert json.loads(lines[0]) == group(1)
    assert stored_steps(tmp_path) == [1, 1, 2]
    assert read_shard(path).records[1]["sql"] == "\u2028?"


def test_oldest_answers_are_evicted_first_within_the_limit(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 40)
    for number in range(100):
        writer.write("train", [group(number)])
        writer.write("eval", [group(number, 1)])
        assert len(stored_steps(tmp_path)) * 2 <= 40
    assert stored_steps(tmp_path) == list(range(84, 100))
    assert stored_steps(tmp_path, "eval") == list(range(60, 100))


def test_groups_are_never_split(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 3)
    writer.write("train", [group(1, 8), group(2, 8)])
    assert stored_steps(tmp_path) == [2]


def test_packed_numbers_round_trip() -> None:
    assert unpack_ids(pack_ids([0, 151_935, 1 << 31])).tolist() == [0, 151_935, 1 << 31]
    result = unpack_logprobs(pack_logprobs([0.0, -0.0004, -1.2345, -99.0, float("nan"), float("-inf")]))
    assert result[:4] == [0.0, 0.0, -1.234, -32.766]
    assert all(math.isnan(item) for item in result[4:])
    assert unpack_logprobs(pack_logprobs([])) == []
    with pytest.raises(ValueError, match=r"padding|buffer size"):
        unpack_ids("AAA")


def test_limit_of_zero_writes_nothing(tmp_path: Path) -> None:
    for writer in (RolloutWriter(tmp_path, 0), RolloutWriter(None, 9)):
        writer.write("train", [group(1)])
        writer.write_tokens(["a"])
        writer.rewind({"train": (0, 0, 0)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("saved_at", [0, 1, 7, 16, 19])
def test_resumed_run_has_each_answer_once(tmp_path: Path, saved_at: int) -> None:
    """The bytes equal those of an uninterrupted run, also if shards were evicted meanwhile."""
    whole = RolloutWriter(tmp_path / "whole", 24)
    for number in range(20):
        whole.write("train", [group(number), group(number + 100, 1)])
    first = RolloutWriter(tmp_path / "run", 24)
    position = first.position
    for number in range(20):
        if number == saved_at:
            position = json.loads(json.dumps(first.position))
        first.write("train", [group(number), group(number + 100, 1)])
    newest = list_shards(tmp_path / "run" / FOLDER, "train")[-1].path
    newest.write_bytes(newest.read_bytes()[:-3])  # the last write was incomplete
    again = RolloutWriter(tmp_path / "run", 24)
    again.rewind(position)
    for number in range(saved_at, 20):
        again.write("train", [group(number), group(number + 100, 1)])
    assert raw(tmp_path / "run") == raw(tmp_path / "whole")


def test_position_in_an_evicted_piece_is_valid(tmp_path: Path) -> None:
    """The run continued far beyond its last checkpoint, was killed, continued briefly, and was killed again."""
    writer = RolloutWriter(tmp_path, 8)
    writer.write("train", [group(1, 1)])
    first = writer.position
    writer.write("train", [group(number) for number in range(2, 20)])
    again = RolloutWriter(tmp_path, 8)
    again.rewind(first)
    assert stored_steps(tmp_path) == []
    again.write("train", [group(2)])
    second = again.position
    again.write("train", [group(3)])
    last = RolloutWriter(tmp_path, 8)
    last.rewind(second)
    assert stored_steps(tmp_path) == [2]


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_piece_damaged_before_the_checkpoint_is_rejected(damage: str, tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [group(1), group(2)])
    position = writer.position
    writer.write("train", [group(3)])
    (shard,) = list_shards(tmp_path / FOLDER, "train")
    whole, size = shard.path.read_bytes(), position["train"][1]
    damaged = bytearray(whole)
    damaged[size // 2] ^= 4
    shard.path.write_bytes(bytes(damaged) if damage == "flipped" else whole[: size - 1])
    before = raw(tmp_path)
    with pytest.raises(InputError, match=rf"{shard.path}: its first {size} bytes are not those that the run wrote"):
        RolloutWriter(tmp_path, 100).rewind(position)
    assert raw(tmp_path) == before
    shard.path.write_bytes(whole)
    RolloutWriter(tmp_path, 100).rewind(position)
    assert stored_steps(tmp_path) == [1, 2]


def test_rewinding_to_the_start_drops_all(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 24)
    writer.write("train", [group(1)])
    writer.write("eval", [group(1)])
    writer.rewind({})
    assert stored_steps(tmp_path) == stored_steps(tmp_path, "eval") == []
    assert writer.position == {"train": (0, 0, 0), "eval": (0, 0, 0)}


def test_truncated_piece_returns_its_complete_records(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [group(1)])
    writer.write("train", [group(2)])
    (shard,) = list_shards(tmp_path / FOLDER, "train")
    whole = shard.path.read_bytes()
    for rest in (whole[:-1], whole[: len(whole) // 2 + 3], whole + b"PK"):
        shard.path.write_bytes(rest)
        read = read_shard(shard.path)
        assert read.is_incomplete
        assert [record["step"] for record in read.records] in ([1], [1, 2])
    shard.path.write_bytes(b"not gzip")
    assert read_shard(shard.path) == ([], True)
    shard.path.write_bytes(gzip.compress(b'[1]\n{"step": 3}\n'))
    assert read_shard(shard.path) == ([{"step": 3}], True)
