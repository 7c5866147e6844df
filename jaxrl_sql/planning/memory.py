"""Estimate the bytes on the fullest device by formula, without compilation and without devices.

Weights, optimizer, reference and caches are exact: they follow from the table of weights, its shardings and the
engine's block sizes. The temporaries of a program are an estimate; docs/explanation/scaling.md compares it with the
compiler's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from jaxrl_sql.config import ModelConfigSection, OptimConfig, RolloutConfig, WorkloadSections
from jaxrl_sql.models import ModelConfig, param_shardings, param_specs
from jaxrl_sql.models.attention import amx, for_platform, xla
from jaxrl_sql.models.attention.paged import POOL
from jaxrl_sql.models.flops import layer_weights
from jaxrl_sql.models.frozen import split_specs
from jaxrl_sql.models.lora import count_adapters
from jaxrl_sql.models.spec import ParamSpec, leaf_of
from jaxrl_sql.models.transformer import CARRIED
from jaxrl_sql.parallel.mesh import AXES
from jaxrl_sql.parallel.rules import AnyMesh, num_batch_shards, num_logit_shards, split_of
from jaxrl_sql.planning.units import MIB
from jaxrl_sql.planning.workload import (
    EngineLoad,
    Update,
    Workload,
    decode_grids,
    find_workload,
    kv_budget,
    num_head_shards,
    rollout_grid,
)
from jaxrl_sql.rollout.engine_config import EngineConfig, EngineSizes, KVBudget, fit_budget

_LOGIT_COPIES = 3
"""Arrays of the logits' size in an update: the logits, their exponentials and their gradient."""


class MemoryEstimate(NamedTuple):
    """Bytes on the fullest device.

    Permanent: weights (the policy, or its frozen base), adapters, optimizer (its state), reference (the copy for the KL
    penalty, or of the best weights by held-out loss, `sft.patience`), caches (KV blocks of the rollout engine).
    Temporary: evaluation (KV blocks of the evaluation engine), rollout_weights (the copy that engines read: weights of
    the layers one by one, or a replica's), gradients and activations of an update, decoding (temporaries of a decode
    step).
    """

    weights: int
    adapters: int
    optimizer: int
    reference: int
    caches: int
    evaluation: int
    rollout_weights: int
    gradients: int
    activations: int
    decoding: int

    @property
    def training(self) -> int:
        """Return the bytes of gradients and optimizer state."""
        return self.gradients + self.optimizer

    @property
    def resident(self) -> int:
        """Return the permanent bytes."""
        return self.weights + self.adapters + self.optimizer + self.reference + self.caches

    @property
    def total(self) -> int:
        """Return the peak bytes: of an update or of a rollout."""
        return self.resident + max(self.gradients + self.activations, self.sampling + self.decoding)

    @property
    def sampling(self) -> int:
        """Return the temporary bytes of a rollout or an evaluation without those of a decode step."""
        return self.evaluation + self.rollout_weights


def abstract_mesh(data: int, fsdp: int, tensor: int) -> AbstractMesh:
    """Return a mesh of these sizes without devices, for the formulas."""
    return AbstractMesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * len(AXES))


class PlannedModel(NamedTuple):
    """The model of a plan: its section of the configuration, and its architecture."""

    section: ModelConfigSection
    shape: ModelConfig

    @property
    def bytes_per_weight(self) -> int:
        """Return the bytes of a weight."""
        return int(jnp.dtype(self.section.dtype).itemsize)

    @property
    def compute_dtype(self) -> str:
        """Return the dtype of activations and products."""
        return self.section.dtype if self.section.compute_dtype == "same" else self.section.compute_dtype

    @property
    def bytes_per_activation(self) -> int:
        """Return the bytes per element of an activation."""
        return int(jnp.dtype(self.compute_dtype).itemsize)


def sampling_mesh(grid: tuple[int, int] | None, mesh: AnyMesh) -> AnyMesh:
    """Return the mesh that an engine decodes on: of one replica of `grid` (replicas, tensor), or the training mesh."""
    return mesh if grid is None else abstract_mesh(1, 1, grid[1])


