"""Adapters in PEFT's format: PEFT's read here and ours read by PEFT give the same logits on transformers' models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import forward, load_checkpoint, save_checkpoint
from jaxrl_sql.models.lora import init_adapters, merge, policy_params, save_adapters
from jaxrl_sql.runtime.hub import find_name_and_revision

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
peft = pytest.importorskip("peft", reason="needs peft: install the extra `parity`")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft asks transformers for it
]

TOLERANCE = 1e-4
TOKENS = np.random.default_rng(0).integers(0, 101, (1, 12)).astype(np.int32)
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(family: str) -> Any:
    """Build transformers' model of a family with random tensors and its preferred number of key heads."""
    import transformers

    config = transformers.AutoConfig.for_model(
        family, vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=64, tie_word_embeddings=family != "llama",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(("norm" in name and family != "gemma3_text") + 0.2 * torch.randn(tensor.shape))
    return model


def logits_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor(TOKENS, dtype=torch.long)).logits.float())


def ours(params: Any, config: Any) -> np.ndarray:
    return np.asarray(forward(params, config, TOKENS, np.array([12], np.int32)))


@pytest.fixture(params=["qwen2", "qwen3", "llama", "gemma3_text"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    model = make_model(request.param)
    model.save_pretrained(tmp_path / "base")
    return model, tmp_path / "base"


@pytest.mark.parametrize("targets", [["q", "v"], ["*"]], ids=["two", "all"])
def test_peft_loads_our_adapters_with_their_base(
    base: tuple[Any, Path], targets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = base
    plain = logits_of(model)
    config, params = load_checkpoint(folder)
    adapters = init_adapters(config, 3, 6.0, targets, jax.random.key(0))
    r = np.random.default_rng(1)
    adapters = jax.tree.map(lambda x: x + 0.1 * jnp.asarray(r.normal(size=x.shape), x.dtype), adapters)
    monkeypatch.chdir(tmp_path)
    save_adapters("adapters", config, adapters, *find_name_and_revision("base"))
    monkeypatch.chdir("/")
    theirs = logits_of(peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapters"))
    assert np.abs(theirs - plain).max() > 0.1, "the adapters have no effect"
    np.testing.assert_allclose(ours(policy_params(adapters, params), config), theirs, atol=TOLERANCE, rtol=0)
    # The export with merged adapters is an ordinary model of transformers.
    import transformers

    save_checkpoint(tmp_path / "merged", config, merge(adapters, params))
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    np.testing.assert_allclose(logits_of(merged), theirs, atol=TOLERANCE, rtol=0)
