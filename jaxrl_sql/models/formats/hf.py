"""Folders of Hugging Face form: in, and back out.

A folder (or, in alone, a GGUF file) is read tensor by tensor, each straight into its place in the stacked leaf (on a
mesh: each device's own piece), after the whole list of names and shapes has been compared with the table of weights,
so that a checkpoint of another model fails in one line that says everything that is wrong with it. Only tokenizers
need transformers, imported when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.families import FAMILIES
from jaxrl_sql.models.formats.gguf import gguf_config, gguf_name, gguf_tensors, is_gguf
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.formats.gguf_tokenizer import gguf_tokenizer
from jaxrl_sql.models.formats.load_sharded import place, place_layers, reading_threads
from jaxrl_sql.models.formats.tensor_files import (
    StoredTensor,
    is_sound,
    read_safetensors,
    refuse_broken_weights,
    write_safetensors,
)
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, first_difference, leaf_of, nest, param_specs
from jaxrl_sql.parallel.processes import gathered, is_first, wait_for_all
from jaxrl_sql.parallel.rules import sharding_of
from jaxrl_sql.runtime.tokenizer_files import read_tokenizer, save_tokenizer
from jaxrl_sql.types import InputError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
DTYPES = ("float32", "bfloat16")
SHARD_BYTES = 4 << 30
NAMES_SHOWN = 5


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises InputError when the file is absent or is none."""
    if not path.is_file():
        raise InputError(f"{path.parent}: no {path.name} (a folder of Hugging Face form is expected)")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: a JSON object is expected")
    return value


def load_config(source: str | Path) -> ModelConfig:
    """Read the ModelConfig of a folder or a GGUF file; raises InputError for an unknown family or unsupported field."""
    source = Path(source)
    if is_gguf(source):
        return gguf_config(source, read_header(source))
    hf = _read_json(source / CONFIG_FILE)
    family = hf.get("model_type")
    if family not in FAMILIES:
        valid = ", ".join(sorted(FAMILIES))
        raise InputError(f"{source / CONFIG_FILE}: model_type is {family!r}; valid are {valid}")
    try:
        return FAMILIES[family].read(hf)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _tensor_files(folder: Path) -> tuple[Path, ...]:
    """List a folder's safetensors files, by its index where it has one."""
    if (folder / INDEX_FILE).is_file():
        index = _read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise InputError(
                f"{folder / INDEX_FILE}: weight_map must say the file of each tensor: copy or fetch it again"
            )
        files = tuple(folder / name for name in sorted(set(index.values())))
    else:
        files = (folder / WEIGHTS_FILE,)
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        raise InputError(f"{folder}: no {absent[0] if absent else WEIGHTS_FILE}")
    return files


def _open_tensors(source: Path, files: ExitStack) -> tuple[ModelConfig, dict[str, StoredTensor]]:
    """Open a folder's or a GGUF file's tensors, by Hugging Face's names, until `files` closes."""

    def opened(path: Path) -> int:
        return files.enter_context(path.open("rb", buffering=0)).fileno()

    if is_gguf(source):
        header = read_header(source)
        config = gguf_config(source, header)
        return config, gguf_tensors(source, opened(source), header, config)
    config = load_config(source)
    found: dict[str, StoredTensor] = {}
    for path in _tensor_files(source):
        found |= read_safetensors(path, opened(path))
    return config, found


def _is_ignored(name: str, config: ModelConfig) -> bool:
    """Return whether a file may hold a tensor that is no weight of ours: a buffer, or a head tied to the embedding."""
    return name.endswith("rotary_emb.inv_freq") or (config.tie_embeddings and name == "lm_head.weight")


def _some(kind: str, items: Iterable[str]) -> str:
    """Return how many items of a kind there are, and the names of the first few; nothing where there are none."""
    listed = sorted(items)
    more = f", and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return f"{len(listed)} {kind} ({', '.join(listed[:NAMES_SHOWN])}{more})" if listed else ""


def _compare(source: Path, config: ModelConfig, found: dict[str, StoredTensor]) -> None:
    """Raise one InputError with every tensor that is missing, unknown, misshapen or kept in a way that is not read."""
    spell = partial(gguf_name, config=config) if is_gguf(source) else str
    expected = {name: spec.hf_shape for spec in param_specs(config) for name in spec.hf_names()}
    both = expected.keys() & found.keys()
    wrong = {name for name in both if found[name].shape != expected[name]}
    unread = {name for name in both if not found[name].is_readable}
    problems = (
        _some("missing", (spell(n) for n in expected.keys() - found.keys())),
        _some("unknown", (n for n in found.keys() - expected.keys() if not _is_ignored(n, config))),
        _some("misshapen", (f"{spell(n)} {list(found[n].shape)}, expected {list(expected[n])}" for n in wrong)),
        _some("of an unsupported type", (f"{spell(n)} {found[n].encoding.name}" for n in unread)),
    )
    if any(problems):
        said = "; ".join(problem for problem in problems if problem)
        about = "metadata" if is_gguf(source) else CONFIG_FILE
        raise InputError(f"{source}: the tensors are not those of its {about} ({config.family}): {said}")


