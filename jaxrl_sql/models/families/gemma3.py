"""Gemma 3, text only (270M and 1B), with sliding windows in most layers (arXiv 2503.19786).

Attention and MLP have norms before and after them, which scale by 1 + weight. Queries and keys are normed, layers with
sliding windows have their own rotary base, and embeddings are scaled by sqrt(d_model). Soft caps come from Gemma 2
(arXiv 2408.00118). Published Gemma 3 configs have no caps, but this package applies caps that are set. (Gemma 3 in
transformers applies the cap of the final logits only.)
"""

from __future__ import annotations

from jaxrl_sql.models.families.fields import (
    HfConfig,
    common_fields,
    common_values,
    read_count,
    read_number,
    read_optional_number,
    read_section,
    require_value,
)
from jaxrl_sql.models.families.rope import read_rope, scaling_fields
from jaxrl_sql.models.rope import SCALINGS
from jaxrl_sql.models.spec import ModelConfig, Norms, SlidingWindow
from jaxrl_sql.types import InputError, Record

# The values of `layer_types` in config.json.
SLIDING, FULL = "sliding_attention", "full_attention"
# Rotary bases of layers with full attention and with a sliding window.
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
# Every sixth layer has full attention.
PERIOD = 6
# Size of the sliding window, in tokens, of new models; that of the small published models.
WINDOW = 512

# Fields of ModelConfig that all models of the family share.
SWITCHES: Record = {
    "norms": Norms(is_zero_centered=True, has_post_norms=True),
    "qk_norm": True,
    "qkv_bias": False,
    "activation": "gelu_tanh",
    "scale_embeddings": True,
}


def _sliding_pattern(period: int, n_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has a sliding window, where every `period`-th has full attention."""
    return tuple((i + 1) % period > 0 for i in range(n_layers))


def new_sliding(n_layers: int) -> SlidingWindow:
    """Return the sliding window of a new model with `n_layers` layers."""
    return SlidingWindow(WINDOW, _sliding_pattern(PERIOD, n_layers), LOCAL_THETA)


def _sliding_layers(hf: HfConfig, n_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has a sliding window, from `layer_types` or `sliding_window_pattern`."""
    kinds = hf.get("layer_types")
    period = read_number(hf, "sliding_window_pattern", PERIOD)
    if period < 1:
        raise InputError(f"config.json: sliding_window_pattern is {period}, must be at least 1")
    if kinds is None:
        return _sliding_pattern(period, n_layers)
    if not isinstance(kinds, list) or len(kinds) != n_layers:
        raise InputError(f"config.json: layer_types must be a list of num_hidden_layers ({n_layers}) names")
    if unknown := [kind for kind in kinds if kind not in (SLIDING, FULL)]:
        raise InputError(f"config.json: layer_types has {unknown[0]!r}; valid are {FULL!r}, {SLIDING!r}")
    layers = tuple(kind == SLIDING for kind in kinds)
    if hf.get("sliding_window_pattern") is not None and layers != _sliding_pattern(period, n_layers):
        raise InputError(f"config.json: layer_types and sliding_window_pattern ({period}) contradict each other")
    return layers


def read_config(hf: HfConfig) -> ModelConfig:
    """Convert a `gemma3_text` config.json to a ModelConfig; raises InputError with a missing or unsupported field."""
    require_value(hf, "hidden_activation", "gelu_pytorch_tanh")
    require_value(hf, "attention_bias", supported=False)
    require_value(hf, "use_bidirectional_attention", supported=False)
    common, head_dim = common_values(hf, SWITCHES, is_tied=True, max_positions=131_072), read_count(hf, "head_dim", 256)
    # transformers 5 nests the rotary fields by kind of layer; earlier versions have fields on the top level.
    nested = read_section(hf, "rope_parameters")
    if unknown := sorted(nested.keys() - {SLIDING, FULL}):
        raise InputError(f"config.json: rope_parameters has {unknown[0]!r}; valid are {FULL!r}, {SLIDING!r}")
    sources = {f"rope_parameters.{FULL}": read_section(nested, FULL, "rope_parameters")}
    sources["rope_scaling"] = read_section(hf, "rope_scaling")
    rope = read_rope(hf, sources, "rope_theta", THETA, SCALINGS)
    sources = {f"rope_parameters.{SLIDING}": read_section(nested, SLIDING, "rope_parameters")}
    local_theta = read_rope(hf, sources, "rope_local_base_freq", LOCAL_THETA).theta
    layers = _sliding_layers(hf, common["n_layers"])
    scalar = read_number(hf, "query_pre_attn_scalar", 256)
    return ModelConfig(
        family="gemma3_text",
        n_kv_heads=read_count(hf, "num_key_value_heads", 4),
        head_dim=head_dim,
        rope=rope,
        sliding=SlidingWindow(read_count(hf, "sliding_window", 4096), layers, local_theta) if any(layers) else None,
        query_scalar=None if scalar == head_dim else scalar,
        attn_score_cap=read_optional_number(hf, "attn_logit_softcapping"),
        final_logit_cap=read_optional_number(hf, "final_logit_softcapping"),
        **common,
    )


def write_config(config: ModelConfig) -> HfConfig:
    """Convert a ModelConfig to the fields of a `gemma3_text` config.json."""
    sliding = config.sliding
    layers = sliding.layers if sliding else (False,) * config.n_layers
    local_theta = sliding.rope_theta if sliding else LOCAL_THETA
    scaling = scaling_fields(config.rope.scaling)
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": config.attn_score_cap,
        "final_logit_softcapping": config.final_logit_cap,
        "head_dim": config.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [SLIDING if slides else FULL for slides in layers],
        "query_pre_attn_scalar": config.head_dim if config.query_scalar is None else config.query_scalar,
        "rope_local_base_freq": local_theta,
        "rope_parameters": {
            FULL: {"rope_theta": config.rope.theta, **scaling},
            SLIDING: {"rope_theta": local_theta, **scaling_fields(None)},
        },
        "rope_scaling": scaling if config.rope.scaling else None,
        "rope_theta": config.rope.theta,
        "sliding_window": sliding.size if sliding else WINDOW,
        "use_bidirectional_attention": False,
        **common_fields(config),
    }
