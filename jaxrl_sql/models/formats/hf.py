"""Read and write checkpoint folders in Hugging Face's format; GGUF files can be read too.

All names and shapes are first compared with the table of parameters (`spec.param_specs`), so that a checkpoint of
another model fails with one complete message. The parameters of all layers are stacked in one array, a leaf of the
tree. Each tensor of a file is read directly into its part of the leaf (on a mesh: each device's shard). Only tokenizers
need transformers, which is imported on use.
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
from jaxrl_sql.models.formats.load_sharded import load_layers, load_leaf, reading_threads
from jaxrl_sql.models.formats.tensor_files import (
    StoredTensor,
    is_sound,
    read_safetensors,
    refuse_broken_weights,
    write_safetensors,
)
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, first_difference, leaf_of, nest, param_specs
from jaxrl_sql.parallel.processes import gather_array, is_first, wait_for_all
from jaxrl_sql.parallel.rules import sharding_of
from jaxrl_sql.runtime.model_locator import refuse_missing_model
from jaxrl_sql.runtime.progress import ProgressCallback, Tally, no_progress
from jaxrl_sql.runtime.tokenizer_files import read_tokenizer, save_tokenizer
from jaxrl_sql.types import InputError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
DTYPES = ("float32", "bfloat16")
# Maximum size of a safetensors file that is written; larger models are split into several.
SHARD_BYTES = 4 << 30
# Maximum number of tensor names in an error message.
NAMES_SHOWN = 5


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises InputError if the file is missing or invalid."""
    if not path.is_file():
        raise InputError(f"{path.parent}: no {path.name} (a folder in Hugging Face's format is expected)")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: a JSON object is expected")
    return value


def load_config(source: str | Path) -> ModelConfig:
    """Read the ModelConfig of a folder or a GGUF file.

    Raises InputError for an unknown family (`model_type`) and for unsupported fields.
    """
    source = Path(source)
    refuse_missing_model(source)
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
    """Return a folder's safetensors files, from its index if it has one."""
    if (folder / INDEX_FILE).is_file():
        index = _read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise InputError(
                f"{folder / INDEX_FILE}: weight_map must name the file of each tensor: copy or fetch it again"
            )
        files = tuple(folder / name for name in sorted(set(index.values())))
    else:
        files = (folder / WEIGHTS_FILE,)
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        others = "".join(f"; give the path {path}" for path in sorted(folder.glob("*.gguf"))[:1])
        raise InputError(f"{folder}: no {absent[0] if absent else WEIGHTS_FILE}{others}")
    return files


def _open_tensors(source: Path, files: ExitStack) -> tuple[ModelConfig, dict[str, StoredTensor]]:
    """Open a folder or GGUF file -> (config, tensors by Hugging Face's names); they stay open until `files` closes."""

    def open_file(path: Path) -> int:
        return files.enter_context(path.open("rb", buffering=0)).fileno()

    refuse_missing_model(source)
    if is_gguf(source):
        header = read_header(source)
        config = gguf_config(source, header)
        return config, gguf_tensors(source, open_file(source), header, config)
    config = load_config(source)
    tensors: dict[str, StoredTensor] = {}
    for path in _tensor_files(source):
        tensors |= read_safetensors(path, open_file(path))
    return config, tensors


