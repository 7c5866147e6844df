"""Answers are kept once each, whole, and as many as was asked for, whatever was killed on the way."""

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
    pack_ids,
    pack_logprobs,
    pieces_of,
    read_piece,
    unpack_ids,
    unpack_logprobs,
)
from jaxrl_sql.types import InputError


def group(number: int, answers: int = 2) -> dict[str, Any]:
    return {"step": number, "uid": f"q{number}", "answers": [{"sql": f"SELECT {number}, {i}"} for i in range(answers)]}


def kept(folder: Path, kind: str = "train") -> list[int]:
    return [record["step"] for piece in pieces_of(folder / FOLDER, kind) for record in read_piece(piece.path).records]


def raw(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}


def test_pieces_are_gzip_files_of_lines(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [group(1), {"step": 1, "sql": "\u2028\ud800"}])
    writer.write("train", [group(2)])
    (path,) = (tmp_path / FOLDER).iterdir()
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=False)
    assert json.loads(lines[0]) == group(1)
    assert kept(tmp_path) == [1, 1, 2]
    assert read_piece(path).records[1]["sql"] == "\u2028?"


def test_the_oldest_go_first_and_no_more_stay_than_asked_for(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 40)
    for number in range(100):
        writer.write("train", [group(number)])
        writer.write("eval", [group(number, 1)])
        assert len(kept(tmp_path)) * 2 <= 40
    assert kept(tmp_path) == list(range(84, 100))
    assert kept(tmp_path, "eval") == list(range(60, 100))


def test_a_group_is_never_cut(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 3)
    writer.write("train", [group(1, 8), group(2, 8)])
    assert kept(tmp_path) == [2]


def test_packed_numbers_come_back() -> None:
    assert unpack_ids(pack_ids([0, 151_935, 1 << 31])).tolist() == [0, 151_935, 1 << 31]
    result = unpack_logprobs(pack_logprobs([0.0, -0.0004, -1.2345, -99.0, float("nan"), float("-inf")]))
    assert result[:4] == [0.0, 0.0, -1.234, -32.766]
    assert all(math.isnan(item) for item in result[4:])
    assert unpack_logprobs(pack_logprobs([])) == []
    with pytest.raises(ValueError, match=r"padding|buffer size"):
        unpack_ids("AAA")


def test_nothing_is_written_where_none_are_to_be_kept(tmp_path: Path) -> None:
    for writer in (RolloutWriter(tmp_path, 0), RolloutWriter(None, 9)):
        writer.write("train", [group(1)])
        writer.write_tokens(["a"])
        writer.rewind({"train": (0, 0, 0)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("saved_at", [0, 1, 7, 16, 19])
def test_a_killed_run_that_goes_on_has_each_answer_once(tmp_path: Path, saved_at: int) -> None:
    """It leaves the same bytes as one that nobody killed, where pieces were dropped meanwhile, too."""
    whole = RolloutWriter(tmp_path / "whole", 24)
    for number in range(20):
        whole.write("train", [group(number), group(number + 100, 1)])
    first = RolloutWriter(tmp_path / "run", 24)
    position = first.position
    for number in range(20):
        if number == saved_at:
            position = json.loads(json.dumps(first.position))
        first.write("train", [group(number), group(number + 100, 1)])
    newest = pieces_of(tmp_path / "run" / FOLDER, "train")[-1].path
    newest.write_bytes(newest.read_bytes()[:-3])  # the last write was torn
    again = RolloutWriter(tmp_path / "run", 24)
    again.rewind(position)
    for number in range(saved_at, 20):
        again.write("train", [group(number), group(number + 100, 1)])
    assert raw(tmp_path / "run") == raw(tmp_path / "whole")


def test_a_position_in_a_piece_that_was_dropped_holds(tmp_path: Path) -> None:
    """A run that went far beyond its last checkpoint, was killed, went on a little, and was killed once more."""
    writer = RolloutWriter(tmp_path, 8)
    writer.write("train", [group(1, 1)])
    first = writer.position
    writer.write("train", [group(number) for number in range(2, 20)])
    again = RolloutWriter(tmp_path, 8)
    again.rewind(first)
    assert kept(tmp_path) == []
    again.write("train", [group(2)])
    second = again.position
    again.write("train", [group(3)])
    last = RolloutWriter(tmp_path, 8)
    last.rewind(second)
    assert kept(tmp_path) == [2]


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_piece_that_is_damaged_before_the_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [group(1), group(2)])
    position = writer.position
    writer.write("train", [group(3)])
    (piece,) = pieces_of(tmp_path / FOLDER, "train")
    whole, size = piece.path.read_bytes(), position["train"][1]
    damaged = bytearray(whole)
    damaged[size // 2] ^= 4
    piece.path.write_bytes(bytes(damaged) if damage == "flipped" else whole[: size - 1])
    before = raw(tmp_path)
    with pytest.raises(InputError, match=rf"{piece.path}: its first {size} bytes are not those that the run wrote"):
        RolloutWriter(tmp_path, 100).rewind(position)
    assert raw(tmp_path) == before
    piece.path.write_bytes(whole)
    RolloutWriter(tmp_path, 100).rewind(position)
    assert kept(tmp_path) == [1, 2]


def test_going_on_from_the_start_drops_all(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 24)
    writer.write("train", [group(1)])
    writer.write("eval", [group(1)])
    writer.rewind({})
    assert kept(tmp_path) == kept(tmp_path, "eval") == []
    assert writer.position == {"train": (0, 0, 0), "eval": (0, 0, 0)}


def test_a_cut_piece_gives_what_is_whole(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [group(1)])
    writer.write("train", [group(2)])
    (piece,) = pieces_of(tmp_path / FOLDER, "train")
    whole = piece.path.read_bytes()
    for rest in (whole[:-1], whole[: len(whole) // 2 + 3], whole + b"PK"):
        piece.path.write_bytes(rest)
        read = read_piece(piece.path)
        assert read.is_cut
        assert [record["step"] for record in read.records] in ([1], [1, 2])
    piece.path.write_bytes(b"not gzip")
    assert read_piece(piece.path) == ([], True)
    piece.path.write_bytes(gzip.compress(b'[1]\n{"step": 3}\n'))
    assert read_piece(piece.path) == ([{"step": 3}], True)
