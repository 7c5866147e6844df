"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): small trainable matrices added to frozen weights.

A weight W [*I,*O], with input axes I and output axes O, gets a pair of matrices A [*I,r] and B [r,*O] of rank r. The
layer computes x·W + (alpha / r)·x·A·B. Shapes, logical axes (and so shardings) and file names of the pairs follow from
the table of parameters (`spec.param_specs`). B starts at zero, so that the initial policy equals the base.

The base model is never copied: training and sampling pass it to the decoder with the pairs as additional entries of its
layers, and the reference policy is the base without adapters. Only an export adds the pairs to the weights, one array
at a time on the host. Files have the format of Hugging Face's PEFT. In shapes L is the number of layers.
"""

from __future__ import annotations

import fnmatch
import json
import math
import operator
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.formats.tensor_files import is_sound, refuse_broken_weights, write_safetensors
from jaxrl_sql.models.frozen import merge_params
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, param_shardings, param_specs
from jaxrl_sql.models.value import policy_part
from jaxrl_sql.parallel.rules import AnyMesh, sharding_of
from jaxrl_sql.types import InputError

# Suffix of a pair's name in a layer, after the name of its weight (`transformer`).
SUFFIX = "_lora"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
# PEFT's options that change the result, with the only supported values.
SUPPORTED_OPTIONS = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
}


@flax.struct.dataclass
class LoraPair:
    """The low-rank addition to one weight of all layers: a [L,*I,r], b [L,r,*O]."""

    a: jax.Array
    b: jax.Array


@flax.struct.dataclass
class Adapters:
    """Trainable additions to a frozen base: a pair per weight name, and their common factor alpha / r."""

    pairs: dict[str, LoraPair]
    scale: float = flax.struct.field(pytree_node=False)


class _PairSpec(NamedTuple):
    """The shapes and names of the pair of one weight (of all layers); rank: r."""

    weight: ParamSpec
    rank: int

    @property
    def leaves(self) -> tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]:
        """Return (shape, logical axes) of a [L,*I,r] and of b [L,r,*O]."""
        layers, *sizes = self.weight.shape
        stacked, *axes = self.weight.axes
        n = self.weight.n_in
        return (
            ((layers, *sizes[:n], self.rank), (stacked, *axes[:n], "rank")),
            ((layers, self.rank, *sizes[n:]), (stacked, "rank", *axes[n:])),
        )

    @property
    def module(self) -> str:
        """Return the last part of the module's name in a file, such as `q_proj`."""
        return self.weight.hf_name.split(".")[-2]

    def file_names(self, layer: int) -> tuple[str, str]:
        """Return PEFT's names of the two tensors of a layer."""
        module = self.weight.hf_name.format(layer=layer).removesuffix(".weight")
        return f"base_model.model.{module}.lora_A.weight", f"base_model.model.{module}.lora_B.weight"


