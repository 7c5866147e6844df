"""Bytes that the fullest device will hold, by formula: nothing is compiled for it, and no device need be there.

Weights, optimizer, reference and caches are exact, by the table of weights, its shardings and the engine's page sizes.
What a program needs beside them while it runs is an estimate; docs/scaling.md compares it with the compiler's word.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from jaxrl_sql.config import OptimConfig, TrainConfig
from jaxrl_sql.models import ModelConfig, param_shardings, param_specs
from jaxrl_sql.models.attention import amx, for_platform, xla
from jaxrl_sql.models.attention.paged import POOL
from jaxrl_sql.models.flops import layer_weights
from jaxrl_sql.models.frozen import split_specs
from jaxrl_sql.models.lora import count_adapters
from jaxrl_sql.models.spec import leaf_of
from jaxrl_sql.models.transformer import CARRIED
from jaxrl_sql.parallel.mesh import AXES
from jaxrl_sql.parallel.rules import AnyMesh, batch_ways, logit_ways, split_of
from jaxrl_sql.planning.workload import (
    EngineLoad,
    Update,
    decode_grids,
    find_workload,
    head_ways,
    kv_budget,
    rollout_grid,
)
from jaxrl_sql.rollout.engine_config import EngineConfig, EngineSizes, KVBudget, fit_budget


class MemoryEstimate(NamedTuple):
    """Bytes on the fullest device.

    weights: of the policy, or its frozen base; adapters: trained beside it; optimizer: what it keeps; reference: the
    copy for the KL penalty, or of the best by the held-out loss (`sft.patience`); caches: KV blocks of the engine that
    samples for training; evaluation: of the one that answers held-out questions, while it does. Of what comes and goes:
    gradients and activations of an update, decoding: what a decode step needs.
    """

    weights: int
    adapters: int
    optimizer: int
    reference: int
    caches: int
    evaluation: int
    gradients: int
    activations: int
    decoding: int

    @property
    def training(self) -> int:
        """Return what learning adds to the weights: gradients and what the optimizer keeps."""
        return self.gradients + self.optimizer

    @property
    def resident(self) -> int:
        """Return what is there all the time."""
        return self.weights + self.adapters + self.optimizer + self.reference + self.caches

    @property
    def total(self) -> int:
        """Return the most that is there at a time: in an update, or in a rollout."""
        return self.resident + max(self.gradients + self.activations, self.evaluation + self.decoding)


def abstract_mesh(data: int, fsdp: int, tensor: int) -> AbstractMesh:
    """Return a mesh of these sizes without devices, which formulas take as they take one with."""
    return AbstractMesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def sampling_mesh(config: TrainConfig, mesh: AnyMesh) -> AnyMesh:
    """Return the mesh that an engine decodes on: that of one copy of the model, or the training mesh."""
    grid = rollout_grid(config)
    return mesh if grid is None else abstract_mesh(1, 1, grid[1])


def estimate(
    config: TrainConfig, model: ModelConfig, mesh: AnyMesh, longest: int, fused: bool | None = None
) -> MemoryEstimate:
    """Estimate what the fullest device will hold; `longest` is the longest prompt in tokens.

    `fused`: whether attention never writes its scores to memory (None: as the configuration says, and `auto` does).
    Raises InputError for weights that the mesh does not divide.
    """
    work = find_workload(config, longest, batch_ways(mesh.shape))
    lora, width = config.model.lora.rank > 0, int(jnp.dtype(config.model.dtype).itemsize)
    held, engine = params_here(model, mesh), sampling_mesh(config, mesh)
    trained, trained_width = _trained_here(config, model, mesh)
    copied = _has_reference(config) or (work.sft_dataset is not None and config.sft.patience > 0)
    fused = config.model.attention != "xla" if fused is None else fused
    updates = [one for one in (work.sft_dataset, work.update) if one is not None]
    parts = max((one.passes for one in updates), default=1)
    return MemoryEstimate(
        weights=held * width,
        adapters=trained * trained_width if lora and updates else 0,
        optimizer=trained * max((_moments(one.optim) for one in updates), default=0),
        reference=trained * trained_width if copied else 0,
        caches=_caches(config, model, engine, work.rollout or work.greedy),
        evaluation=_caches(config, model, engine, work.greedy) if work.rollout else 0,
        gradients=trained * 4 * (2 if parts > 1 else 1) if updates else 0,  # float32, and those of a part beside them
        activations=max((_activations(config, model, mesh, one, fused) for one in updates), default=0),
        decoding=_decoding(config, model, engine, work.rollout or work.greedy),
    )


def checkpoint_bytes(config: TrainConfig, model: ModelConfig) -> int:
    """Return the bytes of a run's largest checkpoint: what is trained, a copy of it where one is kept, and moments.

    The copy is the reference for the KL penalty, or in the supervised phase the best by the held-out loss.
    """
    trained, width = _trained_here(config, model, abstract_mesh(1, 1, 1))
    grpo, sft = config.grpo, config.sft
    phases = ((sft.steps or sft.epochs, sft.patience > 0, sft.optim), (grpo.steps, _has_reference(config), grpo.optim))
    return max(
        (trained * (width * (1 + copied) + _moments(optim)) for steps, copied, optim in phases if steps), default=0
    )


def is_fused(config: TrainConfig, model: ModelConfig, platform: str) -> bool:
    """Return whether attention of prompts and updates keeps no scores on a platform, this machine's or another."""
    name, dtype = config.model.attention, config.model.compute_dtype
    dtype = config.model.dtype if dtype == "same" else dtype
    return for_platform(name, model, dtype, platform) not in {xla.attend_tree, amx.attend_tree}


