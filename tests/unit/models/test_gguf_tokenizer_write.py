"""Exported tokenizers split texts as before: in llama.cpp's terms if possible, else as the whole tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from jaxrl_sql.commands.export import main as export
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer, save_checkpoint
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.formats.gguf_tokenizer import SPLITS, TOKENIZER_JSON
from jaxrl_sql.models.formats.gguf_write import save_gguf
from jaxrl_sql.models.formats.hf import hf_tensors
from jaxrl_sql.types import InputError

pytest.importorskip("gguf")
LLAMA = ModelConfig("llama", 40, 32, 1, 2, 2, 16, 32, Rope(1e4), Norms(), True, False, False, 64)
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *"▁abc", "▁a", "ab", "▁ab", "▁▁", "bc"]
MERGES = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "▁"), ("b", "c")]
SPACES = [normalizers.Replace(" ", "▁")]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TEXTS = [
    "ab a", " ab", "  ab  a ", "abc", "ABC", "", "e\u0301", "\u00e9", "1234567", "a\n\nb\n", "\U0001f600", "ab<s> ab",
    "ab <s>ab", "<s>", "a </s> b", "a<eos>b", "a <eos> b",
]  # fmt: skip


def pieces(normalizer: Any = None, pre: Any = None, merges: Sequence[tuple[str, str]] = MERGES) -> Any:
    vocab = {text: i for i, text in enumerate(PIECES)}
    raw = Tokenizer(models.BPE(vocab, list(merges), unk_token="<unk>", byte_fallback=True, fuse_unk=True))  # noqa: S106
    if normalizer is not None:
        raw.normalizer = normalizer
    if pre is not None:
        raw.pre_tokenizer = pre
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")  # noqa: S106


def metaspace(scheme: str) -> Any:
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)  # type: ignore[arg-type]


def bytes_(
    name: str, norm: Any = None, *, ignores: bool = False, prefix: bool = False, end: Any = "<eos>", **options: Any
) -> Any:
    vocab = {text: i for i, text in enumerate([*ALPHABET, "ab", "bc", "abc", "Ġa"])}
    raw = Tokenizer(models.BPE(vocab, [("b", "c"), ("a", "b"), ("Ġ", "a")], ignore_merges=ignores))
    if norm is not None:
        raw.normalizer = norm
    split = pre_tokenizers.Split(Regex(SPLITS[name].pattern), behavior="isolated")
    bytes_too = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_too])
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([end])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", **options)  # noqa: S106


def blank_params(config: ModelConfig) -> Any:
    """Return parameters of zeros, for which nothing is compiled: these tests compare tokenizers only."""
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def written_metadata(tmp_path: Path, tokenizer: Any) -> dict[str, Any]:
    """Write a file with a tokenizer, check that it splits texts as before, and return the file's metadata."""
    config = dataclasses.replace(LLAMA, vocab_size=len(tokenizer) + 3)
    params = blank_params(config)
    save_gguf(tmp_path / "m.gguf", config, hf_tensors(config, params, np.float32), tokenizer)
    again = load_tokenizer(tmp_path / "m.gguf")
    for text in TEXTS:
        assert again.encode(text) == tokenizer.encode(text), repr(text)
    return read_header(tmp_path / "m.gguf").metadata


@pytest.mark.parametrize(
    ("tokenizer", "prepends"),
    [
        (pieces(normalizers.Sequence([normalizers.Prepend("▁"), *SPACES])), True),
        (pieces(normalizers.Sequence(SPACES)), False),
        (pieces(pre=metaspace("never")), False),
    ],
    ids=["prepend", "replace", "metaspace-never"],
)
def test_sentencepiece_tokenizer_is_written_in_llama_cpp_terms(tmp_path: Path, tokenizer: Any, prepends: bool) -> None:
    metadata = written_metadata(tmp_path, tokenizer)
    assert metadata["tokenizer.ggml.add_space_prefix"] is prepends
    assert TOKENIZER_JSON not in metadata


@pytest.mark.parametrize(
    ("tokenizer", "prepends"),
    [
        (pieces(pre=metaspace("always")), True),
        (pieces(pre=metaspace("first")), True),
        (LlamaTokenizer(vocab={text: i for i, text in enumerate(PIECES)}, merges=MERGES), True),
        (pieces(normalizers.Sequence([normalizers.Lowercase(), *SPACES])), False),
        (pieces(normalizers.Sequence(SPACES), merges=MERGES[::-1]), False),
        (pieces(normalizers.Sequence([normalizers.NFC(), *SPACES])), False),
    ],
    ids=["metaspace-always", "metaspace-first", "LlamaTokenizer", "lower-case", "other-order", "composed"],
)
def test_sentencepiece_tokenizer_unlike_llama_cpp_is_embedded_whole(
    tmp_path: Path, tokenizer: Any, prepends: bool
) -> None:
    """Metaspace adds no space before an existing one; llama.cpp does."""
    metadata = written_metadata(tmp_path, tokenizer)
    assert metadata["tokenizer.ggml.add_space_prefix"] is prepends
    assert TOKENIZER_JSON in metadata


@pytest.mark.parametrize("name", ["qwen2", "llama-bpe"])
def test_published_split_is_written_by_name(tmp_path: Path, name: str) -> None:
    split = SPLITS[name]
    tokenizer = bytes_(name, normalizers.NFC() if split.composes else None, ignores=split.ignores_merges)
    metadata = written_metadata(tmp_path, tokenizer)
    assert metadata["tokenizer.ggml.pre"] == name
    assert TOKENIZER_JSON not in metadata


@pytest.mark.parametrize(
    "tokenizer",
    [
        bytes_("llama-bpe"),
        bytes_("llama-bpe", normalizers.NFC(), ignores=True),
        bytes_("llama-bpe", ignores=True, prefix=True),
        bytes_("qwen2"),
        bytes_("qwen2", normalizers.NFC(), ignores=True),
        bytes_("qwen2", normalizers.NFC(), prefix=True),
        bytes_("qwen2", normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
        bytes_("qwen2", normalizers.NFC(), end=AddedToken("<eos>", lstrip=True, special=True)),
    ],
    ids=["merges", "composed", "prefix", "not-composed", "no-merges", "prefix-qwen2", "lower-case", "strips"],
)
def test_other_byte_level_split_is_embedded_whole(tmp_path: Path, tokenizer: Any) -> None:
    metadata = written_metadata(tmp_path, tokenizer)
    assert metadata["tokenizer.ggml.pre"] == "default"
    assert TOKENIZER_JSON in metadata


def test_tokenizer_that_gguf_cannot_express_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"GGUF cannot express how the tokenizer splits .*without --gguf") as caught:
        written_metadata(tmp_path, bytes_("qwen2", normalizers.NFC(), split_special_tokens=True))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_export_warns_if_llama_cpp_splits_differently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, pre, warns in (("plain", metaspace("never"), False), ("other", metaspace("first"), True)):
        tokenizer = pieces(pre=pre)
        config = dataclasses.replace(LLAMA, vocab_size=len(tokenizer))
        save_checkpoint(tmp_path / name, config, blank_params(config), tokenizer)
        assert export([str(tmp_path / name), "--out", str(tmp_path / "out"), "--gguf", "f16"]) == 0
        assert ("give llama.cpp token ids" in capsys.readouterr().err) == warns
