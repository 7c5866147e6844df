"""Metric reduction with weights, and run files that are readable at any time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from jaxrl_sql.runtime.metrics import START, MetricsWriter, SampleWriter, reduce_metrics
from jaxrl_sql.runtime.trackers import open_trackers
from jaxrl_sql.types import InputError


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def all_events(folder: Path) -> Iterator[event_pb2.Event]:
    for path in sorted((folder / "tb").iterdir(), key=lambda path: int(path.suffix[1:])):
        data = path.read_bytes()
        while data:  # a record: length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(data[:8], "little")
            yield event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def read_events(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, value.simple_value) for event in all_events(folder) for value in event.summary.value
    ]


def tracked(folder: Path) -> MetricsWriter:
    return MetricsWriter(folder, open_trackers(folder, ["tensorboard"], "", {}))


def read_starts(folder: Path) -> list[tuple[int, bool]]:
    return [(event.step, event.session_log.status == event_pb2.SessionLog.START) for event in all_events(folder)]


def test_metric_reduction_by_hand() -> None:
    merged = {"loss": (5.0, 10.0), "delta_max": (0.5, 1.0), "only": (4.0, 2.0), "below_max": (-2.0, 1.0)}
    assert reduce_metrics(merged) == {"loss": 0.5, "delta_max": 0.5, "only": 2.0, "below_max": -2.0}


def test_metric_without_weight_has_no_value() -> None:
    assert reduce_metrics({"loss": (0.0, 0.0), "reward": (0.0, 2.0)}) == {"reward": 0.0}


def test_each_line_is_flushed_and_starts_with_the_step(tmp_path: Path) -> None:
    with tracked(tmp_path) as writer:
        writer.write(1, {"phase": "sft", "sft/loss": np.float32(2.5)})
        text = (tmp_path / "metrics.jsonl").read_text()
        assert text == '{"step": 1, "phase": "sft", "sft/loss": 2.5}\n'
        writer.write(2, {"nan": math.nan, "inf": np.float32(np.inf), "n": np.int64(3)})
    assert read_lines(tmp_path / "metrics.jsonl")[1] == {"step": 2, "nan": None, "inf": None, "n": 3}


def test_tensorboard_events_hold_the_numbers(tmp_path: Path) -> None:
    with tracked(tmp_path) as writer:
        writer.write(7, {"phase": "grpo", "reward/mean": 0.75})
    assert read_events(tmp_path) == [(7, "reward/mean", 0.75)]


def test_resumed_run_drops_later_steps_and_an_incomplete_line(tmp_path: Path) -> None:
    position = START
    with tracked(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"loss": float(step)})
            position = position if step == 3 else writer.position
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    with tracked(tmp_path) as writer:
        writer.rewind(position, 2)
        writer.write(3, {"loss": 30.0})
    assert [(line["step"], line["loss"]) for line in read_lines(tmp_path / "metrics.jsonl")] == [
        (1, 1),
        (2, 2),
        (3, 30),
    ]
    # TensorBoard hides events from step 2 on that were written before, and step 2 is written again.
    assert [(step, value) for step, _, value in read_events(tmp_path)] == [(1, 1), (2, 2), (3, 3), (2, 2), (3, 30)]
    assert [step for step, is_start in read_starts(tmp_path) if is_start] == [2]


def test_incomplete_line_is_dropped_before_the_next_is_written(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text('{"step": 1, "sql": "a"}\n{"step": 2, "sq')
    with SampleWriter(tmp_path) as writer:
        writer.write({"step": 2, "sql": "b"})
    assert read_lines(tmp_path / "samples.jsonl") == [{"step": 1, "sql": "a"}, {"step": 2, "sql": "b"}]


def test_samples_keep_unusual_text_on_one_line_after_resuming(tmp_path: Path) -> None:
    sample = {
        "question": "wo?\u2028\x85\n",
        "sql": None,
        "reward": 0.1,
        "parts": {"a": math.nan, "b": [1, np.float32(2)]},
    }
    with SampleWriter(tmp_path) as writer:
        writer.write({"step": 5, **sample})
        position = writer.position
        writer.write({"step": 6, **sample})
    with SampleWriter(tmp_path) as writer:
        writer.rewind(position)
    (line,) = read_lines(tmp_path / "samples.jsonl")
    assert line == {"step": 5, **sample, "parts": {"a": None, "b": [1, 2.0]}}


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MetricsWriter(None) as metrics, SampleWriter(None) as samples:
        metrics.rewind((3, 7), 0)
        metrics.write(1, {"loss": 1.0})
        samples.write({"step": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["a flipped digit", "a line that is no JSON", "a line that is gone", "cut"])
def test_lines_that_differ_from_the_checkpoint_are_rejected(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SampleWriter(tmp_path) as writer:
        for step in range(1, 5):
            writer.write({"step": step, "reward": 0.5})
        position = writer.position
        writer.write({"step": 5, "reward": 0.5})
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "a flipped digit": [*lines[:1], lines[1].replace("0.5", "0.7"), *lines[2:]],
        "a line that is no JSON": [*lines[:1], lines[1].replace("{", "["), *lines[2:]],
        "a line that is gone": [*lines[:1], *lines[2:]],
        "cut": lines[:3],
    }
    path.write_text("".join(changed[damage]))
    before = path.read_bytes()
    with SampleWriter(tmp_path) as writer, pytest.raises(InputError, match="its first 4 lines are not those") as caught:
        writer.rewind(position)
    assert str(caught.value).startswith(str(path))
    assert path.read_bytes() == before
    path.unlink()  # as the message suggests
    with SampleWriter(tmp_path) as writer:
        assert writer.rewind(position) == []
        assert writer.position == START


def test_damage_after_the_checkpoint_is_dropped(tmp_path: Path) -> None:
    with SampleWriter(tmp_path) as writer:
        writer.write({"step": 1})
        position = writer.position
        writer.write({"step": 2})
    path = tmp_path / "samples.jsonl"
    path.write_text(path.read_text().replace("2", "["))
    with SampleWriter(tmp_path) as writer:
        writer.rewind(position)
    assert read_lines(path) == [{"step": 1}]