def params_here(model: ModelConfig, mesh: AnyMesh, frozen: Sequence[str] = ()) -> int:
    """Return how many parameters a device holds that are not `frozen`.

    Raises InputError for a dimension that the mesh does not divide, and as `split_specs` does.
    """
    places: Any = param_shardings(model, mesh)
    held = 0
    for spec in split_specs(model, frozen)[0]:
        place: Any = leaf_of(places, spec)
        held += math.prod(place.shard_shape(spec.shape))
    return held


def _trained_here(config: TrainConfig, model: ModelConfig, mesh: AnyMesh) -> tuple[int, int]:
    """Return how many parameters that are trained a device holds, and the bytes of each."""
    if config.model.lora.rank:
        return count_adapters(model, config.model.lora.rank, config.model.lora.targets, mesh), 4
    return params_here(model, mesh, config.model.frozen), int(jnp.dtype(config.model.dtype).itemsize)


def _has_reference(config: TrainConfig) -> bool:
    """Return whether GRPO keeps a copy of its start for the KL penalty; that of new adapters is the base."""
    is_base = config.model.lora.rank > 0 and not (config.sft.steps or config.sft.epochs)
    return config.grpo.steps > 0 and config.grpo.kl_coef > 0 and not is_base


def _moments(optim: OptimConfig) -> int:
    """Return the bytes that the optimizer keeps of a parameter; Adafactor's rows and columns are few."""
    return 0 if optim.kind == "adafactor" else 2 * int(jnp.dtype(optim.moments).itemsize)


def with_kv_budget(
    config: TrainConfig, model: ModelConfig, mesh: AnyMesh, longest: int, device_memory: int
) -> TrainConfig:
    """Return the configuration with the KV blocks of its engines, found from `rollout.memory` of so many bytes.

    Blocks that it names stay as they are. Without a known memory they are all that can be needed at once.
    """
    if kv_budget(config) is not None:
        return config
    mesh = sampling_mesh(config, mesh)
    work = find_workload(config, longest, batch_ways(mesh.shape))
    loads = [load for load in (work.rollout, work.greedy) if load is not None]
    need = EngineSizes(*(max(numbers) for numbers in zip(*(load.sizes for load in loads), strict=True)))
    sizes = loads[0].config
    prompt = _block_bytes(config, model, mesh, sizes.block_size)
    completion = _block_bytes(config, model, mesh, sizes.completion_block_size)
    most = int(config.rollout.memory * device_memory) if device_memory else sys.maxsize
    budget = fit_budget(need, prompt, completion, most, batch_ways(mesh.shape))._asdict()
    blocks = {name: getattr(config.rollout, name) or count for name, count in budget.items()}
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **blocks))


