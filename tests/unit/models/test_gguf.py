"""GGUF files of every family equal their source model, also quantized; errors have one line."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import (
    ModelConfig,
    Norms,
    Rope,
    forward,
    init_params,
    load_checkpoint,
    load_config,
    save_checkpoint,
)
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.parallel.mesh import make_mesh
from jaxrl_sql.types import InputError

QWEN3 = ModelConfig("qwen3", 40, 32, 2, 4, 2, 16, 64, Rope(1e6), Norms(), True, True, False, 64)
QWEN2 = ModelConfig("qwen2", 40, 32, 2, 2, 1, 16, 64, Rope(1e4), Norms(1e-5), False, False, True, 32)
LLAMA = ModelConfig("llama", 40, 32, 2, 4, 2, 16, 64, Rope(5e5), Norms(1e-5), True, False, False, 256)
LLAMA3 = dataclasses.replace(LLAMA, rope=Rope(5e5, RopeScaling("llama3", 32.0)), tie_embeddings=False)
LINEAR = dataclasses.replace(LLAMA, rope=Rope(5e5, RopeScaling("linear", 4.0)))
GEMMA3 = dataclasses.replace(
    ModelConfig("gemma3_text", 40, 32, 7, 4, 1, 16, 64, Rope(1e6), Norms(), True, True, False, 64),
    sliding=SlidingWindow(5, (True, True, True, True, True, False, True), 1e4),
    activation="gelu_tanh",
    norms=Norms(is_zero_centered=True, has_post_norms=True),
    scale_embeddings=True,
)
CAPPED = dataclasses.replace(GEMMA3, final_logit_cap=30.0, rope=Rope(1e6, RopeScaling("linear", 8.0)))
CONFIGS = {
    "qwen3": QWEN3,
    "qwen2-untied": QWEN2,
    "llama": LLAMA,
    "llama3-untied": LLAMA3,
    "llama-linear": LINEAR,
    "gemma3": GEMMA3,
    "gemma3-capped": CAPPED,
}
ALL = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
# Compiled often and run once: optimizing the programs would take longer than it saves.
FORWARD = jax.jit(forward, static_argnums=1, compiler_options={"xla_backend_optimization_level": 0})
TOKENS, LENGTHS = jnp.arange(20).reshape(2, 10) % 37, jnp.array([10, 6])


def random_params(config: ModelConfig) -> Any:
    """Draw every leaf, including norms and biases, which are ones and zeros in a new model."""
    shapes, rng = jax.eval_shape(lambda: init_params(config, jax.random.key(0))), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32), shapes)


@ALL
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_gguf_file_equals_its_source_model(
    tmp_path: Path, gguf_files: ModuleType, config: ModelConfig, kind: str
) -> None:
    params = random_params(config)
    tensors = gguf_files.write_gguf(tmp_path / "m.gguf", config, params, kind)
    read_config, checkpoint = load_checkpoint(tmp_path / "m.gguf")
    assert read_config == config
    assert load_config(str(tmp_path / "m.gguf")) == config
    # Converting our tensors again gives the converter's tensors.
    again = dict(gguf_files.converted(config, checkpoint))
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(again[name], tensor, rtol=1e-6, atol=1e-7, err_msg=name)
    scale = {"F32": 1e-5, "F16": 2e-2, "BF16": 2e-1, "Q8_0": 2e-1}[kind]
    logits, expected = (np.asarray(FORWARD(p, config, TOKENS, LENGTHS))[0] for p in (checkpoint, params))
    np.testing.assert_allclose(logits, expected, atol=scale * np.abs(expected).max())
    assert np.abs(expected).max() > 0.5, "logits near zero always agree"


def test_float32_tensors_are_bit_equal(tmp_path: Path, gguf_files: ModuleType) -> None:
    params = random_params(LLAMA)
    gguf_files.write_gguf(tmp_path / "m.gguf", LLAMA, params)
    jax.tree.map(np.testing.assert_array_equal, load_checkpoint(tmp_path / "m.gguf")[1], params)
    assert load_checkpoint(tmp_path / "m.gguf", "bfloat16")[1]["layers"]["q"].dtype == jnp.bfloat16


@pytest.mark.parametrize("config", [LLAMA, GEMMA3], ids=["llama", "gemma3"])
def test_quantized_file_is_exported_as_a_folder(tmp_path: Path, gguf_files: ModuleType, config: ModelConfig) -> None:
    gguf_files.write_gguf(tmp_path / "m.gguf", config, random_params(config), "Q8_0")
    read_config, params = load_checkpoint(tmp_path / "m.gguf", mesh=make_mesh())
    save_checkpoint(tmp_path / "out", read_config, params, source=tmp_path / "m.gguf")
    again_config, again = load_checkpoint(tmp_path / "out")
    assert again_config == config
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (QWEN3, {"general__architecture": "mamba"}, "architecture is 'mamba'; valid are gemma3, llama, qwen2, qwen3"),
        (QWEN3, {"block_count": None}, "metadata qwen3.block_count is missing"),
        (QWEN3, {"split__count": 3}, "is one of 3 parts"),
        (QWEN3, {"split__count": "3"}, "metadata split.count is '3', must be a whole number of at least 1"),
        (QWEN3, {"general__alignment": 0}, r"\(general.alignment is 0, must be a whole number of at least 1\)"),
        (LLAMA, {"attention__head_count": [4, 4]}, r"llama.attention.head_count is \[4, 4\], must be a whole number"),
        (QWEN3, {"attention__head_count": 0}, "qwen3.attention.head_count is 0, must be a whole number of at least 1"),
        (LLAMA, {"attention__head_count_kv": [2, 0]}, r"llama.attention.head_count_kv is \[2, 0\], must be a whole"),
        (LLAMA, {"attention__key_length": "16"}, "llama.attention.key_length is '16', must be a whole number"),
        (QWEN3, {"embedding_length": 31.5}, "qwen3.embedding_length is 31.5, must be a whole number"),
        (GEMMA3, {"block_count": [7]}, r"gemma3.block_count is \[7\], must be a whole number"),
        (GEMMA3, {"attention__sliding_window": 2.5}, "gemma3.attention.sliding_window is 2.5, must be a whole number"),
        (QWEN3, {"attention__value_length": 8}, "qwen3.attention.value_length is 8; supported is 16"),
        (QWEN3, {"rope__dimension_count": 8}, "qwen3.rope.dimension_count is 8; supported is 16"),
        (QWEN2, {"attention__key_length": 8, "attention__value_length": 8}, "head size of 8 is not 16"),
        (LLAMA, {"expert_count": 8}, "llama.expert_count is 8; supported is 0"),
        (LLAMA, {"attention__sliding_window": 4096}, "llama.attention.sliding_window is 4096"),
        (LLAMA, {"rope__scaling__type": "yarn"}, "llama.rope.scaling.type is 'yarn'; valid: 'linear'"),
        (LLAMA, {"rope__scaling__type": "linear"}, "llama.rope.scaling.factor is missing"),
        (QWEN3, {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}, "rope_scaling of type 'linear'"),
        (GEMMA3, {"attention__sliding_window": None}, "gemma3.attention.sliding_window is missing"),
        (GEMMA3, {"attention__sliding_window_pattern": [True, False]}, "layer_types must be a list of"),
    ],
)
def test_missing_and_unsupported_keys_are_named(
    tmp_path: Path, gguf_files: ModuleType, config: ModelConfig, changes: dict[str, Any], message: str
) -> None:
    gguf_files.write_gguf(tmp_path / "m.gguf", config, random_params(config), **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)
    assert "m.gguf" in str(caught.value)


def test_sliding_layers_may_be_listed(tmp_path: Path, gguf_files: ModuleType) -> None:
    pattern = [True, False] * 3 + [True]
    changes = {"attention__sliding_window_pattern": pattern, "rope__freq_base_swa": 5e4}
    gguf_files.write_gguf(tmp_path / "m.gguf", GEMMA3, random_params(GEMMA3), **changes)
    assert load_config(tmp_path / "m.gguf").sliding == SlidingWindow(5, tuple(pattern), 5e4)


def test_every_invalid_tensor_is_named_as_in_the_file(tmp_path: Path, gguf_files: ModuleType) -> None:
    drop = ("blk.1.ffn_up.weight", "output_norm.weight")
    gguf_files.write_gguf(tmp_path / "m.gguf", QWEN3, random_params(QWEN3), drop=drop, feed_forward_length=96)
    with pytest.raises(InputError) as caught:
        load_checkpoint(tmp_path / "m.gguf")
    message = str(caught.value)
    assert "2 missing (blk.1.ffn_up.weight, output_norm.weight)" in message
    assert "blk.0.ffn_gate.weight [64, 32], expected [96, 32]" in message
    assert "\n" not in message
    gguf_files.write_gguf(tmp_path / "m.gguf", QWEN3, random_params(QWEN3), drop=("token_embd.weight",))
    with pytest.raises(InputError, match=r"1 missing \(token_embd.weight\)"):
        load_checkpoint(tmp_path / "m.gguf")
    gguf_files.write_gguf(tmp_path / "m.gguf", QWEN2, random_params(QWEN2), qkv__x=1)
    raw = (tmp_path / "m.gguf").read_bytes().replace(b"blk.0.attn_q.bias", b"blk.0.attn_z.bias")
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(InputError, match=r"1 missing \(blk.0.attn_q.bias\); 1 unknown \(blk.0.attn_z.bias\)"):
        load_checkpoint(tmp_path / "m.gguf")


def test_rope_factors_other_than_llama_3_are_rejected(tmp_path: Path, gguf_files: ModuleType) -> None:
    other = dataclasses.replace(LLAMA, rope=Rope(5e5, RopeScaling("llama3", 32.0, 1.0, 4.0, 64)))
    gguf_files.write_gguf(tmp_path / "m.gguf", other, random_params(other))
    with pytest.raises(InputError, match=r"rope_freqs.weight are not the factors of Llama 3's frequency scaling by 32"):
        load_config(tmp_path / "m.gguf")


def test_truncated_rope_factors_are_rejected(tmp_path: Path, gguf_files: ModuleType) -> None:
    path = tmp_path / "m.gguf"
    gguf_files.write_gguf(path, LLAMA3, random_params(LLAMA3))
    end = read_header(path).tensors["rope_freqs.weight"].offset + LLAMA3.head_dim // 2 * 4
    whole = path.read_bytes()
    for missing in (1, 4, 100):
        path.write_bytes(whole[: end - missing])
        with pytest.raises(InputError, match=r"not a readable GGUF file \(rope_freqs.weight extends past its end\)"):
            load_config(path)
    path.write_bytes(whole[:end])
    assert load_config(path) == LLAMA3


def test_invalid_and_truncated_files_are_rejected(tmp_path: Path, gguf_files: ModuleType) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(InputError, match="no such folder or file"):
        load_checkpoint(path)
    gguf_files.write_gguf(path, QWEN3, random_params(QWEN3))
    whole = path.read_bytes()
    for raw in (b"", b"GGUF", b"GGML" + whole[4:], b"GGUF\x01" + whole[5:], whole[:200], whole[:-100]):
        path.write_bytes(raw)
        with pytest.raises(InputError, match=r"m.gguf: not a readable GGUF file") as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_quantized_tensors_without_package_gguf_name_the_extra(
    tmp_path: Path, gguf_files: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_files.write_gguf(tmp_path / "m.gguf", QWEN3, random_params(QWEN3), "Q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"pip install 'jaxrl-sql\[gguf\]'"):
        load_checkpoint(tmp_path / "m.gguf")


def test_unsupported_tensor_type_is_named(tmp_path: Path, gguf_files: ModuleType) -> None:
    gguf_files.write_gguf(tmp_path / "m.gguf", QWEN3, random_params(QWEN3))
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    name = b"blk.0.attn_v.weight"
    kind = raw.index(name) + len(name) + 4 + 2 * 8  # after the number of axes and two axes
    raw[kind : kind + 4] = (15).to_bytes(4, "little")
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(InputError, match=r"1 of an unsupported type \(blk.0.attn_v.weight ggml type 15\)"):
        load_checkpoint(tmp_path / "m.gguf")
