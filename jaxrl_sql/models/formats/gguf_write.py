"""Write GGUF files for llama.cpp, one tensor at a time, and verify the header before the file replaces an old file.

The changes of llama.cpp's converter are applied, which our module `formats.gguf` reverses: the rows of Llama's query
and key weights are interleaved, 1 is added to the weights of Gemma's norms, and Llama 3's frequency scaling becomes a
tensor of divisors. Package `gguf` writes the file. The tokenizer is written in llama.cpp's form. If that form does not
reproduce its tokenization, the complete tokenizer.json is added (`tokenizer.huggingface.json` of ggml's docs/gguf.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_sql.models.formats.gguf import ARCHITECTURES, ROPE_FACTORS, gguf_config, gguf_name
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.formats.gguf_tokenizer import (
    CONTROL,
    NORMAL,
    OWN_TEMPLATE,
    SPECIAL,
    SPLITS,
    TEMPLATE,
    TOKENIZER_JSON,
    UNUSED,
    USER_DEFINED,
    tokenizer_of,
)
from jaxrl_sql.models.rope import Rope, rope_frequencies
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, first_difference, param_specs
from jaxrl_sql.runtime.tokenizer_files import has_equal_tokens
from jaxrl_sql.types import Fields, InputError, Record, Tokenizer

KINDS = {"f16": "F16", "q8_0": "Q8_0"}
"""Types of matrices; vectors (norms and biases) are float32."""
_FILE_TYPES = {"f16": 1, "q8_0": 7}  # llama.cpp's file types, by the type of most tensors
_UNKNOWN, _BYTE = 2, 6  # further values of tokenizer.ggml.token_type
_MAX_FLOAT16 = float(np.finfo(np.float16).max)
_BLOCK_SIZE = 32  # numbers per block of q8_0


def save_gguf(
    path: str | Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, np.ndarray]],
    tokenizer: Tokenizer | None = None,
    kind: str = "f16",
    stops: Sequence[int] = (),
    chat_template: str = "",
) -> None:
    """Write a model's tensors (Hugging Face's names and layout, in the order of `param_specs`) as a GGUF file.

    kind: type of the matrices, a key of KINDS.
    stops: ids of tokens that end an answer, in addition to the tokenizer's.
    chat_template: a template for other programs. It replaces the tokenizer's own, which is stored under a separate key
    that only this package reads. "": the tokenizer's own for all programs.

    An existing file is replaced after the new header has been read back and equals `config`. Raises InputError without
    package gguf, for a family without a GGUF name, for a config that the format cannot express, and for weights out of
    the range of float16.
    """
    names = {family: name for name, family in ARCHITECTURES.items()}
    if config.family not in names:
        raise InputError(
            f"export: GGUF has no name for family {config.family!r}; supported are {', '.join(names)}: "
            "export the Hugging Face folder instead, without --gguf"
        )
    if kind not in KINDS:
        raise InputError(f"export: {kind!r} is not a kind of GGUF; valid are {', '.join(KINDS)}")
    try:
        import gguf  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise InputError("export: GGUF files are written by package gguf: pip install 'jaxrl-sql[gguf]'") from error
    path = Path(path)
    part = path.with_name(f".part-{path.name}")
    writer = gguf.GGUFWriter(part, names[config.family])
    try:
        writer.add_name(path.stem)
        writer.add_file_type(_FILE_TYPES[kind])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in _metadata(config).items():
            _add(writer, f"{names[config.family]}.{key}", value)
        if tokenizer is not None:
            metadata = tokenizer_metadata(tokenizer, config, stops)
            if chat_template:
                metadata |= {OWN_TEMPLATE: metadata[TEMPLATE], TEMPLATE: chat_template}
            for key, value in metadata.items():
                _add(writer, key, value)
        _write(writer, config, tensors, kind)
        writer.close()
        _check(part, path, config)
        part.replace(path)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _metadata(config: ModelConfig) -> Record:
    """Return llama.cpp's metadata of a config; the keys are without the architecture, which precedes them in a file."""
    metadata: Record = {
        "context_length": config.max_positions,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.norms.eps),
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope.theta),
    }
    if config.sliding:
        metadata["attention.sliding_window"] = config.sliding.size
        metadata["attention.sliding_window_pattern"] = list(config.sliding.layers)
        metadata["rope.freq_base_swa"] = float(config.sliding.rope_theta)
    if config.attn_score_cap:
        metadata["attn_logit_softcapping"] = float(config.attn_score_cap)
    if config.final_logit_cap:
        metadata["final_logit_softcapping"] = float(config.final_logit_cap)
    scaling = config.rope.scaling
    if scaling and scaling.kind == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
    return metadata


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a value to the metadata with the method for its type."""
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    adders.get(type(value), writer.add_array)(key, value)


def _tensor_type(shape: tuple[int, ...], kind: str) -> str:
    """Return the ggml type of a tensor of Hugging Face's shape.

    As in llama.cpp it is float16, instead of q8_0, for matrices whose rows cannot be divided into whole blocks.
    """
    if len(shape) < 2:
        return "F32"
    return "F16" if kind == "q8_0" and shape[-1] % _BLOCK_SIZE else KINDS[kind]


def _write(writer: Any, config: ModelConfig, tensors: Iterable[tuple[str, np.ndarray]], kind: str) -> None:
    """Write tensor entries, header and tensors, with one tensor on the host at a time."""
    import gguf  # noqa: PLC0415 (an extra; `save_gguf` checked it)

    specs = {name: spec for spec in param_specs(config) for name in spec.hf_names()}
    rope_factors = _rope_factors(config)
    if rope_factors is not None:
        writer.add_tensor(ROPE_FACTORS, rope_factors)
    for name, spec in specs.items():
        tensor_type = gguf.GGMLQuantizationType[_tensor_type(spec.hf_shape, kind)]
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
        n_bytes = int(np.prod(spec.hf_shape)) // block_size * block_bytes
        dtype = np.dtype(np.float16 if tensor_type == gguf.GGMLQuantizationType.F16 else np.float32)
        writer.add_tensor_info(gguf_name(name, config), spec.hf_shape, dtype, n_bytes, tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if rope_factors is not None:
        writer.write_tensor_data(rope_factors)
    for (name, spec), (tensor_name, tensor) in zip(specs.items(), tensors, strict=True):
        if tensor_name != name:
            raise ValueError(f"tensor {name} is expected, not {tensor_name}")
        converted = _convert(name, tensor.astype(np.float32).reshape(spec.hf_shape), spec, config)
        type_name = _tensor_type(spec.hf_shape, kind)
        if type_name != "F32" and not np.abs(converted).max(initial=0.0) <= _MAX_FLOAT16:
            raise InputError(f"export: {name} has weights that are NaN or out of the range of float16")
        writer.write_tensor_data(gguf.quantize(converted, gguf.GGMLQuantizationType[type_name]))


def _convert(name: str, tensor: np.ndarray, spec: ParamSpec, config: ModelConfig) -> np.ndarray:
    """Return a tensor with the changes of llama.cpp's converter for the family (see the module's docstring)."""
    if config.norms.is_zero_centered and not spec.is_matrix and name.endswith("norm.weight"):
        return tensor + np.float32(1)
    if config.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        halves = tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[-1])  # of the rows of each head
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    return tensor


def _rope_factors(config: ModelConfig) -> np.ndarray | None:
    """Return the divisors of the frequencies, [Q/2] float32, for Llama 3's scaling, else None."""
    scaling = config.rope.scaling
    if scaling is None or scaling.kind != "llama3":
        return None
    ropes = (Rope(config.rope.theta), config.rope)
    unscaled, scaled = (np.asarray(rope_frequencies(config.head_dim, rope)) for rope in ropes)
    return (unscaled / scaled).astype(np.float32)


