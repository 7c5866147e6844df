"""GGUF files against transformers: equal logits and equal token ids."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, forward, init_params, load_checkpoint, load_tokenizer
from jaxrl_sql.models.spec import SlidingWindow

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

# Head size 256 for Gemma: transformers uses its published scale for any head size in a GGUF file.
CONFIGS = {
    "qwen2": ModelConfig("qwen2", 300, 64, 2, 4, 2, 16, 96, Rope(1e6), Norms(), False, False, True, 64),
    # transformers keeps the head size of a Qwen3 file at its default.
    "qwen3": ModelConfig("qwen3", 300, 64, 2, 2, 1, 128, 96, Rope(1e6), Norms(), True, True, False, 64),
    "llama": ModelConfig("llama", 300, 64, 2, 4, 2, 16, 96, Rope(5e5), Norms(1e-5), False, False, False, 64),
    "gemma3": dataclasses.replace(
        ModelConfig("gemma3_text", 300, 64, 7, 2, 1, 256, 96, Rope(1e6), Norms(), True, True, False, 64),
        sliding=SlidingWindow(6, (True,) * 5 + (False, True), 1e4),
        activation="gelu_tanh",
        norms=Norms(is_zero_centered=True, has_post_norms=True),
        scale_embeddings=True,
    ),
}


def random_params(config: ModelConfig) -> Any:
    shapes, rng = jax.eval_shape(lambda: init_params(config, jax.random.key(0))), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.normal(size=leaf.shape), jnp.float32), shapes)


def vocabulary() -> dict[str, Any]:
    """Return a byte-level vocabulary with two merges, as llama.cpp's converter writes it."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "SE", "LE", "<|im_end|>", "<think>"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), 300)]
    kinds = [1] * 258 + [3, 4] + [5] * 40
    return {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "qwen2",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__token_type": kinds,
        "tokenizer__ggml__merges": ["S E", "L E"],
        "tokenizer__ggml__eos_token_id": 258,
    }


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_of_a_gguf_file_match_transformers(
    tmp_path: Path, gguf_files: ModuleType, config: ModelConfig, kind: str
) -> None:
    from transformers import AutoModelForCausalLM

    changes = {"general__name": "random", **vocabulary()}
    gguf_files.write_gguf(tmp_path / "m.gguf", config, random_params(config), kind, **changes)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).eval()
    tokens = np.random.default_rng(0).integers(0, 300, (2, 12))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    read_config, params = load_checkpoint(tmp_path / "m.gguf")
    logits = forward(params, read_config, jnp.asarray(tokens), jnp.array([12, 12]))
    np.testing.assert_allclose(logits, expected, atol=1e-4 * max(1.0, np.abs(expected).max()))
    assert np.abs(expected).max() > 0.5, "logits near zero would always agree"


def test_a_byte_level_tokenizer_matches_transformers(tmp_path: Path, gguf_files: ModuleType) -> None:
    from transformers import AutoTokenizer

    config = CONFIGS["qwen2"]
    gguf_files.write_gguf(tmp_path / "m.gguf", config, random_params(config), general__name="random", **vocabulary())
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf"), load_tokenizer(tmp_path / "m.gguf")
    for text in ("SELECT 1234 FROM t\n\n  WHERE it's", "Zürich ≥ 5 <think>x<|im_end|>", " leading\tand trailing  "):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == text
