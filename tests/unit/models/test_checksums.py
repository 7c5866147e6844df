"""Checksums: weights of a run that differ from those it wrote are rejected."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jaxrl_sql.models.formats.checksums import SUMS, refuse_damaged_weights, seal_weights
from jaxrl_sql.types import InputError


def test_changed_weights_of_a_run_are_rejected_and_of_copies_accepted(tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model.parent / "config.yaml").write_text("seed: 0\n")
    for name in ("model-1.safetensors", "model-2.safetensors", "config.json"):
        (model / name).write_bytes(name.encode() * 100)
    seal_weights(model)
    shutil.copytree(model, tmp_path / "copy")
    (tmp_path / "copy" / "model-1.safetensors").write_bytes(b"merged")
    (model / "config.json").write_bytes(b"edited")
    for source in (model, tmp_path / "copy", model / "config.json", "Qwen/Qwen3-0.6B"):
        refuse_damaged_weights(source)
    raw = bytearray((model / "model-2.safetensors").read_bytes())
    raw[700] ^= 16
    (model / "model-2.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match=r"/run: model/model-2\.safetensors does not match its checksum: put it back"):
        refuse_damaged_weights(model)
    (model.parent / SUMS).unlink()  # as the message suggests
    refuse_damaged_weights(str(model))


@pytest.mark.parametrize("content", ['{"model/model.safetensors": "abc"}', "[]", ""])
def test_checksum_file_of_another_tool_is_ignored(content: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    (tmp_path / SUMS).write_text(content)
    refuse_damaged_weights(model)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(InputError, match=r"checksums\.json is damaged"):
        refuse_damaged_weights(model)
