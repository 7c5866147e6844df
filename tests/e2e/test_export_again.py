"""A second export to a folder leaves nothing of the first that would pass for this model's, and all that is others'."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.export import main as export
from jaxrl_sql.models import load_tokenizer
from jaxrl_sql.run.asked import keep_asked

START = Path(__file__).parents[2] / "configs" / "recipes_start"
TEMPLATE = "{% block user %}{{ schema }}{{ question }}{% endblock %}"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """Return a model's folder that says how it is asked, by a template of its own."""
    folder = tmp_path / "asked"
    shutil.copytree(START, folder)
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    keep_asked(folder, load_config(None, [f"data.template={tmp_path / 'own.jinja'}", "data.prompt=chat"]))
    return folder


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def listed(folder: Path) -> set[str]:
    lines = (folder / "README.md").read_text().splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def test_what_the_first_wrote_and_the_second_does_not_is_gone(asked: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = tmp_path / "out"
    assert export([str(asked), "--out", str(out), "--gguf", "f16"]) == 0
    first = {"out-f16.gguf", "prompt.jinja", "jaxrl_sql.yaml", "chat_template.jinja"}
    assert first <= names(out)
    assert first <= listed(out)
    assert export([str(asked), "--out", str(out), "--gguf", "q8_0"]) == 0
    assert names(out) & {*first, "out-q8_0.gguf"} == first - {"out-f16.gguf"} | {"out-q8_0.gguf"}
    plain = tmp_path / "plain"
    shutil.copytree(START, plain)
    (plain / "chat_template.jinja").unlink()
    assert load_tokenizer(plain).chat_template is None
    assert export([str(plain), "--out", str(out)]) == 0
    assert export([str(plain), "--out", str(tmp_path / "fresh")]) == 0
    assert names(out) == names(tmp_path / "fresh")
    assert listed(out) == listed(tmp_path / "fresh")
    assert load_tokenizer(out).chat_template is None


def test_what_the_export_did_not_make_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    others = {"out-q4_k_m.gguf", "out-f16.gguf.bak", "other-f16.gguf", "prompt.jinja", "out-q8_0.gguf", "notes.json"}
    for name in others:
        (out / name).write_text(json.dumps(name))
    (out / "README.md").write_text("# Of someone else\n")
    assert export([str(START), "--out", str(out)]) == 0
    for name in others:
        assert (out / name).read_text() == json.dumps(name)


def test_the_file_that_is_exported_stays(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = tmp_path / "out"
    assert export([str(START), "--out", str(out), "--gguf", "f16"]) == 0
    kept = (out / "out-f16.gguf").read_bytes()
    assert export([str(out / "out-f16.gguf"), "--out", str(out)]) == 0
    assert (out / "out-f16.gguf").read_bytes() == kept
