"""Estimate the bytes on the fullest device by formula, without compilation and without devices.

Weights, optimizer, reference and caches are exact: they follow from the table of weights, its shardings and the
engine's block sizes. The temporary arrays of a program are an estimate; docs/explanation/scaling.md compares it with
the compiler's figures.

Terms: a mesh has the axes `data`, `fsdp` and `tensor`, and splits batches over `data` x `fsdp`. A pass computes the
part of an update's batch that fits into memory. The KV cache consists of blocks with a fixed number of tokens, in pools
for prompts, completions, and cached prefixes of prompts. `work` is the workload of a run or the batch of an update.
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

    Permanent:
    weights: the policy, or its frozen base; adapters: the trained LoRA parameters; optimizer: moments.
    reference: the copy for the KL penalty, or of the best weights by held-out loss (`sft.patience`).
    caches: KV blocks of the rollout engine.

    Temporary:
    evaluation: KV blocks of the evaluation engine.
    rollout_weights: the copy that engines read, with separate arrays per layer, or the weights of a replica.
    gradients, activations: of an update.
    decoding: temporary arrays of a decode step.
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
        """Return the peak bytes: permanent ones and those of an update or of a rollout, whichever are more."""
        return self.resident + max(self.gradients + self.activations, self.sampling + self.decoding)

    @property
    def sampling(self) -> int:
        """Return the temporary bytes of a rollout or an evaluation, without those of a decode step."""
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
    """Return an engine's mesh: of a replica of `grid` (replicas, devices per replica), or the training mesh (None)."""
    return mesh if grid is None else abstract_mesh(1, 1, grid[1])


def estimate(model: PlannedModel, mesh: AnyMesh, work: Workload, fused: bool | None = None) -> MemoryEstimate:
    """Estimate the bytes on the fullest device.

    `fused`: whether attention never writes its scores to memory (None: True unless `model.attention` is `xla`). Raises
    InputError for weights that the mesh does not divide.
    """
    num_params, (num_trained, bytes_per_trained) = params_per_device(model.shape, mesh), _trained_params(model, mesh)
    engine_mesh, load, trained_updates = (
        sampling_mesh(work.rollout_grid, mesh),
        work.rollout or work.evaluation,
        work.trained_updates,
    )
    fused = model.section.attention != "xla" if fused is None else fused
    has_passes = any(update.passes > 1 for update in trained_updates)
    return MemoryEstimate(
        weights=num_params * model.bytes_per_weight,
        adapters=num_trained * bytes_per_trained if model.section.lora.rank and trained_updates else 0,
        optimizer=num_trained * max((_moment_bytes(update.optim) for update in trained_updates), default=0),
        reference=num_trained * bytes_per_trained if any(update.keeps_copy for update in trained_updates) else 0,
        caches=_cache_bytes(model, engine_mesh, load),
        evaluation=_cache_bytes(model, engine_mesh, work.evaluation) if work.rollout else 0,
        rollout_weights=_rollout_weights(model, mesh, work.rollout_grid),
        # In float32: the sum over passes, and the gradients of the current pass.
        gradients=num_trained * 4 * (1 + has_passes) if trained_updates else 0,
        activations=max((_activations(model, mesh, update, fused) for update in trained_updates), default=0),
        decoding=_decoding(model, engine_mesh, load, 0 if work.rollout_grid else model.bytes_per_weight),
    )


def checkpoint_bytes(model: PlannedModel, work: Workload) -> int:
    """Return the bytes of a run's largest checkpoint: trained parameters, a copy if a phase has one, and moments."""
    num_trained, bytes_per_trained = _trained_params(model, abstract_mesh(1, 1, 1))
    return max(
        (
            num_trained * (bytes_per_trained * (1 + update.keeps_copy) + _moment_bytes(update.optim))
            for update in work.trained_updates
        ),
        default=0,
    )


def is_fused(model: PlannedModel, platform: str) -> bool:
    """Return whether attention in prefill and updates writes no scores to memory on a platform (flash attention)."""
    attend = for_platform(model.section.attention, model.shape, model.compute_dtype, platform)
    return attend not in {xla.attend_tree, amx.attend_tree}