def client_weights(config: TrainConfig, model: ModelConfig, mesh: AnyMesh) -> int:
    """Return the bytes of a device that the weights of a policy client take.

    Matrices are kept in the narrower of two dtypes; copies (`rollout.mesh`), which are made of what was read, are in
    the compute dtype. Raises InputError for a dimension that a mesh does not divide.
    """
    dtype, compute_dtype = config.model.dtype, config.model.compute_dtype
    places: Any = param_shardings(model, mesh)
    narrow, held = matrix_dtype(dtype, compute_dtype), 0
    for spec in param_specs(model):
        place: Any = leaf_of(places, spec)
        size = jnp.dtype(narrow if spec.is_matrix else dtype).itemsize
        held += size * math.prod(place.shard_shape(spec.shape))
    if (grid := rollout_grid(config)) is None:
        return held
    copied = jnp.dtype(dtype if compute_dtype == "same" else compute_dtype)
    return held + params_here(model, abstract_mesh(1, 1, grid[1])) * int(copied.itemsize)


def matrix_dtype(dtype: str, compute_dtype: str) -> str:
    """Return the dtype of a policy client's matrices, which products take in `compute_dtype` (`same`: as they are)."""
    narrower = compute_dtype != "same" and jnp.dtype(compute_dtype).itemsize < jnp.dtype(dtype).itemsize
    return compute_dtype if narrower else dtype


