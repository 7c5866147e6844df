"""Read GGUF files: metadata as ModelConfig, tensors by Hugging Face's names, dequantised while they are read.

llama.cpp's converter changes tensors, and these changes are reversed here. It interleaves the rows of Llama's query and
key weights, because llama.cpp's rotary embeddings rotate adjacent coordinates and Hugging Face's coordinates i and
i + Q/2 of a head of size Q. It adds 1 to the weights of Gemma's norms, which scale by 1 + weight. It stores the scaling
of Llama 3's rotary frequencies as a tensor of divisors. Package `gguf` dequantises; it is imported only for files with
quantised tensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxrl_sql.models.families import FAMILIES, gemma3
from jaxrl_sql.models.families.fields import check_count
from jaxrl_sql.models.formats.gguf_header import GgufHeader, TensorEntry
from jaxrl_sql.models.formats.tensor_files import BFLOAT16, Encoding, StoredTensor
from jaxrl_sql.models.rope import Rope, RopeScaling, rope_frequencies
from jaxrl_sql.models.spec import ModelConfig, param_specs
from jaxrl_sql.types import InputError, Json, Record

SUFFIX = ".gguf"
# llama.cpp's architecture -> our family.
ARCHITECTURES = {"gemma3": "gemma3_text", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# Hugging Face's name -> GGUF's, of a weight or of its part after the layer number.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Names that differ in models with post norms.
POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# The tensor of divisors of the rotary frequencies.
ROPE_FACTORS = "rope_freqs.weight"
# Parameters of the frequency scaling of Llama 3.1 to 3.3, except the factor, which varies (arXiv 2407.21783).
LLAMA3_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# llama.cpp divides scores by the root of d_model / n_heads for Gemma 3 27B, which it recognises by its number of
# layers, and by the root of head_dim for the other models.
GEMMA3_27B_LAYERS = 62
# ggml's number of each unquantised type -> (name, dtype).
UNQUANTISED = {0: ("F32", np.dtype(np.float32)), 1: ("F16", np.dtype(np.float16)), 30: ("BF16", BFLOAT16)}


def is_gguf(path: str | Path) -> bool:
    """Return whether a path is a GGUF file and not a folder."""
    return Path(path).suffix.lower() == SUFFIX


class _Metadata:
    """The metadata of a file; raises InputError with path and key for missing and unsupported values.

    The keys of the methods are without the architecture, as in `block_count` for `llama.block_count`.
    """

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.path = path
        self.values = header.metadata
        self.architecture = str(self.values.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            valid = ", ".join(sorted(ARCHITECTURES))
            raise InputError(f"{path}: architecture is {self.architecture!r}; valid are {valid}")
        if (parts := check_count(self.values.get("split.count", 1), f"{path}: metadata split.count")) > 1:
            raise InputError(f"{path}: is one of {parts} parts; merge them first (llama-gguf-split --merge)")

    def get(self, key: str, default: Json = None) -> Json:
        """Return a value of the architecture, or `default`.

        A float is returned as the shortest decimal with the same float32, as in 1e-6 instead of 9.99999997e-07.
        """
        value = self.values.get(f"{self.architecture}.{key}", default)
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def require(self, key: str) -> Json:
        """Return a value of the architecture; raises InputError if it is missing."""
        if (value := self.get(key)) is None:
            raise InputError(f"{self.path}: metadata {self.architecture}.{key} is missing")
        return value

    def count(self, key: str, default: Json = None) -> int:
        """Return a whole number of at least 1, as `get` does; raises InputError for other or missing values."""
        value = self.require(key) if default is None else self.get(key, default)
        return check_count(value, f"{self.path}: metadata {self.architecture}.{key}")

    def require_value(self, key: str, supported: Json) -> None:
        """Raise InputError if a key is present and its value is not `supported`."""
        if (value := self.get(key, supported)) != supported:
            raise InputError(
                f"{self.path}: metadata {self.architecture}.{key} is {value!r}; supported is {supported!r}"
            )


def gguf_config(path: Path, header: GgufHeader) -> ModelConfig:
    """Convert metadata to a ModelConfig, by way of Hugging Face's fields.

    Raises InputError with a missing, unknown or unsupported key.
    """
    metadata = _Metadata(path, header)
    family = ARCHITECTURES[metadata.architecture]
    n_heads, d_model = metadata.count("attention.head_count"), metadata.count("embedding_length")
    head_dim = metadata.count("attention.key_length", d_model // n_heads)
    metadata.require_value("attention.value_length", head_dim)
    metadata.require_value("rope.dimension_count", head_dim)
    metadata.require_value("expert_count", 0)
    embed = header.tensors.get("token_embd.weight")
    if embed is None:
        raise InputError(f"{path}: 1 missing (token_embd.weight)")
    theta = metadata.get("rope.freq_base", gemma3.THETA if family == "gemma3_text" else 10_000.0)
    fields = {
        "model_type": family,
        "vocab_size": embed.shape[0],
        "hidden_size": d_model,
        "num_hidden_layers": metadata.count("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "intermediate_size": metadata.count("feed_forward_length"),
        "rms_norm_eps": metadata.require("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.count("context_length"),
        "rope_theta": theta,
        "rope_scaling": _scaling(metadata, header, head_dim, theta),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    if family == "gemma3_text":
        fields |= _gemma3_fields(metadata, head_dim)
    else:
        metadata.require_value("attention.sliding_window", 0)
    try:
        config = FAMILIES[family].read(fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if config.head_dim != head_dim:
        raise InputError(f"{path}: a head size of {head_dim} is not {config.head_dim}, which family {family} has")
    return config


def _gemma3_fields(metadata: _Metadata, head_dim: int) -> Record:
    """Return the fields that only Gemma 3 has, with llama.cpp's constants for those that files omit."""
    n_layers = metadata.count("block_count")
    pattern = metadata.get("attention.sliding_window_pattern", gemma3.PERIOD)
    if isinstance(pattern, list):
        layers: Record = {"layer_types": [gemma3.SLIDING if slides else gemma3.FULL for slides in pattern]}
    else:
        layers = {"sliding_window_pattern": pattern}
    default_head_dim = metadata.count("embedding_length") // metadata.count("attention.head_count")
    return {
        **layers,
        "sliding_window": metadata.count("attention.sliding_window"),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", gemma3.LOCAL_THETA),
        "query_pre_attn_scalar": default_head_dim if n_layers == GEMMA3_27B_LAYERS else head_dim,
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
    }