def params_per_device(model: ModelConfig, mesh: AnyMesh, frozen: Sequence[str] = ()) -> int:
    """Return the number of parameters per device, without those whose names match the patterns `frozen`.

    Raises InputError for a dimension that the mesh does not divide, or for invalid patterns (`split_specs`).
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
    """Return the bytes of the copied weights that an engine reads (`rollout.model_runner`).

    On the training mesh, the weights of the layers are copied to separate arrays per layer. A replica (`grid`:
    replicas, devices per replica) has a copy of all weights in the compute dtype.
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


def _moment_bytes(optim: OptimConfig) -> int:
    """Return the bytes of an optimizer's moments per parameter; Adafactor's sums of rows and columns are negligible."""
    return 0 if optim.kind == "adafactor" else 2 * int(jnp.dtype(optim.moments).itemsize)


def with_kv_budget(sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, device_memory: int) -> RolloutConfig:
    """Return the rollout section with the numbers of KV blocks set (`prompt_blocks`, …).

    The blocks take up to the share `rollout.memory` of `device_memory` bytes. Numbers that are set in the section have
    precedence. If the device memory is unknown (0), the numbers are the most that can be needed at once.
    """
    rollout = sections.rollout
    if kv_budget(rollout) is not None:
        return rollout
    mesh = sampling_mesh(rollout_grid(rollout), mesh)
    work = find_workload(model.section, sections, num_batch_shards(mesh.shape))
    loads = [load for load in (work.rollout, work.evaluation) if load is not None]
    need = EngineSizes(*(max(numbers) for numbers in zip(*(load.sizes for load in loads), strict=True)))
    engine = loads[0].config
    prompt_block = _block_bytes(model, mesh, engine.block_size)
    completion_block = _block_bytes(model, mesh, engine.completion_block_size)
    max_bytes = int(rollout.memory * device_memory) if device_memory else sys.maxsize
    budget = fit_budget(need, prompt_block, completion_block, max_bytes, num_batch_shards(mesh.shape))._asdict()
    return replace(rollout, **{name: getattr(rollout, name) or count for name, count in budget.items()})