def load_checkpoint(
    source: str | Path,
    dtype: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
    *,
    matrices: str = "",
    by_layer: bool = False,
) -> tuple[ModelConfig, PyTree]:
    """Read a Hugging Face folder or a GGUF file -> (config, parameters in `dtype`), on one device or over `mesh`.

    For a model that is not trained: matrices in the dtype `matrices`, which products narrow them to in any case, and
    by_layer: the layers are L trees and not stacked, as decoding takes them (`stacked_layers.split_layers`).

    Raises InputError for a folder without config or weights, an unknown family, an unsupported field, for weights that
    are not sound (`tensor_files.is_sound`), and for tensors that are missing, unknown or misshapen, all in one line.
    """
    source = Path(source)
    broken: set[str] = set()
    kept, narrow = (np.dtype(_checked_dtype(name)) for name in (dtype, matrices or dtype))
    with ExitStack() as files, reading_threads() as threads:
        config, found = _open_tensors(source, files)
        _compare(source, config, found)

        def load(spec: ParamSpec) -> jax.Array | list[jax.Array]:
            apart = by_layer and spec.is_stacked
            axes, shape = (spec.layer_axes, spec.layer_shape) if apart else (spec.axes, spec.shape)
            if mesh is None:
                sharding: jax.sharding.Sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            else:
                sharding = sharding_of(mesh, axes, shape, spec.name)
            read = place_layers if apart else place
            target = narrow if spec.is_matrix else kept
            return read(spec, [found[name] for name in spec.hf_names()], target, sharding, threads, broken)

        params = nest((spec, load(spec)) for spec in param_specs(config))
        refuse_broken_weights(source, broken)
        if by_layer:
            names, layers = params["layers"].keys(), zip(*params["layers"].values(), strict=True)
            params["layers"] = tuple(dict(zip(names, layer, strict=True)) for layer in layers)
        return config, params