def _scaling(metadata: _Metadata, header: GgufHeader, head_dim: int, theta: float) -> Record | None:
    """Return the scaling of rotary frequencies in Hugging Face's form, or None."""
    kind = metadata.get("rope.scaling.type", "none")
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(metadata, header.tensors[ROPE_FACTORS], head_dim, theta)
    if kind == "none":
        return None
    if kind != "linear":
        raise InputError(
            f"{metadata.path}: metadata {metadata.architecture}.rope.scaling.type is {kind!r}; valid: 'linear'"
        )
    return {"rope_type": "linear", "factor": metadata.require("rope.scaling.factor")}


def _llama3_scaling(metadata: _Metadata, entry: TensorEntry, head_dim: int, theta: float) -> Record:
    """Return the frequency scaling for a tensor of divisors; raises InputError unless it is Llama 3's.

    `entry` is that of the tensor ROPE_FACTORS. The divisors do not determine the three parameters of LLAMA3_BANDS
    uniquely. So the published parameters are used, and must reproduce the frequencies.
    """
    if entry.offset + 4 * math.prod(entry.shape) > metadata.path.stat().st_size:
        raise _truncation_error(metadata.path, ROPE_FACTORS)
    factors = np.fromfile(metadata.path, np.float32, math.prod(entry.shape), offset=entry.offset)
    factor = float(factors.max(initial=1.0))
    unscaled, scaled = (
        np.asarray(rope_frequencies(head_dim, Rope(theta, scaling)))
        for scaling in (None, RopeScaling("llama3", factor))
    )
    if factors.shape != unscaled.shape or not np.allclose(unscaled / factors, scaled, rtol=1e-4, atol=0.0):
        raise InputError(
            f"{metadata.path}: {ROPE_FACTORS} are not the factors of Llama 3's frequency scaling by {factor:g}"
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3_BANDS}


