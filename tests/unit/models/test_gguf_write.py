"""GGUF export: our reader and package gguf read back the model, its tokenizer and its end tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import (
    ModelConfig,
    Norms,
    Rope,
    init_params,
    load_checkpoint,
    load_config,
    load_tokenizer,
    save_checkpoint,
)
from jaxrl_sql.models.formats import gguf_write
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.formats.gguf_write import save_gguf
from jaxrl_sql.models.formats.hf import count_tensors, hf_tensors, read_tensors, stop_tokens
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.types import InputError

gguf = pytest.importorskip("gguf")
START = Path(__file__).parents[3] / "configs" / "recipes_start"
QWEN3 = ModelConfig("qwen3", 40, 32, 2, 4, 2, 16, 64, Rope(1e6), Norms(), True, True, False, 64)
LLAMA = ModelConfig("llama", 40, 32, 2, 4, 2, 16, 64, Rope(5e5), Norms(1e-5), True, False, False, 256)
GEMMA3 = dataclasses.replace(
    ModelConfig("gemma3_text", 40, 32, 7, 4, 1, 16, 64, Rope(1e6), Norms(), True, True, False, 64),
    sliding=SlidingWindow(5, (True, True, True, True, True, False, True), 1e4),
    activation="gelu_tanh",
    norms=Norms(is_zero_centered=True, has_post_norms=True),
    scale_embeddings=True,
)
CONFIGS = {
    "qwen3": QWEN3,
    "qwen2-untied": ModelConfig("qwen2", 40, 32, 2, 2, 1, 16, 64, Rope(1e4), Norms(1e-5), False, False, True, 32),
    "llama": LLAMA,
    "llama3-untied": dataclasses.replace(LLAMA, rope=Rope(5e5, RopeScaling("llama3", 32.0)), tie_embeddings=False),
    "llama-linear": dataclasses.replace(LLAMA, rope=Rope(5e5, RopeScaling("linear", 4.0))),
    "gemma3": GEMMA3,
    "odd-width": dataclasses.replace(QWEN3, d_model=24),
}


def random_params(config: ModelConfig) -> Any:
    shapes, rng = jax.eval_shape(lambda: init_params(config, jax.random.key(0))), np.random.default_rng(2)
    return jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_tensors_read_back_equal_their_quantized_values(tmp_path: Path, config: ModelConfig, kind: str) -> None:
    params = random_params(config)
    save_gguf(tmp_path / "m.gguf", config, hf_tensors(config, params, np.float32), kind=kind)
    assert load_config(tmp_path / "m.gguf") == config
    wanted, result = dict(hf_tensors(config, params, np.float32)), dict(read_tensors(tmp_path / "m.gguf"))
    assert wanted.keys() == result.keys()
    for name, tensor in wanted.items():
        if tensor.ndim == 1:
            np.testing.assert_allclose(result[name], tensor, rtol=0, atol=2e-7, err_msg=name)
            continue
        as_kind = gguf.GGMLQuantizationType.Q8_0 if kind == "q8_0" and tensor.shape[-1] % 32 == 0 else None
        rounded = (
            tensor.astype(np.float16) if as_kind is None else gguf.dequantize(gguf.quantize(tensor, as_kind), as_kind)
        )
        np.testing.assert_array_equal(result[name].astype(np.float32), rounded.astype(np.float32), err_msg=name)
    assert [item.name for item in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_file_equals_that_of_the_converter(tmp_path: Path, gguf_files: ModuleType, config: ModelConfig) -> None:
    """The tests' converter, which uses the names of package gguf, gives bit-equal tensors."""
    params = random_params(config)
    save_gguf(tmp_path / "ours.gguf", config, hf_tensors(config, params, np.float32))
    gguf_files.write_gguf(tmp_path / "theirs.gguf", config, params, "F16")
    ours, theirs = (gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in ("ours", "theirs"))
    raw = {item.name: item.data for item in ours.tensors}
    assert raw.keys() == {entry.name for entry in theirs.tensors}
    for tensor in theirs.tensors:
        np.testing.assert_allclose(raw[tensor.name], tensor.data, rtol=1e-6, err_msg=tensor.name)