def _is_ignored(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor without a parameter may be ignored.

    Such tensors are the frequencies of rotary embeddings, and an output projection tied to the embedding.
    """
    return name.endswith("rotary_emb.inv_freq") or (config.tie_embeddings and name == "lm_head.weight")


def _summarize(kind: str, items: Iterable[str]) -> str:
    """Return a part of an error message: the number of items of a kind and the first few names; "" without items."""
    listed = sorted(items)
    more = f", and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return f"{len(listed)} {kind} ({', '.join(listed[:NAMES_SHOWN])}{more})" if listed else ""


def _compare(source: Path, config: ModelConfig, tensors: dict[str, StoredTensor]) -> None:
    """Compare tensors with the parameters of a config.

    Raises one InputError with all tensors that are missing, unknown, misshapen or of an unsupported type.
    """
    display_name = partial(gguf_name, config=config) if is_gguf(source) else str
    expected = {name: spec.hf_shape for spec in param_specs(config) for name in spec.hf_names()}
    common = expected.keys() & tensors.keys()
    wrong = {name for name in common if tensors[name].shape != expected[name]}
    unreadable = {name for name in common if not tensors[name].is_readable}
    problems = (
        _summarize("missing", (display_name(n) for n in expected.keys() - tensors.keys())),
        _summarize("unknown", (n for n in tensors.keys() - expected.keys() if not _is_ignored(n, config))),
        _summarize(
            "misshapen", (f"{display_name(n)} {list(tensors[n].shape)}, expected {list(expected[n])}" for n in wrong)
        ),
        _summarize("of an unsupported type", (f"{display_name(n)} {tensors[n].encoding.name}" for n in unreadable)),
    )
    if any(problems):
        message = "; ".join(problem for problem in problems if problem)
        source_part = "metadata" if is_gguf(source) else CONFIG_FILE
        raise InputError(f"{source}: the tensors do not match its {source_part} ({config.family}): {message}")


def count_tensors(config: ModelConfig) -> int:
    """Return the number of tensors in the files of a model."""
    return sum(len(spec.hf_names()) for spec in param_specs(config))


def check_weights(source: str | Path) -> None:
    """Check the configuration of a model and the names, shapes and types of its tensors, without reading the tensors.

    Raises InputError for a missing file, an unknown family, and tensors of another model.
    """
    with ExitStack() as files:
        _compare(Path(source), *_open_tensors(Path(source), files))


def load_checkpoint(
    source: str | Path,
    dtype: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
    *,
    matrices: str = "",
    by_layer: bool = False,
    on_progress: ProgressCallback = no_progress,
) -> tuple[ModelConfig, PyTree]:
    """Read a Hugging Face folder or a GGUF file -> (config, parameters in `dtype`), on one device or over `mesh`.

    dtype: of all parameters, `float32` or `bfloat16`.
    matrices: a separate dtype for matrices, to save memory; "": `dtype`. It may be narrower if the model is only used
    for inference: a matrix product casts its weight to the type of the activations, so a weight that is stored in that
    type gives the same result. Norms and biases keep `dtype`. Training leaves it empty, as updates apply to all weights
    in `dtype`.
    by_layer: return the layers as a tuple of one tree per layer, for decoding (`stacked_layers.split_layers`), instead
    of one tree of stacked arrays.
    on_progress: called with the number of tensors read so far; in total they are `count_tensors`.

    Raises InputError for a folder without config or weights, an unknown family, an unsupported field, for weights that
    are not sound (`tensor_files.is_sound`: finite and not too large), and with all tensors that are missing, unknown or
    misshapen.
    """
    source = Path(source)
    broken: set[str] = set()
    progress = Tally(on_progress)
    default_dtype, matrix_dtype = (np.dtype(_check_dtype(name)) for name in (dtype, matrices or dtype))
    with ExitStack() as files, reading_threads() as threads:
        config, tensors = _open_tensors(source, files)
        _compare(source, config, tensors)

        def load(spec: ParamSpec) -> jax.Array | list[jax.Array]:
            is_split = by_layer and spec.is_stacked
            axes, shape = (spec.layer_axes, spec.layer_shape) if is_split else (spec.axes, spec.shape)
            if mesh is None:
                sharding: jax.sharding.Sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            else:
                sharding = sharding_of(mesh, axes, shape, spec.name)
            load_tensors = load_layers if is_split else load_leaf
            leaf_dtype = matrix_dtype if spec.is_matrix else default_dtype
            stored = [tensors[name] for name in spec.hf_names()]
            loaded = load_tensors(spec, stored, leaf_dtype, sharding, threads, broken)
            progress.add(len(stored))
            return loaded

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
        config, tensors = _open_tensors(source, files)
        _compare(source, config, tensors)
        for spec in param_specs(config):
            for name in spec.hf_names():
                rows = spec.hf_shape[0] if spec.is_matrix else 1
                tensor = tensors[name].read(0, rows)
                refuse_broken_weights(source, () if is_sound(tensor) else (name,))
                yield name, tensor.reshape(spec.hf_shape)


def _check_dtype(dtype: str) -> Any:
    """Return the JAX dtype with this name; raises InputError for types that are not in DTYPES."""
    if dtype not in DTYPES:
        raise InputError(f"dtype: {dtype!r} is not supported; valid are {', '.join(DTYPES)}")
    return jnp.dtype(dtype)


def _layer(stacked: jax.Array | np.ndarray, index: int) -> jax.Array | np.ndarray:
    """Return a layer of a stacked array.

    On a device the index is an argument of the program, so that one program per shape serves all layers.
    """
    return _layer_on_device(stacked, index) if isinstance(stacked, jax.Array) else stacked[index]


@jax.jit
def _layer_on_device(stacked: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stacked, index, keepdims=False)


def hf_tensors(config: ModelConfig, params: PyTree, dtype: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (Hugging Face's name, tensor in the layout of its files), with one tensor on the host at a time.

    Raises InputError for a tensor that is not sound in `dtype` (`tensor_files.is_sound`).
    """
    for spec in param_specs(config):
        leaf = leaf_of(params, spec)
        for layer, name in enumerate(spec.hf_names()):
            tensor = gather_array(_layer(leaf, layer) if spec.is_stacked else leaf).astype(dtype, copy=False)
            refuse_broken_weights(f"export to {np.dtype(dtype)}", () if is_sound(tensor) else (name,))
            tensor = tensor.reshape(spec.hf_shape[::-1] if spec.hf_transposed else spec.hf_shape)
            yield name, np.ascontiguousarray(tensor.T if spec.hf_transposed else tensor)


def _counted(
    tensors: Iterable[tuple[str, np.ndarray]], on_progress: ProgressCallback
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors; after each was used, report the number of tensors so far."""
    for count, tensor in enumerate(tensors, start=1):
        yield tensor
        on_progress(count)


def _write_weights(folder: Path, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write tensors as one safetensors file, or as shards of at most `SHARD_BYTES` with their index."""
    shards: list[Path] = []  # files with temporary names
    shard_of: dict[str, int] = {}
    pending: dict[str, np.ndarray] = {}
    total_bytes = 0

    def flush() -> None:
        shard = folder / f".{len(shards)}.safetensors"
        write_safetensors(shard, pending)
        shard_of.update(dict.fromkeys(pending, len(shards)))
        shards.append(shard)
        pending.clear()

    for name, tensor in tensors:
        if pending and sum(t.nbytes for t in pending.values()) + tensor.nbytes > SHARD_BYTES:
            flush()
        pending[name] = tensor
        total_bytes += tensor.nbytes
    flush()
    # The final names include the number of shards, which is known only now. Weights of an earlier save are deleted,
    # because a reader would take them for a part of this model.
    for old in (*folder.glob("model-*-of-*.safetensors"), folder / WEIGHTS_FILE, folder / INDEX_FILE):
        old.unlink(missing_ok=True)
    if len(shards) == 1:
        shards[0].rename(folder / WEIGHTS_FILE)
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for shard, file_name in zip(shards, names, strict=True):
        shard.rename(folder / file_name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": {name: names[i] for name, i in shard_of.items()}}
    _write_json(folder / INDEX_FILE, index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with indentation."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _generation_fields(source: str | Path | None) -> dict[str, Any]:
    """Return the generation config of a folder without transformers_version; empty if there is no file."""
    if source is None or not (path := Path(source) / GENERATION_FILE).is_file():
        return {}
    return {name: value for name, value in _read_json(path).items() if name != "transformers_version"}


def stop_tokens(source: str | Path) -> list[int]:
    """Return the distinct ids of the tokens that end an answer according to a model's files.

    Sources are the generation config and the config of a folder, and the metadata of a GGUF file. Raises InputError
    for ids that are not whole numbers.
    """
    source = Path(source)
    if is_gguf(source):
        metadata = read_header(source).metadata if source.is_file() else {}
        declared = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    else:
        config = _read_json(source / CONFIG_FILE) if (source / CONFIG_FILE).is_file() else {}
        text_config = config.get("text_config")
        parts = (_generation_fields(source), config, text_config if isinstance(text_config, dict) else {})
        declared = [part.get("eos_token_id") for part in parts]
    return list(dict.fromkeys(token for ids in declared for token in _token_ids(ids, source)))


def _token_ids(declared: Any, source: Path) -> list[int]:
    """Return an id or a list of ids as a list, without negative ids, which mean no token."""
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
    source: str | Path | None = None,
    ends: Sequence[int] = (),
    on_progress: ProgressCallback = no_progress,
) -> None:
    """Write a folder that transformers loads: config, generation config, weights, and the tokenizer if not None.

    params: None writes no weights.
    dtype: of the written weights, `float32` or `bfloat16`.
    source: folder or file from which the model was loaded. Its generation config and its tokens that end an answer are
    written too.
    ends: ids of further tokens that end answers of a trained model.
    on_progress: called with the number of tensors written so far; in total they are `count_tensors`.

    Existing files are replaced. The host holds the tensors of one file, at most `SHARD_BYTES`, at a time. All processes
    of a run must call this function, and the first writes.
    Raises InputError for an unknown dtype or family, and for a config that the family's config.json cannot express.
    """
    if config.family not in FAMILIES:
        raise InputError(f"model: family is {config.family!r}; valid are {', '.join(sorted(FAMILIES))}")
    target_dtype = _check_dtype(dtype)
    family = FAMILIES[config.family]
    hf = family.write(config)
    if difference := first_difference(config, family.read(hf)):
        name, value, readable = difference
        raise InputError(f"model: family {config.family} has {name} = {readable}, not {value}")
    # Without a version, transformers warns about tokenizers of over 100,000 tokens and suggests another regex.
    fields = {**hf, "dtype": dtype, "torch_dtype": dtype, "transformers_version": version("transformers")}
    special_ids = {}
    if tokenizer is not None:
        ids = {name: getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        special_ids = {name: value for name, value in ids.items() if value is not None}
    generation = {"do_sample": False, **special_ids, **_generation_fields(source)}
    existing = _token_ids(generation.get("eos_token_id"), Path(source or folder))
    stop_ids = [*existing, *(stop_tokens(source) if source is not None else ()), *ends]
    if len(distinct := list(dict.fromkeys(stop_ids))) > len(existing):
        generation["eos_token_id"] = distinct if len(distinct) > 1 else distinct[0]
    folder = Path(folder)
    tensors = hf_tensors(config, params, target_dtype) if params is not None else iter(())
    if not is_first():  # the first process writes; the others take part in gathering each tensor from its shards
        for _ in tensors:
            pass
        wait_for_all("save_checkpoint")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if params is not None:
        _write_weights(folder, _counted(tensors, on_progress))
    _write_json(folder / CONFIG_FILE, {**fields, **special_ids})
    _write_json(folder / GENERATION_FILE, generation)
    if tokenizer is not None:
        save_tokenizer(tokenizer, folder)
    wait_for_all("save_checkpoint")


def load_tokenizer(source: str | Path) -> Any:
    """Load the tokenizer of a folder (without downloads) or GGUF file; raises InputError as `read_tokenizer` does."""
    source = Path(source)
    return gguf_tokenizer(source) if is_gguf(source) else read_tokenizer(source)