def gguf_name(hf_name: str, config: ModelConfig) -> str:
    """Return the name in a GGUF file of the weight with Hugging Face's name `hf_name`."""
    names = NAMES | (POST_NORM_NAMES if config.norms.has_post_norms else {})
    stem, kind = hf_name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{names[part]}.{kind}"


def gguf_tensors(path: Path, file: int, header: GgufHeader, config: ModelConfig) -> dict[str, StoredTensor]:
    """Return the tensors of an open file by Hugging Face's names; tensors without such a name keep that of the file.

    file: the open file's descriptor. Raises InputError for a truncated file, and for quantised tensors without package
    gguf.
    """
    size = os.fstat(file).st_size
    hf_names = {gguf_name(name, config): name for spec in param_specs(config) for name in spec.hf_names()}
    tensors = {}
    for name, entry in header.tensors.items():
        if name == ROPE_FACTORS:
            continue
        hf_name = hf_names.get(name, name)
        tensor = _to_tensor(path, file, entry, hf_name, config)
        rows = entry.shape[0] if len(entry.shape) > 1 else 1
        if entry.offset + rows * tensor.encoding.row_bytes > size:
            raise _truncation_error(path, name)
        tensors[hf_name] = tensor
    return tensors


def _truncation_error(path: Path, name: str) -> InputError:
    return InputError(f"{path}: not a readable GGUF file ({name} extends past its end): copy or fetch it again")


def _to_tensor(path: Path, file: int, entry: TensorEntry, hf_name: str, config: ModelConfig) -> StoredTensor:
    """Return a tensor whose reads reverse the converter's changes."""
    encoding = _encoding(path, entry)
    order = None
    if config.norms.is_zero_centered and hf_name.endswith("norm.weight"):
        encoding = encoding._replace(dtype=None, decode=_minus_one(encoding))
    if config.family == "llama" and hf_name.endswith(("q_proj.weight", "k_proj.weight")):
        pairs = np.arange(entry.shape[0]).reshape(-1, config.head_dim // 2, 2)  # the file's rows (2i, 2i + 1) of a head
        order = pairs.swapaxes(1, 2).reshape(-1)  # which are Hugging Face's (i, i + Q/2)
    return StoredTensor(path, file, entry.offset, entry.shape, encoding, order)


def _minus_one(encoding: Encoding) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the decoder of a norm stored as 1 + weight; None for an unsupported encoding."""
    decode, dtype = encoding.decode, encoding.dtype
    if decode is not None:
        return lambda raw: decode(raw) - np.float32(1)
    if dtype is not None:
        return lambda raw: raw.view(dtype).astype(np.float32) - np.float32(1)
    return None


def _encoding(path: Path, entry: TensorEntry) -> Encoding:
    """Return the encoding of a tensor's rows, without dtype and decoder if package gguf cannot dequantise it."""
    columns = entry.shape[-1] if entry.shape else 1
    if entry.ggml_type in UNQUANTISED:
        name, dtype = UNQUANTISED[entry.ggml_type]
        return Encoding(name, columns * dtype.itemsize, dtype)
    try:
        import gguf  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise InputError(f"{path}: its tensors are quantised: pip install 'jaxrl-sql[gguf]' to read them") from error
    try:
        kind = gguf.GGMLQuantizationType(entry.ggml_type)
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)  # raises an error if it is not supported
    except (ValueError, KeyError, NotImplementedError):
        return Encoding(f"ggml type {entry.ggml_type}", 0, None)
    return Encoding(kind.name, columns // block_size * block_bytes, None, lambda raw: gguf.dequantize(raw, kind))