def _check(part: Path, path: Path, config: ModelConfig) -> None:
    """Raise InputError with the first field of `config` that the header of the file `part` does not reproduce.

    `path`: the file's final path, for the message.
    """
    if difference := first_difference(config, gguf_config(part, read_header(part))):
        name, value, readable = difference
        raise InputError(
            f"export: GGUF cannot express {name} = {value} of family {config.family} ({path.name} would read as "
            f"{readable}): export the Hugging Face folder instead, without --gguf"
        )


def tokenizer_metadata(tokenizer: Tokenizer, config: ModelConfig, stops: Sequence[int] = ()) -> Record:
    """Return a tokenizer as metadata of GGUF, with complete keys; stops: ids of further tokens that end an answer.

    Raises InputError unless it is a byte-level or SentencePiece BPE whose tokenization the metadata reproduce.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    raw: Record = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    model = raw["model"]
    if model.get("type") != "BPE":
        raise InputError(f"export: a tokenizer of kind {model.get('type')} is not written to GGUF; only BPE is")
    is_pieces = bool(model.get("byte_fallback"))
    tokens, types = _tokens(raw, config.vocab_size, is_pieces)
    metadata: Record = {"model": "llama" if is_pieces else "gpt2", "tokens": tokens, "token_type": types}
    if is_pieces:
        metadata["scores"] = [-float(i) for i in range(len(tokens))]  # lower ids are merged first
        metadata["add_space_prefix"] = _prepends(raw)
        metadata["pre"] = "default"
    else:
        metadata["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        metadata["pre"] = split_name(raw)
    ids = {key: getattr(tokenizer, f"{name}_id", None) for name, key in SPECIAL.items()}
    metadata |= {f"{key}_token_id": int(i) for key, i in ids.items() if i is not None}
    other_stops = [int(i) for i in dict.fromkeys(stops) if i != ids["eos"]]
    if other_stops and ids["eos"] is None:
        metadata["eos_token_id"] = other_stops.pop(0)
    # llama.cpp has keys for three tokens that end an answer; of more, the last are written.
    metadata |= dict(zip(("eot_token_id", "eom_token_id"), reversed(other_stops), strict=False))
    bos = ids["bos"]
    metadata["add_bos_token"] = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    tokenizer_fields = {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value not in ([], None)}
    if template := getattr(tokenizer, "chat_template", None):
        tokenizer_fields[TEMPLATE] = template if isinstance(template, str) else template["default"]
    if (is_pieces or metadata["pre"] != "default") and has_equal_tokens(
        tokenizer_of(tokenizer_fields, Path("export")), tokenizer
    ):
        return tokenizer_fields
    # llama.cpp's form does not reproduce the tokenizer, so the complete tokenizer.json is added.
    tokenizer_fields |= {"tokenizer.ggml.pre": "default", TOKENIZER_JSON: json.dumps(raw, ensure_ascii=False)}
    if not has_equal_tokens(tokenizer_of(tokenizer_fields, Path("export")), tokenizer):
        raise InputError(
            "export: GGUF cannot express how the tokenizer splits text: export the Hugging Face folder "
            "instead, without --gguf"
        )
    return tokenizer_fields


def _tokens(raw: Fields, vocab_size: int, is_pieces: bool) -> tuple[list[str], list[int]]:
    """Return the text and llama.cpp's type of each id, as two lists; ids without a token are unused.

    raw: the tokenizer.json; vocab_size: the model's; is_pieces: whether it is a SentencePiece tokenizer.
    """
    texts = dict.fromkeys(range(vocab_size), "")
    types = dict.fromkeys(range(vocab_size), UNUSED)
    for text, i in raw["model"]["vocab"].items():
        texts[i], types[i] = text, NORMAL
        if is_pieces and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):  # such as <0x0A>
            types[i] = _BYTE
    for added in raw.get("added_tokens", ()):
        texts[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if is_pieces and (unknown := raw["model"].get("unk_token")) is not None:
        types[raw["model"]["vocab"][unknown]] = _UNKNOWN
    if len(texts) > vocab_size:
        raise InputError(f"export: the tokenizer has {len(texts)} tokens, and the model {vocab_size}")
    return [text or f"[PAD{i}]" for i, text in sorted(texts.items())], [t for _, t in sorted(types.items())]


def split_name(raw: Fields) -> str:
    """Return llama.cpp's name of a byte-level tokenizer's pre-tokenization, or `default` if it has no name.

    raw: the tokenizer.json.
    """
    patterns = [part["pattern"] for part in _pre_tokenizers(raw.get("pre_tokenizer")) if "pattern" in part]
    composes, ignores = "NFC" in json.dumps(raw.get("normalizer")), bool(raw["model"].get("ignore_merges"))
    for name, split in SPLITS.items():
        if patterns == [{"Regex": split.pattern}] and (composes, ignores) == (split.composes, split.ignores_merges):
            return name
    return "default"


def _prepends(raw: Fields) -> bool:
    """Return whether a SentencePiece tokenizer prepends a space to a text."""
    schemes = {part.get("prepend_scheme", "never") for part in _pre_tokenizers(raw.get("pre_tokenizer"))}
    return "Prepend" in json.dumps(raw.get("normalizer")) or schemes - {"never"} != set()


def _pre_tokenizers(part: Fields | None) -> Iterator[Fields]:
    """Yield a pre-tokenizer of a tokenizer.json and its parts, recursively; nothing for None."""
    if part:
        yield part
        for inner in part.get("pretokenizers", ()):
            yield from _pre_tokenizers(inner)
