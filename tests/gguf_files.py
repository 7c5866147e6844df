"""GGUF files in the form that llama.cpp's converter writes, made with package `gguf` from our models.

The converter's changes to names and weights are implemented here independently: names come from package gguf's
table, and the reader `jaxrl_sql.models.formats.gguf` has to undo the changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.formats.hf import hf_tensors

ARCHITECTURES = {"gemma3_text": "gemma3", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
NO_ARCHITECTURE = {"tokenizer", "general", "split"}


def metadata(config: ModelConfig) -> dict[str, Any]:
    """Return the converter's metadata, with keys without the architecture."""
    result: dict[str, Any] = {
        "context_length": config.max_positions,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.layer_norm_rms_epsilon": config.norms.eps,
        "rope.freq_base": config.rope.theta,
    }
    if config.family != "qwen2":
        result |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if config.family == "llama":
        result |= {"rope.dimension_count": config.head_dim, "vocab_size": config.vocab_size}
    if config.sliding:
        result["attention.sliding_window"] = config.sliding.size
    if config.final_logit_cap:
        result["final_logit_softcapping"] = config.final_logit_cap
    if config.rope.scaling and config.rope.scaling.kind == "linear":
        result |= {"rope.scaling.type": "linear", "rope.scaling.factor": config.rope.scaling.factor}
    return result


def converted(config: ModelConfig, params: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (GGUF name, tensor) with the converter's changes to Hugging Face's tensors."""
    import gguf

    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[ARCHITECTURES[config.family]]
    names = gguf.get_tensor_name_map(arch, config.n_layers)
    for hf_name, plain in hf_tensors(config, params, np.float32):
        tensor = plain
        if config.family == "llama" and hf_name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[-1])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        if config.family == "gemma3_text" and hf_name.endswith("norm.weight"):
            tensor = tensor + np.float32(1)
        yield names.get_name(hf_name, try_suffixes=(".weight", ".bias")), tensor
    scaling = config.rope.scaling
    if scaling and scaling.kind == "llama3":
        frequency = config.rope.theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        wavelength, length = 2 * np.pi / frequency, scaling.original_max_positions
        bands = scaling.high_freq_factor - scaling.low_freq_factor
        smooth = np.clip((length / wavelength - scaling.low_freq_factor) / bands, 0, 1)
        yield "rope_freqs.weight", (1 / ((1 - smooth) / scaling.factor + smooth)).astype(np.float32)


def write_gguf(
    path: Path, config: ModelConfig, params: Any, kind: str = "F32", drop: tuple[str, ...] = (), **changes: Any
) -> dict[str, np.ndarray]:
    """Write a model with matrices of type `kind` and without the tensors `drop`; return the tensors as written.

    changes: metadata by key with `__` for a dot; None omits a key.
    """
    import gguf

    quantised = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.family])
    for key, value in (metadata(config) | {k.replace("__", "."): v for k, v in changes.items()}).items():
        full = key if key.split(".")[0] in NO_ARCHITECTURE else f"{ARCHITECTURES[config.family]}.{key}"
        add(writer, full, value)
    remaining = {}
    for name, tensor in converted(config, params):
        if name in drop:
            continue
        as_kind = quantised if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        raw = gguf.quantize(tensor, as_kind)
        writer.add_tensor(name, raw, raw_dtype=as_kind)
        remaining[name] = gguf.dequantize(raw, as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return remaining


def add(writer: Any, key: str, value: Any) -> None:
    """Add a metadata value by its type."""
    if value is None:
        return
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    adders.get(type(value), writer.add_array)(key, value)