def estimate(model: PlannedModel, mesh: AnyMesh, work: Workload, fused: bool | None = None) -> MemoryEstimate:
    """Estimate the bytes on the fullest device.

    `fused`: whether attention never writes its scores to memory (None: True unless `model.attention` is `xla`). Raises
    InputError for weights that the mesh does not divide.
    """
    num_params, (trained, trained_width) = params_per_device(model.shape, mesh), _trained_params(model, mesh)
    engine, sampled, trained_updates = (
        sampling_mesh(work.rollout_grid, mesh),
        work.rollout or work.evaluation,
        work.trained_updates,
    )
    fused = model.section.attention != "xla" if fused is None else fused
    has_parts = any(update.passes > 1 for update in trained_updates)
    return MemoryEstimate(
        weights=num_params * model.bytes_per_weight,
        adapters=trained * trained_width if model.section.lora.rank and trained_updates else 0,
        optimizer=trained * max((_moments(update.optim) for update in trained_updates), default=0),
        reference=trained * trained_width if any(update.keeps_copy for update in trained_updates) else 0,
        caches=_caches(model, engine, sampled),
        evaluation=_caches(model, engine, work.evaluation) if work.rollout else 0,
        rollout_weights=_rollout_weights(model, mesh, work.rollout_grid),
        gradients=trained * 4 * (1 + has_parts) if trained_updates else 0,  # float32, and the gradients of a part
        activations=max((_activations(model, mesh, update, fused) for update in trained_updates), default=0),
        decoding=_decoding(model, engine, sampled, 0 if work.rollout_grid else model.bytes_per_weight),
    )


def checkpoint_bytes(model: PlannedModel, work: Workload) -> int:
    """Return the bytes of a run's largest checkpoint: trained parameters, a copy if a phase has one, and moments."""
    trained, width = _trained_params(model, abstract_mesh(1, 1, 1))
    return max((trained * (width * (1 + x.keeps_copy) + _moments(x.optim)) for x in work.trained_updates), default=0)


def is_fused(model: PlannedModel, platform: str) -> bool:
    """Return whether attention of prompts and updates writes no scores to memory on a platform."""
    attend = for_platform(model.section.attention, model.shape, model.compute_dtype, platform)
    return attend not in {xla.attend_tree, amx.attend_tree}


def params_per_device(model: ModelConfig, mesh: AnyMesh, frozen: Sequence[str] = ()) -> int:
    """Return the number of parameters per device that are not `frozen`.

    Raises InputError for a dimension that the mesh does not divide, and as `split_specs` does.
    """
    shardings: Any = param_shardings(model, mesh)
    return _params_of(split_specs(model, frozen)[0], shardings)


def _params_of(specs: Iterable[ParamSpec], shardings: Any) -> int:
    """Return the number of these parameters per device."""
    num_params = 0
    for spec in specs:
        sharding: Any = leaf_of(shardings, spec)
        num_params += math.prod(sharding.shard_shape(spec.shape))
    return num_params


def _layer_params(model: ModelConfig, mesh: AnyMesh) -> int:
    """Return the number of parameters per device in the layers."""
    return _params_of((spec for spec in param_specs(model) if spec.is_stacked), param_shardings(model, mesh))


def _rollout_weights(model: PlannedModel, mesh: AnyMesh, grid: tuple[int, int] | None) -> int:
    """Return the bytes of the weights that an engine reads, which are a copy (`rollout.model_runner`).

    It consists of the layers without embeddings, or is a replica (`grid`: replicas, tensor) in the compute dtype.
    """
    if grid is None:
        return _layer_params(model.shape, mesh) * model.bytes_per_weight
    return params_per_device(model.shape, sampling_mesh(grid, mesh)) * model.bytes_per_activation


def _trained_params(model: PlannedModel, mesh: AnyMesh) -> tuple[int, int]:
    """Return the number of trained parameters per device, and the bytes of each."""
    lora = model.section.lora
    if lora.rank:
        return count_adapters(model.shape, lora.rank, lora.targets, mesh), 4
    return params_per_device(model.shape, mesh, model.section.frozen), model.bytes_per_weight