def read_tensors(source: str | Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (Hugging Face's name, tensor) of a folder or GGUF file in the order of `param_specs`, one at a time.

    Raises InputError as `load_checkpoint` does.
    """
    source = Path(source)
    with ExitStack() as files:
        config, found = _open_tensors(source, files)
        _compare(source, config, found)
        for spec in param_specs(config):
            for name in spec.hf_names():
                rows = spec.hf_shape[0] if spec.is_matrix else 1
                tensor = found[name].read(0, rows)
                refuse_broken_weights(source, () if is_sound(tensor) else (name,))
                yield name, tensor.reshape(spec.hf_shape)


def _checked_dtype(dtype: str) -> Any:
    """Return the dtype of a name; raises InputError for one that checkpoints here are not kept in."""
    if dtype not in DTYPES:
        raise InputError(f"dtype: {dtype!r} is not supported; valid are {', '.join(DTYPES)}")
    return jnp.dtype(dtype)


def _layer(stacked: jax.Array | np.ndarray, number: int) -> jax.Array | np.ndarray:
    """Return a layer of a stacked array: on a device by one program per shape, not one per layer."""
    return _layer_on_device(stacked, number) if isinstance(stacked, jax.Array) else stacked[number]


@jax.jit
def _layer_on_device(stacked: jax.Array, number: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stacked, number, keepdims=False)


def hf_tensors(config: ModelConfig, params: PyTree, dtype: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, tensor) in the file's layout, one tensor on the host at a time.

    Raises InputError for a tensor that is not sound in `dtype` (`tensor_files.is_sound`).
    """
    for spec in param_specs(config):
        leaf = leaf_of(params, spec)
        for layer, name in enumerate(spec.hf_names()):
            tensor = gathered(_layer(leaf, layer) if spec.is_stacked else leaf).astype(dtype, copy=False)
            refuse_broken_weights(f"export to {np.dtype(dtype)}", () if is_sound(tensor) else (name,))
            flat = spec.hf_shape[::-1] if spec.hf_transposed else spec.hf_shape
            tensor = tensor.reshape(flat)
            yield name, np.ascontiguousarray(tensor.T if spec.hf_transposed else tensor)


def _write_weights(folder: Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int) -> None:
    """Write tensors as one safetensors file, or as shards of at most `shard_bytes` with their index."""
    parts: list[Path] = []
    where: dict[str, int] = {}
    held: dict[str, np.ndarray] = {}
    total = 0

    def flush() -> None:
        part = folder / f".{len(parts)}.safetensors"
        write_safetensors(part, held)
        where.update(dict.fromkeys(held, len(parts)))
        parts.append(part)
        held.clear()

    for name, tensor in tensors:
        if held and sum(t.nbytes for t in held.values()) + tensor.nbytes > shard_bytes:
            flush()
        held[name] = tensor
        total += tensor.nbytes
    flush()
    # Names hold the number of shards, known only now. What an earlier save left would be read instead: it goes.
    for old in (*folder.glob("model-*-of-*.safetensors"), folder / WEIGHTS_FILE, folder / INDEX_FILE):
        old.unlink(missing_ok=True)
    if len(parts) == 1:
        parts[0].rename(folder / WEIGHTS_FILE)
        return
    names = [f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    for part, file_name in zip(parts, names, strict=True):
        part.rename(folder / file_name)
    index = {"metadata": {"total_size": total}, "weight_map": {name: names[i] for name, i in where.items()}}
    _write_json(folder / INDEX_FILE, index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object, readable."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _generation_fields(source: str | Path | None) -> dict[str, Any]:
    """Return the generation config of a folder but for the version that wrote it; nothing where there is none."""
    if source is None or not (path := Path(source) / GENERATION_FILE).is_file():
        return {}
    return {name: value for name, value in _read_json(path).items() if name != "transformers_version"}


def stop_tokens(source: str | Path) -> list[int]:
    """Return the tokens that end an answer by a model's files, each once; nothing where they declare none.

    Of a folder that is its generation config and its config, of a GGUF file the metadata. Raises InputError for ids
    that are no whole numbers.
    """
    source = Path(source)
    if is_gguf(source):
        metadata = read_header(source).metadata if source.is_file() else {}
        declared = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    else:
        config = _read_json(source / CONFIG_FILE) if (source / CONFIG_FILE).is_file() else {}
        inner = config.get("text_config")
        parts = (_generation_fields(source), config, inner if isinstance(inner, dict) else {})
        declared = [part.get("eos_token_id") for part in parts]
    return list(dict.fromkeys(token for ids in declared for token in _token_ids(ids, source)))


def _token_ids(declared: Any, source: Path) -> list[int]:
    """Return one id or a list of them as a list; a negative id is the files' word for none."""
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if any(type(token) is not int for token in ids):
        raise InputError(f"{source}: eos_token_id is {declared!r}: a token id or a list of them is expected")
    return [token for token in ids if token >= 0]


def save_checkpoint(
    folder: str | Path,
    config: ModelConfig,
    params: PyTree,
    tokenizer: Any = None,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    source: str | Path | None = None,
    ends: Sequence[int] = (),
) -> None:
    """Write a folder that transformers loads: config, generation config, weights, and the tokenizer where given.

    source: what the model was loaded from; how its authors would have answers sampled (`generation_config.json`), and
    all ends of an answer that its files declare, are written out again. ends: further tokens that end the answers of a
    trained model. Files of an earlier save in the folder are replaced. The host holds one file of at most
    `shard_bytes`. Of several processes all call it and one writes.
    Raises InputError for an unknown dtype or family, and for a config that the family's config.json cannot express.
    """
    if config.family not in FAMILIES:
        raise InputError(f"model: family is {config.family!r}; valid are {', '.join(sorted(FAMILIES))}")
    target = _checked_dtype(dtype)
    family = FAMILIES[config.family]
    written = family.write(config)
    if difference := first_difference(config, family.read(written)):
        name, value, readable = difference
        raise InputError(f"model: family {config.family} has {name} = {readable}, not {value}")
    # Without a version, transformers warns of tokenizers of over 100,000 tokens and advises another way to cut text.
    fields = {**written, "dtype": dtype, "torch_dtype": dtype, "transformers_version": version("transformers")}
    special = {}
    if tokenizer is not None:
        ids = {name: getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        special = {name: value for name, value in ids.items() if value is not None}
    generation = {"do_sample": False, **special, **_generation_fields(source)}
    known = _token_ids(generation.get("eos_token_id"), Path(source or folder))
    declared = [*known, *(stop_tokens(source) if source is not None else ()), *ends]
    if len(all_ends := list(dict.fromkeys(declared))) > len(known):
        generation["eos_token_id"] = all_ends if len(all_ends) > 1 else all_ends[0]
    folder = Path(folder)
    tensors = hf_tensors(config, params, target)
    if not is_first():  # every process gives its pieces, one writes
        for _ in tensors:
            pass
        wait_for_all("save_checkpoint")
        return
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(folder, tensors, shard_bytes)
    _write_json(folder / CONFIG_FILE, {**fields, **special})
    _write_json(folder / GENERATION_FILE, generation)
    if tokenizer is not None:
        save_tokenizer(tokenizer, folder)
    wait_for_all("save_checkpoint")


def load_tokenizer(source: str | Path) -> Any:
    """Load the tokenizer of a folder, from disk only, or of a GGUF file; raises InputError as `read_tokenizer` does."""
    source = Path(source)
    return gguf_tokenizer(source) if is_gguf(source) else read_tokenizer(source)