def with_kept_logits(
    sections: WorkloadSections, model: PlannedModel, mesh: AnyMesh, device_memory: int, fused: bool
) -> ModelConfigSection:
    """Return the model section with `kept_logits_mib` set, the memory for the logits that an update stores.

    It is up to half of the memory that the rest of the update leaves free, if 10 % of the device stay unused. A value
    in the section has precedence. If the device memory is unknown, `kept_logits_mib` is the minimum.
    """
    section = model.section
    if section.kept_logits_mib:
        return section
    work = find_workload(section, sections, num_batch_shards(mesh.shape))
    memory = estimate(model, mesh, work, fused)
    free = int(0.9 * device_memory) - memory.resident - memory.gradients - memory.activations if device_memory else 0
    all_logits = max((_all_logits(model.shape, mesh, update) for update in work.trained_updates), default=0)
    logit_bytes = min(section.kept_logits + max(free, 0) // 2 // _LOGIT_COPIES, max(all_logits, section.kept_logits))
    return replace(section, kept_logits_mib=-(-logit_bytes // MIB))


def inference_weights(model: PlannedModel, mesh: AnyMesh, grid: tuple[int, int] | None) -> int:
    """Return the bytes per device of the weights of a model that is loaded for inference (`open_policy_client`).

    Matrices are stored in the narrower of `model.dtype` and `model.compute_dtype`, other weights in `model.dtype`. The
    copies of replicas (`grid`: replicas, devices per replica), in the compute dtype, are added. Raises InputError for a
    dimension that a mesh does not divide.
    """
    dtype, shape = model.section.dtype, model.shape
    shardings: Any = param_shardings(shape, mesh)
    dtype_of_matrices, num_bytes = matrix_dtype(dtype, model.section.compute_dtype), 0
    for spec in param_specs(shape):
        sharding: Any = leaf_of(shardings, spec)
        bytes_per_value = jnp.dtype(dtype_of_matrices if spec.is_matrix else dtype).itemsize
        num_bytes += bytes_per_value * math.prod(sharding.shard_shape(spec.shape))
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
    # Pools have multiples of this number of blocks (`engine_config.pool_size`).
    max_bytes, multiple = int(rollout.memory * device_memory), 8 * num_batch_shards(mesh.shape)
    prompt_block = _block_bytes(model, mesh, engine.block_size)
    completion_block = _block_bytes(model, mesh, engine.completion_block_size)
    need = engine.sizes([1], 1, longest)
    num_completion = min(need.completion_blocks, max_bytes // 2 // completion_block // multiple * multiple)
    num_prefix = min(need.prefix_blocks, max_bytes // 4 // prompt_block // multiple * multiple)
    prompt_bytes = max_bytes - num_completion * completion_block - num_prefix * prompt_block
    return KVBudget(prompt_bytes // prompt_block // multiple * multiple, num_completion, num_prefix)


def _block_bytes(model: PlannedModel, mesh: AnyMesh, block_size: int) -> int:
    """Return the mean bytes per device of a KV block of `block_size` tokens; a pool's blocks are split over devices."""
    num_shards = num_batch_shards(mesh.shape)
    return -(-_pool_bytes(model, mesh, 8 * num_shards, block_size) // (8 * num_shards))


def _pool_bytes(model: PlannedModel, mesh: AnyMesh, blocks: int, block_size: int) -> int:
    """Return the bytes of a pool of KV blocks on a device: keys and values of all layers."""
    shape = (blocks, model.shape.n_kv_heads, block_size, model.shape.head_dim)
    shard_shape = jax.NamedSharding(mesh, split_of(mesh, POOL, shape)).shard_shape(shape)
    return 2 * model.shape.n_layers * math.prod(shard_shape) * model.bytes_per_activation


def _cache_bytes(model: PlannedModel, mesh: AnyMesh, load: EngineLoad) -> int:
    """Return the bytes of an engine's KV blocks: of prompts, of the prefix cache, and of completions."""
    sizes, block_size = load.sizes, load.config.block_size
    of_completions = _pool_bytes(model, mesh, sizes.completion_blocks, load.config.completion_block_size)
    of_prompts = (_pool_bytes(model, mesh, n, block_size) for n in (sizes.prompt_blocks, sizes.prefix_blocks))
    return of_completions + sum(of_prompts)


def _activations(model: PlannedModel, mesh: AnyMesh, work: Update, fused: bool) -> int:
    """Estimate the bytes of a pass of an update, in addition to parameters, optimizer and gradients.

    With rematerialization (`model.remat`), the inputs of each layer are stored, and the values of one layer during its
    backward pass. Without it, the values of all layers are stored. In addition there are the logits of a chunk, and two
    layers and the embeddings that are gathered over `fsdp`.
    """
    shape, bytes_per_activation, tensor = model.shape, model.bytes_per_activation, mesh.shape["tensor"]
    prompts, answers = work.chunk_sizes(work.group)
    rows = -(-prompts // num_batch_shards(mesh.shape))
    tokens = rows * (work.prompt + answers * work.answer)
    scores = 0
    if not fused:
        pairs = rows * (work.prompt**2 + answers * work.answer * (work.prompt + work.answer))
        # Scores in float32, and attention weights in the dtype of activations.
        scores = pairs * (shape.n_heads // min(tensor, shape.n_heads)) * (4 + bytes_per_activation)
    current_layer = _layer_bytes(shape, bytes_per_activation, tokens, tensor, in_backward=True) + scores
    if model.section.remat == "none":
        layer = _layer_bytes(shape, bytes_per_activation, tokens, tensor, in_backward=False) + scores
        stored = (shape.n_layers - 1) * layer
    else:
        input_tokens = rows * (_input_tokens(mesh, work.prompt) + answers * _input_tokens(mesh, work.answer))
        stored = shape.n_layers * (input_tokens * shape.d_model * bytes_per_activation + _named_bytes(model, tokens))
    logits = _LOGIT_COPIES * min(_all_logits(shape, mesh, work), work.kept_logits)
    return stored + current_layer + logits + _gathered_bytes(model, mesh, learns=not model.section.lora.rank)


def _input_tokens(mesh: AnyMesh, tokens: int) -> int:
    """Return of how many of a row's tokens a device stores a layer's input; `tensor` may split them by tokens."""
    return tokens // (mesh.shape["tensor"] if split_of(mesh, CARRIED, (1, 1, tokens, 1))[2] else 1)


def _layer_bytes(model: ModelConfig, bytes_per_activation: int, tokens: int, tensor: int, in_backward: bool) -> int:
    """Return the bytes of one layer's activations without attention scores.

    These are the activations that are stored for the backward pass, or with `in_backward` all during this pass. The
    numbers of arrays of each width are fitted to XLA's allocations for Qwen2.5-Coder-7B on 32 TPUs and for the
    quickstart's model on a CPU. `tensor` splits arrays of the model's width by tokens, except with norms of queries and
    keys (`qk_norm`).
    """
    # Number of arrays of the width of the model, the MLP, the queries, and the keys.
    of_model, of_mlp, of_queries, of_keys = (8, 8, 10, 6) if in_backward else (6, 5, 6, 4)
    heads = (of_queries * model.n_heads + of_keys * model.n_kv_heads) * model.head_dim
    hidden = of_model * model.d_model * (tensor if model.qk_norm else 1)
    return tokens * (hidden + of_mlp * model.d_ff + heads) // tensor * bytes_per_activation


def _named_bytes(model: PlannedModel, tokens: int) -> int:
    """Return the bytes of a layer's values that are stored because `model.remat` lists their names."""
    shape = model.shape
    q, k = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    sizes = {"query": q, "key": k, "value": k, "attended": q, "gate": shape.d_ff, "up": shape.d_ff}
    names = {name.strip() for name in model.section.remat.split(",")}  # `full` is none of these names
    return tokens * sum(size for name, size in sizes.items() if name in names) * model.bytes_per_activation


def _all_logits(model: ModelConfig, mesh: AnyMesh, work: Update) -> int:
    """Return the bytes of a device's share of all logits of a pass of an update, in float32."""
    prompts, answers = work.chunk_sizes(work.group)
    num_targets = -(-prompts // num_batch_shards(mesh.shape)) * answers * work.answer
    vocab_shards = num_logit_shards(model.vocab_size, mesh.shape) // num_batch_shards(mesh.shape)
    return num_targets * model.vocab_size * 4 // vocab_shards


def _gathered_bytes(model: PlannedModel, mesh: AnyMesh, learns: bool) -> int:
    """Return the bytes of weights that are gathered over `fsdp` for use: two layers, embeddings and output matrix.

    If they are trained (`learns`), the float32 gradients of embeddings and output matrix are added.
    """
    if mesh.shape["fsdp"] == 1:
        return 0
    embeddings = (1 if model.shape.tie_embeddings else 2) * model.shape.vocab_size * model.shape.d_model
    gathered = (embeddings + 2 * layer_weights(model.shape)) * model.bytes_per_activation
    return (gathered + (4 * embeddings if learns else 0)) // mesh.shape["tensor"]


def _decoding(model: PlannedModel, mesh: AnyMesh, load: EngineLoad, bytes_per_weight: int) -> int:
    """Estimate the temporary arrays of a decode step: embeddings, copies of the logits, partial attention.

    Partial attention is the result of a slot's attention to one KV block. On one chip each slot gathers the results of
    its blocks. On several chips, each adds up the results of its blocks per owner (`EngineLoad.local_pools`). The
    kernel writes only the arrays of its two grids, one layer at a time. bytes_per_weight: bytes of a copied weight
    outside the layers (0: `rollout_weights` includes them).
    """
    shape, tensor = model.shape, mesh.shape["tensor"]
    num_shards, slots = num_batch_shards(mesh.shape), load.config.max_num_seqs
    kernel_bytes = 0
    if load.config.attention == "pallas":
        head_shards = tensor if shape.n_kv_heads % tensor == 0 else 1
        num_partials, kernel_bytes = 0, sum(grid.part_bytes for grid in decode_grids(shape, load, head_shards))
    elif num_shards == 1:
        num_partials = slots * (load.sizes.prompt_columns + load.sizes.completion_columns)
    else:
        num_partials = sum((blocks + owners) * readers for blocks, owners, readers in load.local_pools(num_shards))
    partial_bytes = num_partials * shape.n_heads // num_head_shards(shape, tensor) * shape.head_dim * 4
    gathered, other_params = (
        _gathered_bytes(model, mesh, learns=False),
        params_per_device(shape, mesh) - _layer_params(shape, mesh),
    )
    # About ten arrays of the logits' size in float32 (sampling), and two of the partial results.
    logit_bytes = 10 * slots * shape.vocab_size * 4
    return other_params * bytes_per_weight + logit_bytes + 2 * partial_bytes + kernel_bytes + gathered
