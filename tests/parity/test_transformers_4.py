"""Saved folders read by transformers 4 equal ours: ids, roles, templates, and fields of config.json.

TRANSFORMERS4_PYTHON names an interpreter with transformers 4, which needs no torch; `make test-parity` makes one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest
from tokenizers import Tokenizer

from jaxrl_sql.commands.export import main as export
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer, save_checkpoint
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.runtime.tokenizer_files import read_tokenizer, save_tokenizer

pytestmark = pytest.mark.parity

PYTHON = os.environ.get("TRANSFORMERS4_PYTHON", "")
STARTS = Path(__file__).parents[2] / "configs"
TEXTS = ("SELECT name FROM animal WHERE age >= 4;\n  -- 2014, café ' ! '", " a", "a <|im_end|>  b", "<s> a <x> b", "")
CHAT = [{"role": "user", "content": "How many?"}]
READ = """
import json, sys
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, __version__
texts, chat, folders = json.load(sys.stdin)
assert __version__.startswith("4."), __version__
for folder in folders:
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    ids = [tokenizer.encode(text) for text in texts]
    print(json.dumps({
        "ids": ids,
        "texts": [tokenizer.decode(each) for each in ids],
        "added": {token.content: [i, token.lstrip, token.rstrip, token.normalized, token.special]
                  for i, token in tokenizer.added_tokens_decoder.items()},
        "roles": [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.additional_special_tokens],
        "inputs": sorted(tokenizer("a")),
        "chat": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
        "config": {**config.to_dict(), "torch_dtype": str(config.torch_dtype), "dtype": None},
        "ends": GenerationConfig.from_pretrained(folder).eos_token_id,
    }))
"""
LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 32)
SHAPES = {
    "qwen3": ModelConfig("qwen3", 1038, 32, 2, 4, 2, 16, 64, Rope(1e6), Norms(), True, True, False, 64),
    "qwen2": ModelConfig("qwen2", 1038, 32, 2, 2, 2, 16, 64, Rope(1e6), Norms(), True, False, True, 64),
    "llama": ModelConfig("llama", 1038, 32, 2, 4, 2, 8, 64, Rope(5e5, LLAMA3), Norms(), True, False, False, 64),
    "gemma3_text": ModelConfig(
        "gemma3_text", 1038, 32, 2, 2, 1, 16, 64, Rope(1e6), Norms(is_zero_centered=True, has_post_norms=True),
        True, True, False, 64, sliding=SlidingWindow(8, (True, False), 1e4), activation="gelu_tanh",
        scale_embeddings=True,
    ),
}  # fmt: skip


def read_with_transformers_4(folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Return transformers 4's report on each folder."""
    if not PYTHON:
        pytest.skip("TRANSFORMERS4_PYTHON names no interpreter with transformers 4")
    task = json.dumps([TEXTS, CHAT, [str(folder) for folder in folders.values()]])
    done = subprocess.run([PYTHON, "-c", READ], input=task, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(folders, map(json.loads, done.stdout.splitlines()), strict=True))


def check_tokenizer(report: dict[str, Any], tokenizer: Any) -> None:
    """Compare transformers 4's report on a folder with the tokenizer saved there."""
    assert report["ids"] == [tokenizer.encode(text) for text in TEXTS]
    assert report["texts"] == [tokenizer.decode(each) for each in report["ids"]]
    roles = [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, list(tokenizer.extra_special_tokens)]
    assert report["roles"] == roles
    assert report["inputs"] == ["attention_mask", "input_ids"]
    assert report["chat"] == tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert report["added"] == {
        token.content: [i, token.lstrip, token.rstrip, token.normalized, token.special]
        for i, token in tokenizer.added_tokens_decoder.items()
    }


def test_each_model_family_is_read(tmp_path: Path) -> None:
    tokenizer, folders = load_tokenizer(STARTS / "recipes_start"), {}
    for number, (family, shape) in enumerate(SHAPES.items()):
        folders[family] = tmp_path / family
        params = init_params(shape, jax.random.key(0))
        save_checkpoint(folders[family], shape, params, tokenizer, dtype=("float32", "bfloat16")[number % 2])
    for number, (family, report) in enumerate(read_with_transformers_4(folders).items()):
        check_tokenizer(report, tokenizer)
        read = report["config"]
        written = json.loads((folders[family] / "config.json").read_text())
        names = written.keys() - {"dtype", "torch_dtype", "rope_parameters", "transformers_version", "rope_scaling"}
        assert {name: read.get(name) for name in names} == {name: written[name] for name in names}
        assert read["torch_dtype"] == ("torch.float32", "torch.bfloat16")[number % 2].removeprefix("torch.")
        for name, value in (written["rope_scaling"] or {}).items():
            assert read["rope_scaling"][name] == value
        assert report["ends"] == tokenizer.eos_token_id


def test_each_tokenizer_kind_is_read(tmp_path: Path, tokenizer_kinds: ModuleType) -> None:
    makers = tokenizer_kinds.CORES
    folders = {kind: tmp_path / kind for kind in makers}
    for kind, make in makers.items():
        roles = {"bos_token": "<s>", "pad_token": "<pad>"}
        folder = tokenizer_kinds.write(tmp_path / "given", make(), chat_template="{{ messages[0] }}", **roles)
        save_tokenizer(read_tokenizer(folder), folders[kind])
        (folders[kind] / "config.json").write_text('{"model_type": "llama"}')
        (folders[kind] / "generation_config.json").write_text("{}")
    for kind, report in read_with_transformers_4(folders).items():
        check_tokenizer(report, read_tokenizer(folders[kind]))
        core = Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
        assert report["ids"] == [core.encode(text).ids for text in TEXTS], kind


def test_exports_and_shipped_models_are_read(tmp_path: Path) -> None:
    folders = {name: STARTS / name for name in ("recipes_start", "quickstart_start")}
    assert export([str(folders["recipes_start"]), "--out", str(tmp_path / "out")]) == 0
    folders["exported"] = tmp_path / "out"
    for name, report in read_with_transformers_4(folders).items():
        check_tokenizer(report, load_tokenizer(folders[name]))