def client_kv_budget(
    config: TrainConfig, model: ModelConfig, mesh: AnyMesh, engine: EngineConfig, longest: int, device_memory: int
) -> KVBudget | None:
    """Return the KV blocks of an engine whose prompts are not known yet; None where the device's memory is not.

    Of `rollout.memory` of so many bytes completions of up to `longest` tokens in all slots have up to a half, the
    prefix cache up to a quarter, and prompts the rest. A call makes no more of them than it needs.
    """
    if not device_memory:
        return None
    most, unit = int(config.rollout.memory * device_memory), 8 * batch_ways(mesh.shape)
    prompt = _block_bytes(config, model, mesh, engine.block_size)
    completion = _block_bytes(config, model, mesh, engine.completion_block_size)
    need = engine.sizes(1, 1, 1, longest)
    completions = min(need.completion_blocks, most // 2 // completion // unit * unit)
    prefix = min(need.prefix_blocks, most // 4 // prompt // unit * unit)
    prompts = (most - completions * completion - prefix * prompt) // prompt // unit * unit
    return KVBudget(prompts, completions, prefix)


def _block_bytes(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, size: int) -> int:
    """Return the bytes that a KV block of so many tokens takes of a device, which has its share of all blocks."""
    ways = batch_ways(mesh.shape)
    return -(-_pool_bytes(config, model, mesh, 8 * ways, size) // (8 * ways))


def _pool_bytes(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, blocks: int, size: int) -> int:
    """Return the bytes of a pool of KV blocks on a device."""
    shape = (blocks, model.n_kv_heads, size, model.head_dim)
    here = jax.NamedSharding(mesh, split_of(mesh, POOL, shape)).shard_shape(shape)
    return 2 * model.n_layers * math.prod(here) * compute_width(config)


def _caches(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, load: EngineLoad) -> int:
    """Return the bytes of an engine's KV blocks: of prompts, of those that are cached of them, and of completions."""
    sizes, size = load.sizes, load.config.block_size
    of_completions = _pool_bytes(config, model, mesh, sizes.completion_blocks, load.config.completion_block_size)
    of_prompts = (_pool_bytes(config, model, mesh, n, size) for n in (sizes.prompt_blocks, sizes.prefix_blocks))
    return of_completions + sum(of_prompts)


def compute_width(config: TrainConfig) -> int:
    """Return the bytes of a number of an activation."""
    name = config.model.dtype if config.model.compute_dtype == "same" else config.model.compute_dtype
    return int(jnp.dtype(name).itemsize)


def _activations(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, work: Update, fused: bool) -> int:
    """Estimate the bytes that an update of one part needs beside its state and gradients.

    With `remat` what enters each layer is kept, and one layer whole while its gradient is made; without it all layers.
    Beside them stand the logits of a piece, and the whole of what `fsdp` has split of two layers and the embeddings.
    """
    width, tensor = compute_width(config), mesh.shape["tensor"]
    prompts, answers = work.at_once(work.group)
    rows = -(-prompts // batch_ways(mesh.shape))
    tokens = rows * (work.prompt + answers * work.answer)
    scores = 0
    if not fused:
        pairs = rows * (work.prompt**2 + answers * work.answer * (work.prompt + work.answer))
        scores = pairs * (model.n_heads // min(tensor, model.n_heads)) * (4 + width)
    layer = _layer_bytes(model, width, tokens, tensor, is_whole=True) + scores
    if config.model.remat == "none":
        kept = (model.n_layers - 1) * (_layer_bytes(model, width, tokens, tensor, is_whole=False) + scores)
    else:
        entering = rows * (_carried(mesh, work.prompt) + answers * _carried(mesh, work.answer))
        kept = model.n_layers * (entering * model.d_model * width + _named_bytes(config, model, tokens))
    logits = _logits(model, rows * answers * work.answer, mesh.shape, config.model.kept_logits_mib << 20)
    return kept + layer + logits + _gathered(config, model, mesh, learns=not config.model.lora.rank)


def _carried(mesh: AnyMesh, tokens: int) -> int:
    """Return how many of a row's tokens a device keeps of what enters a layer."""
    return tokens // (mesh.shape["tensor"] if split_of(mesh, CARRIED, (1, 1, tokens, 1))[2] else 1)


def _layer_bytes(model: ModelConfig, width: int, tokens: int, tensor: int, is_whole: bool) -> int:
    """Return the bytes of one layer's values, attention's scores left out: those kept, or all while gradients are made.

    How many arrays of each width there are is counted from what XLA reserved for the published 7B on 32 TPUs, and for
    the quickstart's model on a processor. Those as wide as the model `tensor` splits by their tokens; where heads are
    normed it does not.
    """
    of_model, of_mlp, of_queries, of_keys = (8, 8, 10, 6) if is_whole else (6, 5, 6, 4)
    heads = (of_queries * model.n_heads + of_keys * model.n_kv_heads) * model.head_dim
    wide = of_model * model.d_model * (tensor if model.qk_norm else 1)
    return tokens * (wide + of_mlp * model.d_ff + heads) // tensor * width


def _named_bytes(config: TrainConfig, model: ModelConfig, tokens: int) -> int:
    """Return the bytes that a layer keeps because `remat` names them."""
    q, k = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    sizes = {"query": q, "key": k, "value": k, "attended": q, "gate": model.d_ff, "up": model.d_ff}
    names = {name.strip() for name in config.model.remat.split(",")}  # `full` names none
    return tokens * sum(size for name, size in sizes.items() if name in names) * compute_width(config)


def _logits(model: ModelConfig, targets: int, sizes: Mapping[str, int], kept: int) -> int:
    """Return the bytes of a device's piece of the logits, their exponentials and their gradient, in float32."""
    of_vocab = logit_ways(model.vocab_size, sizes) // batch_ways(sizes)
    return 3 * min(targets * model.vocab_size * 4 // of_vocab, kept)


def _gathered(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, learns: bool) -> int:
    """Return the bytes of what is split along `fsdp` and stands whole while it is used; with the tables' gradients."""
    if mesh.shape["fsdp"] == 1:
        return 0
    tables = (1 if model.tie_embeddings else 2) * model.vocab_size * model.d_model
    used = (tables + 2 * layer_weights(model)) * compute_width(config)
    return (used + (4 * tables if learns else 0)) // mesh.shape["tensor"]


def _decoding(config: TrainConfig, model: ModelConfig, mesh: AnyMesh, load: EngineLoad) -> int:
    """Estimate what a decode step needs: the weights by layer, logits in a few copies, the parts that blocks give.

    On one chip each slot gathers the parts of its blocks; of several each merges its own blocks' parts by their owner.
    By the kernel there are those of its grids, a layer's at a time: before, after, and as slots take them.
    """
    ways, slots = batch_ways(mesh.shape), load.config.max_num_seqs
    kernel = 0
    if load.config.attention == "pallas":
        heads = mesh.shape["tensor"] if model.n_kv_heads % mesh.shape["tensor"] == 0 else 1
        parts, kernel = 0, sum(grid.parts for grid in decode_grids(model, load, heads))
    elif ways == 1:
        parts = slots * (load.sizes.prompt_columns + load.sizes.completion_columns)
    else:
        parts = sum((blocks + owners) * readers for blocks, owners, readers in load.pools_here(ways))
    given = parts * model.n_heads // head_ways(model, mesh.shape["tensor"]) * model.head_dim * 4
    tables = _gathered(config, model, mesh, learns=False)
    name = config.model.dtype if rollout_grid(config) is None else config.model.compute_dtype
    name = config.model.dtype if name == "same" else name
    by_layer = params_here(model, mesh) * int(jnp.dtype(name).itemsize)
    return by_layer + 10 * slots * model.vocab_size * 4 + 2 * given + kernel + tables