def test_tokenizer_is_embedded_whole(tmp_path: Path) -> None:
    """The small policies split text in a way that llama.cpp has no name for."""
    config, tokenizer = load_config(START), load_tokenizer(START)
    save_gguf(tmp_path / "m.gguf", config, read_tensors(START), tokenizer, stops=[2, 0])
    metadata = read_header(tmp_path / "m.gguf").metadata
    assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) == ("gpt2", "default")
    assert (metadata["tokenizer.ggml.eos_token_id"], metadata["tokenizer.ggml.eot_token_id"]) == (2, 0)
    assert stop_tokens(tmp_path / "m.gguf") == [2, 0]
    save_checkpoint(tmp_path / "m", config, load_checkpoint(START)[1], tokenizer, source=tmp_path / "m.gguf")
    assert stop_tokens(tmp_path / "m") == [2, 0], "the end tokens of a GGUF file are lost in a folder"
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == config.vocab_size
    assert "output.weight" not in read_header(tmp_path / "m.gguf").tensors  # tied
    again = load_tokenizer(tmp_path / "m.gguf")
    for text in ("SELECT COUNT(*) FROM T1\n<think>é 12</think>", "<|im_start|>user\nHow many?<|im_end|>"):
        assert again.encode(text) == tokenizer.encode(text)
    chat = [{"role": "user", "content": "How many?"}]
    rendered = (
        item.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for item in (again, tokenizer)
    )
    assert len(set(rendered)) == 1
    assert again.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_published_split_keeps_its_name(tmp_path: Path, gguf_files: ModuleType, pre: str) -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "SE", "12", "<|im_end|>"]
    config = dataclasses.replace(QWEN3, vocab_size=len(tokens) + 3)
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [1] * 258 + [3], "merges": ["S E", "1 2"]}
    fields |= {"eos_token_id": 258, "add_bos_token": False}
    params = random_params(config)
    changes = {f"tokenizer__ggml__{key}": value for key, value in fields.items()}
    gguf_files.write_gguf(tmp_path / "a.gguf", config, params, **changes)
    tokenizer = load_tokenizer(tmp_path / "a.gguf")
    save_gguf(tmp_path / "b.gguf", config, hf_tensors(config, params, np.float32), tokenizer)
    metadata = read_header(tmp_path / "b.gguf").metadata
    assert gguf_write.SPLITS[metadata["tokenizer.ggml.pre"]] == gguf_write.SPLITS[pre]
    assert metadata["tokenizer.ggml.merges"] == fields["merges"]
    assert metadata["tokenizer.ggml.tokens"] == [*tokens, "[PAD259]", "[PAD260]", "[PAD261]"]
    again = load_tokenizer(tmp_path / "b.gguf")
    assert again.encode("SELECT 12 é<|im_end|>") == tokenizer.encode("SELECT 12 é<|im_end|>")


def test_inexpressible_models_are_rejected_in_one_line(tmp_path: Path) -> None:
    def save(config: ModelConfig, kind: str = "f16", scale: float = 1.0) -> None:
        params = jax.tree.map(lambda leaf: leaf * scale, random_params(config))
        save_gguf(tmp_path / "m.gguf", config, hf_tensors(config, params, np.float32), kind=kind)

    with pytest.raises(InputError, match="no name for family 'mamba'; supported are gemma3_text, llama, qwen2, qwen3"):
        save(dataclasses.replace(QWEN3, family="mamba"))
    with pytest.raises(InputError, match="'q4' is not a kind of GGUF; valid are f16, q8_0"):
        save(QWEN3, "q4")
    with pytest.raises(InputError, match="out of the range of float16"):
        save(QWEN3, scale=1e6)
    with pytest.raises(InputError, match=r"GGUF cannot express query_scalar = 64\.0 .*without --gguf"):
        save(dataclasses.replace(GEMMA3, query_scalar=64.0))
    assert not list(tmp_path.iterdir())


def test_shards_are_read_in_the_order_of_the_weight_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = random_params(QWEN3)
    monkeypatch.setattr("jaxrl_sql.models.formats.hf.SHARD_BYTES", 8192)
    reports: list[int] = []
    save_checkpoint(tmp_path, QWEN3, params, on_progress=reports.append)
    assert reports == [*range(1, count_tensors(QWEN3) + 1)]
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for (name, tensor), (wanted, plain) in zip(
        read_tensors(tmp_path), hf_tensors(QWEN3, params, np.float32), strict=True
    ):
        assert name == wanted
        np.testing.assert_array_equal(tensor, plain)
