"""Published configs of Llama and Gemma in both spellings; unknown and contradictory fields are errors of one line."""

from __future__ import annotations

from typing import Any

import pytest

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.config.fields import fields_of
from jaxrl_sql.models import ModelConfig, Rope
from jaxrl_sql.models.families import FAMILIES
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.types import InputError

SLIDING, FULL = "sliding_attention", "full_attention"
# As published, without fields that do not affect the model, except a few that the reader must ignore.
LLAMA32_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "a_field_of_tomorrow": {"that": "changes nothing that is known"},
}
GEMMA3_270M: dict[str, Any] = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "layer_types": ([SLIDING] * 5 + [FULL]) * 3,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_bidirectional_attention": False,
    "vocab_size": 262144,
}


def read(hf: dict[str, Any], **changes: Any) -> ModelConfig:
    """Read a config with changed fields; None removes a field."""
    merged = {name: value for name, value in (hf | changes).items() if value is not None}
    return FAMILIES[merged["model_type"]].read(merged)


def test_llama_config_as_published_and_as_transformers_5_writes_it() -> None:
    config = read(LLAMA32_1B)
    assert config.rope.scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
    assert (config.rope.theta, config.sliding, config.norms.is_zero_centered) == (5e5, None, False)
    nested = {**LLAMA32_1B["rope_scaling"], "rope_theta": 500000.0}
    assert read(LLAMA32_1B, rope_parameters=nested, rope_scaling=None, rope_theta=None) == config
    assert read(LLAMA32_1B, rope_parameters=nested) == config
    assert read(LLAMA32_1B, head_dim=None) == config, "the default head size is not width divided by heads"


def test_gemma_config_as_published_in_old_form_and_by_transformers_5() -> None:
    config = read(GEMMA3_270M)
    assert config.sliding == SlidingWindow(512, ((True,) * 5 + (False,)) * 3, 1e4)
    assert (config.rope.theta, config.rope.scaling, config.query_scalar) == (1e6, None, None)
    assert config.norms.is_zero_centered
    assert config.norms.has_post_norms
    assert config.scale_embeddings
    assert config.tie_embeddings
    assert config.activation == "gelu_tanh"
    assert read(GEMMA3_270M, layer_types=None, sliding_window_pattern=6) == config
    assert read(GEMMA3_270M, layer_types=None) == config
    every_third = read(GEMMA3_270M, layer_types=None, sliding_window_pattern=3).sliding
    assert every_third is not None
    assert every_third.layers == (True, True, False) * 6
    nested = {
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
        FULL: {"rope_theta": 1000000.0, "rope_type": "default"},
    }
    assert read(GEMMA3_270M, rope_parameters=nested, rope_theta=None, rope_local_base_freq=None) == config
    stretched = read(GEMMA3_270M, rope_scaling={"factor": 8.0, "rope_type": "linear"})
    assert stretched.rope.scaling == RopeScaling("linear", 8.0)
    assert stretched.sliding == config.sliding, "layers without full attention are scaled"


def test_query_scale_and_caps_are_read() -> None:
    config = read(GEMMA3_270M, query_pre_attn_scalar=168, attn_logit_softcapping=50, final_logit_softcapping=30.0)
    assert (config.query_scalar, config.attn_score_cap, config.final_logit_cap) == (168, 50.0, 30.0)


@pytest.mark.parametrize("hf", [LLAMA32_1B, GEMMA3_270M], ids=["llama", "gemma3"])
def test_published_configs_round_trip(hf: dict[str, Any]) -> None:
    config = read(hf)
    written = FAMILIES[config.family].write(config)
    assert read(written) == config
    # Fields that both spellings contain have the value that was read.
    same = written.keys() & hf.keys() - {"a_field_of_tomorrow"}
    assert len(same) > 15
    assert {name: written[name] for name in same} == {name: hf[name] for name in same}


@pytest.mark.parametrize(
    ("hf", "changes", "message"),
    [
        (LLAMA32_1B, {"mlp_bias": True}, "mlp_bias is True; supported is False"),
        (LLAMA32_1B, {"attention_bias": True}, "attention_bias is True"),
        (
            LLAMA32_1B,
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_scaling of type 'yarn' is not supported; valid: 'default', 'linear', 'llama3'",
        ),
        (
            LLAMA32_1B,
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling.low_freq_factor is missing",
        ),
        (
            LLAMA32_1B,
            {"rope_scaling": {"rope_type": "linear", "factor": "8"}},
            "rope_scaling.factor is '8', must be a number",
        ),
        (
            LLAMA32_1B,
            {"rope_scaling": {"type": "linear", "factor": 8.0, "partial_rotary_factor": 0.5}},
            "rope_scaling of type 'linear' has partial_rotary_factor; valid: factor, rope_theta, rope_type, type",
        ),
        (
            LLAMA32_1B,
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            "rope_scaling and rope_parameters contradict each other",
        ),
        (
            LLAMA32_1B,
            {"rope_parameters": {**LLAMA32_1B["rope_scaling"], "rope_theta": 1.0}},
            r"rope_theta and rope_parameters.rope_theta contradict each other \(500000.0 and 1.0\)",
        ),
        (LLAMA32_1B, {"rope_scaling": "llama3"}, "field rope_scaling is 'llama3', must be an object"),
        (GEMMA3_270M, {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; supported is 'gelu_pytorch_tanh'"),
        (GEMMA3_270M, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (GEMMA3_270M, {"layer_types": [FULL] * 17 + ["chunked"]}, "layer_types has 'chunked'; valid are 'full_att"),
        (GEMMA3_270M, {"layer_types": [FULL] * 17}, r"layer_types must be a list of num_hidden_layers \(18\)"),
        (GEMMA3_270M, {"sliding_window_pattern": 5}, r"layer_types and sliding_window_pattern \(5\) contradict"),
        (GEMMA3_270M, {"sliding_window_pattern": 0}, "sliding_window_pattern is 0, must be at least 1"),
        (GEMMA3_270M, {"sliding_window": 0}, "sliding_window is 0, must be a whole number of at least 1"),
        (GEMMA3_270M, {"final_logit_softcapping": "30"}, "final_logit_softcapping is '30', must be a number"),
        (
            GEMMA3_270M,
            {"rope_parameters": {"rope_theta": 1e6}},
            "rope_parameters has 'rope_theta'; valid are 'full_attention', 'sliding_attention'",
        ),
        (
            GEMMA3_270M,
            {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0}}},
            "rope_parameters.sliding_attention of type 'linear' is not supported; valid: 'default'",
        ),
        (
            GEMMA3_270M,
            {"rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 5.0}}},
            "rope_local_base_freq and rope_parameters.sliding_attention.rope_theta contradict",
        ),
    ],
)
def test_unsupported_and_contradictory_fields_are_named(
    hf: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(hf, **changes)
    assert "\n" not in str(caught.value)


def test_new_model_of_every_family_can_be_saved() -> None:
    assert fields_of(TrainConfig)["model.family"].rule == tuple(FAMILIES)
    for name, family in FAMILIES.items():
        config = ModelConfig(
            *(name, 64, 32, 7, 4, 2, 8, 48, Rope(1e4)),
            tie_embeddings=True,
            max_positions=128,
            sliding=family.new_sliding(7) if family.new_sliding else None,
            **family.switches,
        )
        assert family.read(family.write(config)) == config