def _moments(optim: OptimConfig) -> int:
    """Return the optimizer's bytes per parameter; Adafactor's rows and columns are negligible."""
    return 0 if optim.kind == "adafactor" else 2 * int(jnp.dtype(optim.moments).itemsize)


def with_kv_budget(sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, device_memory: int) -> RolloutConfig:
    """Return the section with the numbers of KV blocks, which take up to the share `memory` of a device's memory.

    Numbers that are set in the section have precedence. If the device memory is unknown, the numbers are the most that
    can be needed at once.
    """
    rollout = sections.rollout
    if kv_budget(rollout) is not None:
        return rollout
    mesh = sampling_mesh(rollout_grid(rollout), mesh)
    work = find_workload(model.section, sections, num_batch_shards(mesh.shape))
    loads = [load for load in (work.rollout, work.evaluation) if load is not None]
    need = EngineSizes(*(max(numbers) for numbers in zip(*(load.sizes for load in loads), strict=True)))
    sizes = loads[0].config
    prompt = _block_bytes(model, mesh, sizes.block_size)
    completion = _block_bytes(model, mesh, sizes.completion_block_size)
    max_bytes = int(rollout.memory * device_memory) if device_memory else sys.maxsize
    budget = fit_budget(need, prompt, completion, max_bytes, num_batch_shards(mesh.shape))._asdict()
    return replace(rollout, **{name: getattr(rollout, name) or count for name, count in budget.items()})