def adaptable_weights(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the weights that can have adapters: the matrices of the layers."""
    return tuple(spec.path[-1] for spec in param_specs(config) if spec.is_stacked and spec.is_matrix)


def resolve_targets(config: ModelConfig, targets: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the weights that match `targets` (setting `model.lora.targets`), in the table's order.

    A target is the name of a weight such as `q`, PEFT's name of its module such as `q_proj`, a pattern of either such
    as `*`, or PEFT's `all-linear` for all weights. Raises InputError with the valid names if there are no targets, or a
    target has no match.
    """
    modules = {name: spec.module for name, spec in _pair_specs(config, adaptable_weights(config), 1).items()}
    patterns = ["*" if target == "all-linear" else target for target in targets]
    for target, pattern in zip(targets, patterns, strict=True):
        if not fnmatch.filter([*modules, *modules.values()], pattern):
            raise InputError(f"model.lora.targets: {target!r} is not a weight; valid are {_list_targets(modules)}")
    if not targets:
        raise InputError(f"model.lora.targets is empty; valid are {_list_targets(modules)}")
    return tuple(
        name
        for name, module in modules.items()
        if any(fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(module, pattern) for pattern in patterns)
    )


def _list_targets(modules: Mapping[str, str]) -> str:
    """Return the valid targets as text, from weight names and PEFT's names of their modules."""
    return f"{', '.join(modules)}, PEFT's {', '.join(modules.values())}, or *"


def _pair_specs(config: ModelConfig, names: Iterable[str], rank: int) -> dict[str, _PairSpec]:
    """Return the specs of the pairs of the named weights, by name, in the table's order."""
    targets = set(names)
    specs = {spec.path[-1]: spec for spec in param_specs(config) if spec.is_stacked}
    return {name: _PairSpec(spec, rank) for name, spec in specs.items() if name in targets}


def _place(leaf: Any, axes: tuple[str, ...], what: str, mesh: jax.sharding.Mesh | None) -> jax.Array:
    """Put a leaf on the default device, or on the mesh with the sharding of its logical axes.

    `what`: its name, for the error if the mesh does not divide its shape.
    """
    return jnp.asarray(leaf) if mesh is None else jax.device_put(leaf, sharding_of(mesh, axes, leaf.shape, what))


def init_adapters(
    config: ModelConfig,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    key: jax.Array,
    mesh: jax.sharding.Mesh | None = None,
) -> Adapters:
    """Initialise adapters in float32, for any dtype of the base.

    A is normal with variance 1 / (3 fan-in), as in PEFT, so that the same learning rates apply; B is zero. The values
    of a pair depend on the key and its name only. Raises InputError for unknown targets.
    """
    pairs = {}
    for name, spec in _pair_specs(config, resolve_targets(config, targets), rank).items():
        (a_shape, a_axes), (b_shape, b_axes) = spec.leaves
        std = 1.0 / math.sqrt(3 * spec.weight.hf_shape[1])
        a = std * jax.random.normal(jax.random.fold_in(key, zlib.crc32(name.encode())), a_shape, jnp.float32)
        pairs[name] = LoraPair(
            _place(a, a_axes, f"{name}.a", mesh),
            _place(np.zeros(b_shape, np.float32), b_axes, f"{name}.b", mesh),
        )
    return Adapters(pairs, alpha / rank)


def adapter_shardings(config: ModelConfig, rank: int, alpha: float, targets: Sequence[str], mesh: AnyMesh) -> Adapters:
    """Return the shardings of adapters, as a tree; raises InputError as `init_adapters` does."""
    pairs = {}
    for name, spec in _pair_specs(config, resolve_targets(config, targets), rank).items():
        a, b = (sharding_of(mesh, axes, shape, name) for shape, axes in spec.leaves)
        pairs[name] = LoraPair(a, b)  # type: ignore[arg-type] # a tree of shardings
    return Adapters(pairs, alpha / rank)


def count_adapters(config: ModelConfig, rank: int, targets: Sequence[str], mesh: AnyMesh) -> int:
    """Return the number of adapter parameters per device of a mesh; raises InputError as `init_adapters` does."""
    specs = _pair_specs(config, resolve_targets(config, targets), rank)
    leaves = [(name, shape, axes) for name, spec in specs.items() for shape, axes in spec.leaves]
    return sum(math.prod(sharding_of(mesh, axes, shape, name).shard_shape(shape)) for name, shape, axes in leaves)


def policy_shardings(config: ModelConfig, policy: PyTree, mesh: AnyMesh) -> PyTree:
    """Return the shardings of the decoder's parameters with adapters (as `policy_params` returns them), as a tree.

    Raises InputError as `param_shardings` does.
    """
    base = param_shardings(config, mesh)
    pairs = {name: pair for name, pair in policy["layers"].items() if isinstance(pair, LoraPair)}
    if not pairs:
        return base
    rank = next(iter(pairs.values())).a.shape[-1]
    shardings = {}
    for name, spec in _pair_specs(config, [name.removesuffix(SUFFIX) for name in pairs], rank).items():
        a, b = (sharding_of(mesh, axes, shape, name) for shape, axes in spec.leaves)
        shardings[name + SUFFIX] = LoraPair(a, b)  # type: ignore[arg-type] # a tree of shardings
    return {**base, "layers": {**base["layers"], **shardings}}


def policy_params(trainable: PyTree, frozen: PyTree) -> PyTree:
    """Return the parameters for the decoder: `trainable`, or `frozen` combined with `trainable`.

    `frozen` is None if all weights are trained, and then `trainable` is returned. Otherwise `frozen` is the base model
    and `trainable` its adapters, or None for no adapters; or `frozen` are the weights that the setting `model.frozen`
    names and `trainable` the others. Leaves of the base are not copied, and its layers may be a tuple of trees
    (`stacked_layers`). B is multiplied by alpha / r, so that the decoder needs no scale.
    """
    trainable = policy_part(trainable)
    if frozen is None:
        return trainable
    if trainable is None:
        return frozen
    if not isinstance(trainable, Adapters):
        return merge_params(trainable, frozen)
    pairs = {name + SUFFIX: LoraPair(pair.a, trainable.scale * pair.b) for name, pair in trainable.pairs.items()}
    layers = frozen["layers"]
    if isinstance(layers, tuple):
        by_layer = (jax.tree.map(operator.itemgetter(i), pairs) for i in range(len(layers)))
        return {**frozen, "layers": tuple({**layer, **pair} for layer, pair in zip(layers, by_layer, strict=True))}
    return {**frozen, "layers": {**layers, **pairs}}


def merge(trainable: PyTree, frozen: PyTree) -> PyTree:
    """Return equivalent parameters without adapters, for an export.

    Weights with adapters become W + (alpha / r)·A·B in float32 and are moved to the host, one array at a time. Other
    trainable parameters are combined as `policy_params` does.
    """
    trainable = policy_part(trainable)
    if not isinstance(trainable, Adapters):
        return policy_params(trainable, frozen)
    layers = {
        name: jax.device_get(_add_pair(leaf, trainable.pairs[name], trainable.scale))
        if name in trainable.pairs
        else leaf
        for name, leaf in frozen["layers"].items()
    }
    return {**frozen, "layers": layers}


@jax.jit
def _add_pair(weight: jax.Array, pair: LoraPair, scale: jax.Array) -> jax.Array:
    """Return W + scale·A·B [L,*I,*O] in float32."""
    product = jax.vmap(lambda a, b: jnp.tensordot(a, b, 1, precision="highest"))(pair.a, pair.b)
    return weight.astype(jnp.float32) + scale * product


def save_adapters(
    folder: str | Path, config: ModelConfig, adapters: Adapters, base: str = "", revision: str = ""
) -> None:
    """Write adapters in PEFT's format, `adapter_config.json` and `adapter_model.safetensors`.

    `base` and `revision` are the name and the commit by which PEFT loads their model
    (`hub.find_name_and_revision`). Existing files are replaced.
    """
    rank = next(iter(adapters.pairs.values())).a.shape[-1]
    specs = _pair_specs(config, adapters.pairs, rank)
    tensors: dict[str, np.ndarray] = {}
    for name, spec in specs.items():
        n_out, n_in = spec.weight.hf_shape
        a = np.asarray(adapters.pairs[name].a, np.float32).reshape(-1, n_in, rank)
        b = np.asarray(adapters.pairs[name].b, np.float32).reshape(-1, rank, n_out)
        for layer in range(config.n_layers):
            names = spec.file_names(layer)
            tensors |= {file: np.ascontiguousarray(x[layer].T) for file, x in zip(names, (a, b), strict=True)}
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "revision": revision or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": adapters.scale * rank,
        "lora_dropout": 0.0,
        "target_modules": [spec.module for spec in specs.values()],
        **SUPPORTED_OPTIONS,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS_FILE, tensors)
    (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_adapters(folder: str | Path, config: ModelConfig, mesh: jax.sharding.Mesh | None = None) -> Adapters:
    """Read adapters in PEFT's format for a model of this config, on one device or sharded over `mesh`.

    Raises InputError when the folder has none, for unsupported options (DoRA, rank-stabilised scaling, trained biases,
    …), and when tensors do not fit the model or are not finite.
    """
    folder = Path(folder)
    try:
        fields = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS_FILE)
        rank, alpha = int(fields["r"]), float(fields["lora_alpha"])
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise InputError(
            f"{folder}: no adapters in PEFT's format: {error}; name a folder with {CONFIG_FILE}, as a run's adapters/"
        ) from error
    for key, supported in SUPPORTED_OPTIONS.items():
        if fields.get(key) and fields[key] != supported:
            raise InputError(f"{folder / CONFIG_FILE}: {key} is {fields[key]!r}, which is not supported")
    specs = {
        name: spec
        for name, spec in _pair_specs(config, adaptable_weights(config), rank).items()
        if any(file in tensors for layer in range(config.n_layers) for file in spec.file_names(layer))
    }
    _compare(folder, specs.values(), tensors)
    broken = [name for name, tensor in tensors.items() if not is_sound(tensor)]
    refuse_broken_weights(folder, broken if math.isfinite(alpha) else ["lora_alpha"])
    pairs = {}
    for name, spec in specs.items():
        files = [spec.file_names(layer) for layer in range(config.n_layers)]
        leaves = [
            _place(np.stack([tensors[pair[i]].T for pair in files], dtype=np.float32).reshape(shape), axes, name, mesh)
            for i, (shape, axes) in enumerate(spec.leaves)
        ]
        pairs[name] = LoraPair(*leaves)
    return Adapters(pairs, alpha / rank)


def _compare(folder: Path, specs: Iterable[_PairSpec], tensors: dict[str, np.ndarray]) -> None:
    """Raise InputError with the first tensor that is missing, has a wrong shape, or is unknown."""
    expected: dict[str, tuple[int, int]] = {}
    for spec in specs:
        n_out, n_in = spec.weight.hf_shape
        for layer in range(spec.weight.shape[0]):
            expected |= dict(zip(spec.file_names(layer), ((spec.rank, n_in), (n_out, spec.rank)), strict=True))
    where = f"{folder / WEIGHTS_FILE}: the adapters are not of this model"
    for name, shape in expected.items():
        if name not in tensors:
            raise InputError(f"{where}: {name} is missing")
        if tensors[name].shape != shape:
            raise InputError(f"{where}: {name} is {list(tensors[name].shape)}, expected {list(shape)}")
    if unknown := sorted(tensors.keys() - expected.keys()):
        raise InputError(f"{where}: {unknown[0]} is unknown")
    if not expected:
        raise InputError(f"{where}: no tensor has a known name")
