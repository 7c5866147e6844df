"""GGUF files out: what `gguf` reads, written for llama.cpp a tensor at a time, and read back before it is kept.

The converter's changes are made where the reader undoes them: Llama's query and key rows in pairs, 1 added to Gemma's
norms, Llama 3's stretching as a tensor of factors. Package `gguf` writes the file. The tokenizer is written in
llama.cpp's terms, and whole beside (`tokenizer.huggingface.json` of ggml's docs/gguf.md) where what is read back cuts
text otherwise.
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
    SPECIAL,
    SPLITS,
    UNUSED,
    USER_DEFINED,
    WHOLE,
    tokenizer_of,
)
from jaxrl_sql.models.rope import Rope, rope_frequencies
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, first_difference, param_specs
from jaxrl_sql.runtime.tokenizer_files import cut_alike
from jaxrl_sql.types import Fields, InputError, Record, Tokenizer

KINDS = {"f16": "F16", "q8_0": "Q8_0"}
"""What matrices are kept as; vectors, norms and biases, stay float32."""
_FILE_TYPES = {"f16": 1, "q8_0": 7}  # llama.cpp's numbers of what most of a file is
_UNKNOWN, _BYTE = 2, 6
_WIDEST = float(np.finfo(np.float16).max)


def save_gguf(
    path: str | Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, np.ndarray]],
    tokenizer: Tokenizer | None = None,
    kind: str = "f16",
    stops: Sequence[int] = (),
) -> None:
    """Write a model's tensors (Hugging Face's names and layout, in the order of `param_specs`) as a GGUF file.

    stops: further tokens that end an answer, beside the tokenizer's. The file replaces what is there once its header
    reads back as `config`. Raises InputError without package gguf, for a family that GGUF has no name for, for what
    the format cannot express, and for weights beyond float16.
    """
    names = {family: name for name, family in ARCHITECTURES.items()}
    if config.family not in names:
        raise InputError(
            f"export: GGUF has no name for family {config.family!r}; it has for {', '.join(names)}: "
            "export the Hugging Face folder instead, without --gguf"
        )
    if kind not in KINDS:
        raise InputError(f"export: {kind!r} is no kind of GGUF; valid are {', '.join(KINDS)}")
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
            for key, value in tokenizer_metadata(tokenizer, config, stops).items():
                _add(writer, key, value)
        _write(writer, config, tensors, kind)
        writer.close()
        _check(part, path, config)
        part.replace(path)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _metadata(config: ModelConfig) -> Record:
    """Return llama.cpp's metadata of a shape, keys without the architecture."""
    found: Record = {
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
        found["attention.sliding_window"] = config.sliding.size
        found["attention.sliding_window_pattern"] = list(config.sliding.layers)
        found["rope.freq_base_swa"] = float(config.sliding.rope_theta)
    if config.attn_score_cap:
        found["attn_logit_softcapping"] = float(config.attn_score_cap)
    if config.final_logit_cap:
        found["final_logit_softcapping"] = float(config.final_logit_cap)
    scaling = config.rope.scaling
    if scaling and scaling.kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
    return found


def _add(writer: Any, key: str, value: Any) -> None:
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    adders.get(type(value), writer.add_array)(key, value)


def _kept_as(spec_shape: tuple[int, ...], kind: str) -> str:
    """Return how a tensor is kept: a matrix whose rows are no whole blocks as float16, as llama.cpp has it."""
    if len(spec_shape) < 2:
        return "F32"
    return "F16" if kind == "q8_0" and spec_shape[-1] % 32 else KINDS[kind]


def _write(writer: Any, config: ModelConfig, tensors: Iterable[tuple[str, np.ndarray]], kind: str) -> None:
    """Write the list of tensors, the header and the tensors, one on the host at a time."""
    import gguf  # noqa: PLC0415 (an extra, which `save_gguf` has found)

    specs = {name: spec for spec in param_specs(config) for name in spec.hf_names()}
    extra = _rope_factors(config)
    if extra is not None:
        writer.add_tensor(ROPE_FACTORS, extra)
    for name, spec in specs.items():
        as_kind = gguf.GGMLQuantizationType[_kept_as(spec.hf_shape, kind)]
        block, block_bytes = gguf.GGML_QUANT_SIZES[as_kind]
        n_bytes = int(np.prod(spec.hf_shape)) // block * block_bytes
        dtype = np.dtype(np.float16 if as_kind == gguf.GGMLQuantizationType.F16 else np.float32)
        writer.add_tensor_info(gguf_name(name, config), spec.hf_shape, dtype, n_bytes, as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if extra is not None:
        writer.write_tensor_data(extra)
    for (name, spec), (given, tensor) in zip(specs.items(), tensors, strict=True):
        if given != name:
            raise ValueError(f"tensor {given} stands where {name} is expected")
        plain = _converted(name, tensor.astype(np.float32).reshape(spec.hf_shape), spec, config)
        as_name = _kept_as(spec.hf_shape, kind)
        if as_name != "F32" and not np.abs(plain).max(initial=0.0) <= _WIDEST:
            raise InputError(f"export: {name} holds weights beyond float16 or that are no numbers")
        writer.write_tensor_data(gguf.quantize(plain, gguf.GGMLQuantizationType[as_name]))


def _converted(name: str, tensor: np.ndarray, spec: ParamSpec, config: ModelConfig) -> np.ndarray:
    """Return a tensor as llama.cpp's graph of the family wants it."""
    if config.norms.is_zero_centered and not spec.is_matrix and name.endswith("norm.weight"):
        return tensor + np.float32(1)
    if config.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        halves = tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[-1])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    return tensor


def _rope_factors(config: ModelConfig) -> np.ndarray | None:
    """Return by how much each frequency is divided, [Q/2] float32, for Llama 3's stretching; None for the others."""
    scaling = config.rope.scaling
    if scaling is None or scaling.kind != "llama3":
        return None
    ropes = (Rope(config.rope.theta), config.rope)
    plain, stretched = (np.asarray(rope_frequencies(config.head_dim, rope)) for rope in ropes)
    return (plain / stretched).astype(np.float32)


def _check(part: Path, path: Path, config: ModelConfig) -> None:
    """Raise InputError that names the first field which the file's header does not give back."""
    if difference := first_difference(config, gguf_config(part, read_header(part))):
        name, value, readable = difference
        raise InputError(
            f"export: GGUF cannot express {name} = {value} of family {config.family} ({path.name} would read as "
            f"{readable}): export the Hugging Face folder instead, without --gguf"
        )


def tokenizer_metadata(tokenizer: Tokenizer, config: ModelConfig, stops: Sequence[int] = ()) -> Record:
    """Return a tokenizer as GGUF's metadata.

    Raises InputError for one that is no byte-level or SentencePiece BPE, or that reads back as another.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    raw: Record = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    model = raw["model"]
    if model.get("type") != "BPE":
        raise InputError(f"export: a tokenizer of kind {model.get('type')} is not written to GGUF; only BPE is")
    is_pieces = bool(model.get("byte_fallback"))
    tokens, types = _tokens(raw, config.vocab_size, is_pieces)
    found: Record = {"model": "llama" if is_pieces else "gpt2", "tokens": tokens, "token_type": types}
    if is_pieces:
        found["scores"] = [-float(i) for i in range(len(tokens))]  # earlier pieces are merged first
        found["add_space_prefix"] = _prepends(raw)
        found["pre"] = "default"
    else:
        found["merges"] = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
        found["pre"] = split_name(raw)
    ids = {key: getattr(tokenizer, f"{name}_id", None) for name, key in SPECIAL.items()}
    found |= {f"{key}_token_id": int(i) for key, i in ids.items() if i is not None}
    others = [int(i) for i in dict.fromkeys(stops) if i != ids["eos"]]
    if others and ids["eos"] is None:
        found["eos_token_id"] = others.pop(0)
    # llama.cpp has names for three tokens that end an answer.
    found |= dict(zip(("eot_token_id", "eom_token_id"), reversed(others), strict=False))
    bos = ids["bos"]
    found["add_bos_token"] = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    named = {f"tokenizer.ggml.{key}": value for key, value in found.items() if value not in ([], None)}
    if template := getattr(tokenizer, "chat_template", None):
        named["tokenizer.chat_template"] = template if isinstance(template, str) else template["default"]
    if (is_pieces or found["pre"] != "default") and cut_alike(tokenizer_of(named, Path("export")), tokenizer):
        return named
    named |= {"tokenizer.ggml.pre": "default", WHOLE: json.dumps(raw, ensure_ascii=False)}
    if not cut_alike(tokenizer_of(named, Path("export")), tokenizer):
        raise InputError(
            "export: the tokenizer cuts text in a way that GGUF cannot say: export the Hugging Face folder instead, "
            "without --gguf"
        )
    return named


def _tokens(raw: Fields, size: int, is_pieces: bool) -> tuple[list[str], list[int]]:
    """Return each id's text and llama.cpp's type of it; ids that the tokenizer leaves free are unused ones."""
    texts = dict.fromkeys(range(size), "")
    types = dict.fromkeys(range(size), UNUSED)
    for text, i in raw["model"]["vocab"].items():
        texts[i], types[i] = text, NORMAL
        if is_pieces and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[i] = _BYTE
    for added in raw.get("added_tokens", ()):
        texts[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if is_pieces and (unknown := raw["model"].get("unk_token")) is not None:
        types[raw["model"]["vocab"][unknown]] = _UNKNOWN
    if len(texts) > size:
        raise InputError(f"export: the tokenizer has {len(texts)} tokens, and the model {size}")
    return [text or f"[PAD{i}]" for i, text in sorted(texts.items())], [t for _, t in sorted(types.items())]


def split_name(raw: Fields) -> str:
    """Return llama.cpp's name of how a byte-level tokenizer cuts text, `default` for a way that it has no name for."""
    patterns = [one["pattern"] for one in _pre_tokenizers(raw.get("pre_tokenizer")) if "pattern" in one]
    composes, ignores = "NFC" in json.dumps(raw.get("normalizer")), bool(raw["model"].get("ignore_merges"))
    for name, split in SPLITS.items():
        if patterns == [{"Regex": split.pattern}] and (composes, ignores) == (split.composes, split.ignores_merges):
            return name
    return "default"


def _prepends(raw: Fields) -> bool:
    """Return whether a tokenizer of pieces puts a space before a text."""
    schemes = {one.get("prepend_scheme", "never") for one in _pre_tokenizers(raw.get("pre_tokenizer"))}
    return "Prepend" in json.dumps(raw.get("normalizer")) or schemes - {"never"} != set()


def _pre_tokenizers(part: Fields | None) -> Iterator[Fields]:
    """Yield a pre-tokenizer and those that it is made of."""
    if part:
        yield part
        for one in part.get("pretokenizers", ()):
            yield from _pre_tokenizers(one)
