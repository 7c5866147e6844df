"""Logits equal transformers' on random small models, for folders saved by either side.

The models have random values in every tensor: norms and biases are ones and zeros in a new model and would hide
mistakes. Transformers' are saved and read here; ours are saved and read there.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import (
    forward,
    load_checkpoint,
    save_checkpoint,
    unembed,
)

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4
LENGTHS = np.array([12, 5, 1])
SIZES = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
# Of its 8 frequencies (theta 1e4, head size 16) some turn more than 4 times in 32 positions, some less than once, and
# one is in between.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def plain(theta: float) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_type": "default"}


# Windows are shorter than the sequences and than the tokens decoded after the prompt.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen3-gqa-tied": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}, plain(1e6)),
    "qwen3-untied": ("qwen3", {"num_key_value_heads": 6, "head_dim": 8, "tie_word_embeddings": False}, plain(1e4)),
    "qwen2-gqa-untied": ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": False}, plain(1e6)),
    "qwen2-mqa-tied": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}, plain(1e4)),
    "llama-llama3-gqa-tied": ("llama", {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}, LLAMA3),
    "llama-plain-untied": ("llama", {"num_key_value_heads": 3, "tie_word_embeddings": False}, plain(5e5)),
    "llama-linear-tied": (
        "llama",
        {"num_key_value_heads": 6, "tie_word_embeddings": True},
        {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0},
    ),
    "gemma3-mqa-tied": (
        "gemma3_text",
        {
            "num_key_value_heads": 1,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 4,
            "layer_types": [SLIDING, FULL, SLIDING],
        },
        {SLIDING: plain(1e4), FULL: plain(1e6)},
    ),
    "gemma3-linear-capped-untied": (
        "gemma3_text",
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "query_pre_attn_scalar": 24,
            "sliding_window": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "final_logit_softcapping": 2.0,
            "tie_word_embeddings": False,
        },
        {SLIDING: plain(50.0), FULL: {"rope_theta": 1e4, "rope_type": "linear", "factor": 8.0}},
    ),
    "gemma3-all-full": (
        "gemma3_text",
        {"num_key_value_heads": 6, "head_dim": 8, "query_pre_attn_scalar": 8, "layer_types": [FULL] * 3},
        {SLIDING: plain(1e4), FULL: LLAMA3},
    ),
}


def random_model(family: str, fields: dict[str, Any], rope: dict[str, Any], dtype: Any) -> Any:
    """Build transformers' model of a family with random values in every tensor."""
    import transformers

    kinds = {
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }
    make_config, make_model = kinds[family]
    torch.manual_seed(0)
    # A copy: transformers changes its argument.
    model = make_model(make_config(**SIZES, **fields, rope_parameters=copy.deepcopy(rope))).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            near_one = "norm" in name and family != "gemma3_text"
            tensor.copy_(near_one + 0.2 * torch.randn(tensor.shape))
    return model.to(dtype)


def reference_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor(tokens)).logits.float())


# Small arrays, compiled often and run once: the backend's optimizations would take longer than they save.
jit = functools.partial(jax.jit, static_argnums=1, compiler_options={"xla_backend_optimization_level": 0})
FORWARD = jit(forward)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    model = random_model(*CASES[request.param], torch.float32)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def right_padded() -> np.ndarray:
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (len(LENGTHS), LENGTHS.max()))
    return np.where(np.arange(LENGTHS.max()) < LENGTHS[:, None], tokens, 0)


def test_logits_prefill_and_decode_match_transformers(case: tuple[Any, Path], plain_decode: ModuleType) -> None:
    model, folder = case
    config, params = load_checkpoint(folder)
    tokens = right_padded()
    logits = FORWARD(params, config, tokens, LENGTHS)
    expected = [reference_logits(model, tokens[n : n + 1, :length])[0] for n, length in enumerate(LENGTHS)]
    for n, length in enumerate(LENGTHS):
        np.testing.assert_allclose(logits[n, :length], expected[n], atol=TOLERANCE, rtol=0)
    assert max(np.abs(e).max() for e in expected) > 1, "logits near zero would always agree"
    # Additional padding with any tokens is ignored.
    for extra in (1, 9):
        wider = np.pad(tokens, ((0, 0), (0, extra)), constant_values=7)
        again = FORWARD(params, config, wider, LENGTHS)
        for n, length in enumerate(LENGTHS):
            np.testing.assert_allclose(again[n, :length], expected[n], atol=TOLERANCE, rtol=0)

    # The same tokens again: the first row's first 7 as a prompt, the rest from the cache, one at a time.
    whole, start = expected[0], 7
    fill, step = jit(plain_decode.prefill), jit(plain_decode.decode_step)
    prefix, last = fill(params, config, jnp.asarray(tokens[:1, : start + 2]), jnp.array([start]))
    np.testing.assert_allclose(unembed(params, config, last)[0], whole[start - 1], atol=TOLERANCE, rtol=0)
    cache = plain_decode.init_decode_cache(config, 1, 2, 5, jnp.float32)
    for t in range(start, LENGTHS[0]):
        token = jnp.full((1, 2), int(tokens[0, t]))
        hidden, cache = step(params, config, prefix, cache, token, jnp.ones((1, 2), bool))
        for row in np.asarray(unembed(params, config, hidden))[0]:
            np.testing.assert_allclose(row, whole[t], atol=TOLERANCE, rtol=0)


def test_saved_folders_load_in_transformers(
    case: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    model, folder = case
    config, params = load_checkpoint(folder)
    monkeypatch.setattr("jaxrl_sql.models.formats.hf.SHARD_BYTES", 40_000)
    save_checkpoint(tmp_path / "ours", config, params)
    assert len(list((tmp_path / "ours").glob("model-*.safetensors"))) > 1
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    ours, theirs = again.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    tokens = right_padded()[:1]
    np.testing.assert_array_equal(reference_logits(again, tokens), reference_logits(model, tokens))


@pytest.mark.parametrize("name", ["qwen3-gqa-tied", "llama-llama3-gqa-tied", "gemma3-mqa-tied"])
def test_bfloat16_logits_are_within_rounding_error(tmp_path: Path, name: str) -> None:
    model = random_model(*CASES[name], torch.bfloat16)
    model.save_pretrained(tmp_path)
    config, params = load_checkpoint(tmp_path, dtype="bfloat16")
    assert params["embed"].dtype == jnp.bfloat16
    tokens = right_padded()[:1]
    ours = np.asarray(forward(params, config, jnp.asarray(tokens), jnp.array([LENGTHS[0]])))[0]
    exact = reference_logits(model.float(), tokens)[0]
    rough = reference_logits(model.to(torch.bfloat16), tokens)[0]
    # Both round differently; our error must be at most twice that of transformers' rounding.
    assert np.abs(ours - exact).mean() <= 2 * np.abs(rough - exact).mean()
