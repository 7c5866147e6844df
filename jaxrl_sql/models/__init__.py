"""The policy: a decoder as pure functions over a nested dict of arrays.

`spec` has the configuration and the table of parameters, `layers` and `transformer` the forward pass, `paged` decoding
with a paged KV cache, `lora` adapters, `attention` the attention backends, and `families` the mapping of Hugging Face
configs. In `formats`, `hf` reads and writes checkpoint folders, `gguf` llama.cpp's files, and `tensor_files` and
`load_sharded` move tensors from files to devices.
"""

from __future__ import annotations

from jaxrl_sql.models.formats.hf import load_checkpoint, load_config, load_tokenizer, save_checkpoint
from jaxrl_sql.models.lora import Adapters, init_adapters, merge, policy_params, save_adapters
from jaxrl_sql.models.rope import Rope
from jaxrl_sql.models.spec import (
    ModelConfig,
    Norms,
    ParamSpec,
    count_params,
    init_params,
    param_shardings,
    param_specs,
    shard_params,
)
from jaxrl_sql.models.transformer import (
    forward,
    hidden_states,
    prediction_states,
    unembed,
    unembedding,
)

__all__ = [
    "Adapters",
    "ModelConfig",
    "Norms",
    "ParamSpec",
    "Rope",
    "count_params",
    "forward",
    "hidden_states",
    "init_adapters",
    "init_params",
    "load_checkpoint",
    "load_config",
    "load_tokenizer",
    "merge",
    "param_shardings",
    "param_specs",
    "policy_params",
    "prediction_states",
    "save_adapters",
    "save_checkpoint",
    "shard_params",
    "unembed",
    "unembedding",
]