def with_kept_logits(
    sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, device_memory: int, fused: bool
) -> ModelConfigSection:
    """Return the section with `kept_logits_mib`, the memory for the logits that an update stores.

    It is up to half of the memory that the rest of the update leaves free. A value in the section has precedence. If
    the device memory is unknown, `kept_logits_mib` is the minimum.
    """
    section = model.section
    if section.kept_logits_mib:
        return section
    work = find_workload(section, sections, num_batch_shards(mesh.shape))
    sizes = estimate(model, mesh, work, fused)
    free = int(0.9 * device_memory) - sizes.resident - sizes.gradients - sizes.activations if device_memory else 0
    most = max((_all_logits(model.shape, mesh, update) for update in work.trained_updates), default=0)
    logit_bytes = min(section.kept_logits + max(free, 0) // 2 // _LOGIT_COPIES, max(most, section.kept_logits))
    return replace(section, kept_logits_mib=-(-logit_bytes // MIB))


def inference_weights(model: PlannedModel, mesh: AnyMesh, grid: tuple[int, int] | None) -> int:
    """Return the bytes per device of the weights of a model that is loaded for inference (`open_policy_client`).

    Matrices are in the narrower of two dtypes. Replicas (`grid`: replicas, tensor) are in the compute dtype and are
    added to the weights. Raises InputError for a dimension that a mesh does not divide.
    """
    dtype, shape = model.section.dtype, model.shape
    shardings: Any = param_shardings(shape, mesh)
    narrow, num_bytes = matrix_dtype(dtype, model.section.compute_dtype), 0
    for spec in param_specs(shape):
        sharding: Any = leaf_of(shardings, spec)
        size = jnp.dtype(narrow if spec.is_matrix else dtype).itemsize
        num_bytes += size * math.prod(sharding.shard_shape(spec.shape))
    copied = params_per_device(shape, sampling_mesh(grid, mesh)) * model.bytes_per_activation if grid else 0
    return num_bytes + copied


def matrix_dtype(dtype: str, compute_dtype: str) -> str:
    """Return the dtype of matrices for inference: `compute_dtype` if it is narrower (`same`: `dtype`)."""
    narrower = compute_dtype != "same" and jnp.dtype(compute_dtype).itemsize < jnp.dtype(dtype).itemsize
    return compute_dtype if narrower else dtype


def client_kv_budget(
    rollout: RolloutConfig, model: PlannedModel, mesh: AnyMesh, engine: EngineConfig, longest: int, device_memory: int
) -> KVBudget | None:
    """Return the KV blocks of an engine whose prompts are not known yet; None if the device's memory is unknown.

    Of the share `rollout.memory` of `device_memory` bytes, completions of up to `longest` tokens in all slots get up to
    a half, the prefix cache up to a quarter, and prompts the rest. A call allocates only the blocks that it needs.
    """
    if not device_memory:
        return None
    mesh = sampling_mesh(rollout_grid(rollout), mesh)
    max_bytes, unit = int(rollout.memory * device_memory), 8 * num_batch_shards(mesh.shape)
    prompt = _block_bytes(model, mesh, engine.block_size)
    completion = _block_bytes(model, mesh, engine.completion_block_size)
    need = engine.sizes([1], 1, longest)
    completions = min(need.completion_blocks, max_bytes // 2 // completion // unit * unit)
    prefix = min(need.prefix_blocks, max_bytes // 4 // prompt // unit * unit)
    prompts = (max_bytes - completions * completion - prefix * prompt) // prompt // unit * unit
    return KVBudget(prompts, completions, prefix)


def _block_bytes(model: PlannedModel, mesh: AnyMesh, size: int) -> int:
    """Return the bytes per device of a KV block of `size` tokens; blocks are divided among devices."""
    num_shards = num_batch_shards(mesh.shape)
    return -(-_pool_bytes(model, mesh, 8 * num_shards, size) // (8 * num_shards))


def _pool_bytes(model: PlannedModel, mesh: AnyMesh, blocks: int, size: int) -> int:
    """Return the bytes of a pool of KV blocks on a device."""
    shape = (blocks, model.shape.n_kv_heads, size, model.shape.head_dim)
    shard_shape = jax.NamedSharding(mesh, split_of(mesh, POOL, shape)).shard_shape(shape)
    return 2 * model.shape.n_layers * math.prod(shard_shape) * model.bytes_per_activation


def _caches(model: PlannedModel, mesh: AnyMesh, load: EngineLoad) -> int:
    """Return the bytes of an engine's KV blocks: of prompts, of the prefix cache, and of completions."""
    sizes, size = load.sizes, load.config.block_size
    of_completions = _pool_bytes(model, mesh, sizes.completion_blocks, load.config.completion_block_size)
    of_prompts = (_pool_bytes(model, mesh, n, size) for n in (sizes.prompt_blocks, sizes.prefix_blocks))
    return of_completions + sum(of_prompts)


def _activations(model: PlannedModel, mesh: AnyMesh, work: Update, fused: bool) -> int:
    """Estimate the bytes of an update of one part in addition to its state and gradients.

    With `remat` the inputs of each layer are kept, and one full layer during its backward pass; without it all layers
    in full. In addition: the logits of a chunk, and two layers and the embeddings gathered over `fsdp`.
    """
    shape, width, tensor = model.shape, model.bytes_per_activation, mesh.shape["tensor"]
    prompts, answers = work.chunk_sizes(work.group)
    rows = -(-prompts // num_batch_shards(mesh.shape))
    tokens = rows * (work.prompt + answers * work.answer)
    scores = 0
    if not fused:
        pairs = rows * (work.prompt**2 + answers * work.answer * (work.prompt + work.answer))
        scores = pairs * (shape.n_heads // min(tensor, shape.n_heads)) * (4 + width)
    layer = _layer_bytes(shape, width, tokens, tensor, is_whole=True) + scores
    if model.section.remat == "none":
        others = (shape.n_layers - 1) * (_layer_bytes(shape, width, tokens, tensor, is_whole=False) + scores)
    else:
        entering = rows * (_carried_tokens(mesh, work.prompt) + answers * _carried_tokens(mesh, work.answer))
        others = shape.n_layers * (entering * shape.d_model * width + _named_bytes(model, tokens))
    logits = _LOGIT_COPIES * min(_all_logits(shape, mesh, work), work.kept_logits)
    return others + layer + logits + _gathered_bytes(model, mesh, learns=not model.section.lora.rank)


def _carried_tokens(mesh: AnyMesh, tokens: int) -> int:
    """Return how many of a row's tokens a device keeps of a layer's input."""
    return tokens // (mesh.shape["tensor"] if split_of(mesh, CARRIED, (1, 1, tokens, 1))[2] else 1)


def _layer_bytes(model: ModelConfig, width: int, tokens: int, tensor: int, is_whole: bool) -> int:
    """Return the bytes of one layer's values without attention scores: those kept, or all during its backward pass.

    The numbers of arrays of each width are fitted to XLA's allocations for Qwen2.5-Coder-7B on 32 TPUs and for the
    quickstart's model on a CPU. `tensor` splits arrays of the model's width by tokens,
    except with norms of queries and keys (`qk_norm`).
    """
    of_model, of_mlp, of_queries, of_keys = (8, 8, 10, 6) if is_whole else (6, 5, 6, 4)
    heads = (of_queries * model.n_heads + of_keys * model.n_kv_heads) * model.head_dim
    wide = of_model * model.d_model * (tensor if model.qk_norm else 1)
    return tokens * (wide + of_mlp * model.d_ff + heads) // tensor * width


def _named_bytes(model: PlannedModel, tokens: int) -> int:
    """Return the bytes of a layer's values that `remat` names."""
    shape = model.shape
    q, k = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    sizes = {"query": q, "key": k, "value": k, "attended": q, "gate": shape.d_ff, "up": shape.d_ff}
    names = {name.strip() for name in model.section.remat.split(",")}  # `full` names none
    return tokens * sum(size for name, size in sizes.items() if name in names) * model.bytes_per_activation


def _all_logits(model: ModelConfig, mesh: AnyMesh, work: Update) -> int:
    """Return the bytes of a device's share of all logits of a part of an update, in float32."""
    prompts, answers = work.chunk_sizes(work.group)
    targets = -(-prompts // num_batch_shards(mesh.shape)) * answers * work.answer
    of_vocab = num_logit_shards(model.vocab_size, mesh.shape) // num_batch_shards(mesh.shape)
    return targets * model.vocab_size * 4 // of_vocab


def _gathered_bytes(model: PlannedModel, mesh: AnyMesh, learns: bool) -> int:
    """Return the bytes of weights gathered over `fsdp` during use, with the gradients of the embeddings if trained."""
    if mesh.shape["fsdp"] == 1:
        return 0
    tables = (1 if model.shape.tie_embeddings else 2) * model.shape.vocab_size * model.shape.d_model
    used = (tables + 2 * layer_weights(model.shape)) * model.bytes_per_activation
    return (used + (4 * tables if learns else 0)) // mesh.shape["tensor"]


def _decoding(model: PlannedModel, mesh: AnyMesh, load: EngineLoad, width: int) -> int:
    """Estimate the temporaries of a decode step: embeddings, copies of the logits, partial attention results.

    On one chip each slot gathers the partial results of its blocks; on several, each chip merges those of its blocks by
    owner. With the kernel they are those of its grids, one layer at a time. `width`: the bytes of a weight outside the
    layers (0: counted elsewhere).
    """
    shape, tensor = model.shape, mesh.shape["tensor"]
    num_shards, slots = num_batch_shards(mesh.shape), load.config.max_num_seqs
    kernel = 0
    if load.config.attention == "pallas":
        heads = tensor if shape.n_kv_heads % tensor == 0 else 1
        parts, kernel = 0, sum(grid.parts for grid in decode_grids(shape, load, heads))
    elif num_shards == 1:
        parts = slots * (load.sizes.prompt_columns + load.sizes.completion_columns)
    else:
        parts = sum((blocks + owners) * readers for blocks, owners, readers in load.local_pools(num_shards))
    part_bytes = parts * shape.n_heads // num_head_shards(shape, tensor) * shape.head_dim * 4
    tables, others = (
        _gathered_bytes(model, mesh, learns=False),
        params_per_device(shape, mesh) - _layer_params(shape, mesh),
    )
    return others * width + 10 * slots * shape.vocab_size * 4 + 2 * part_bytes + kernel + tables
