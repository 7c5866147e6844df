"""Lower the programs of a run for ahead-of-time compilation, from abstract arrays and for possibly absent devices.

The programs are the run's own functions: the update of `make_step`, the score (log-probabilities of the old policy or
the reference) of `make_scorer`, the engine's `prefill_chunk` and `decode_chunk`. An abstract array has a shape, a dtype
and a sharding, but no data, so no array of a model's size is allocated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from jaxrl_sql.algo import loss as losses
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_scorer, make_step
from jaxrl_sql.algo.updates import needs_old_logprobs
from jaxrl_sql.batch import GroupBatch, PyTree, Segment, TrainState
from jaxrl_sql.config import WorkloadSections
from jaxrl_sql.models import init_params, param_shardings, policy_params
from jaxrl_sql.models.attention import for_platform
from jaxrl_sql.models.attention.paged import POOL
from jaxrl_sql.models.attention.paged_kernel import kernel_for
from jaxrl_sql.models.frozen import split
from jaxrl_sql.models.lora import adapter_shardings, init_adapters
from jaxrl_sql.models.ops.truncation import Truncation
from jaxrl_sql.models.paged import BlockMap, KVPool, PagedModel
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.stacked_layers import abstract_layers
from jaxrl_sql.models.value import ActorCritic, add_value_head, decay_mask
from jaxrl_sql.parallel.rules import batch_sharding, replicated_sharding, split_of
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.workload import EngineLoad, Update, Workload, rollout_grid
from jaxrl_sql.rollout.decode import (
    ChunkConfig,
    DecodeState,
    PrefillChunk,
    PromptSlots,
    RequestRing,
    StopCriteria,
    decode_chunk,
    empty_request,
    empty_slots,
    prefill_chunk,
)
from jaxrl_sql.types import Record

Lowered = Any
"""A lowered program (`jax.stages.Lowered`), ready to compile."""


class ProgramInputs(NamedTuple):
    """The common inputs of a plan's programs: configuration, model, mesh, and a recipe's loss (None: the default)."""

    sections: WorkloadSections
    model: PlannedModel
    mesh: jax.sharding.Mesh
    loss: Callable[..., losses.Loss] | None = None

    @property
    def dtype(self) -> Any:
        """Return the compute dtype as the run's functions take it: None is the dtype of the weights."""
        name = self.model.section.compute_dtype
        return None if name == "same" else name

    @property
    def platform(self) -> str:
        """Return JAX's name of the platform, also for absent devices."""
        name = str(self.mesh.devices.flat[0].platform)
        return "gpu" if name in {"cuda", "rocm"} else name

    @property
    def paged_model(self) -> PagedModel:
        """Return the model for the engine's programs."""
        return PagedModel(self.model.shape, self.dtype)

    def decoding(self, load: EngineLoad) -> PagedModel:
        """Return the model for decode steps, with the decode kernel if the engine uses it."""
        engine = load.config
        sizes = (engine.block_size, engine.completion_block_size)
        kernel = kernel_for(engine.attention, self.model.shape, sizes, self.platform, engine.num_shards)
        return self.paged_model._replace(kernel=kernel)

    @property
    def sampling(self) -> ProgramInputs:
        """Return the inputs of the engine's programs: those of the first replica, if there are replicas."""
        grid = rollout_grid(self.sections.rollout)
        if grid is None:
            return self
        section = dataclasses.replace(self.model.section, dtype=self.model.compute_dtype)
        devices = self.mesh.devices.reshape(-1)[: grid[1]].reshape(1, 1, -1)
        mesh = jax.sharding.Mesh(devices, self.mesh.axis_names)
        return self._replace(model=self.model._replace(section=section), mesh=mesh)

    @property
    def cache_dtype(self) -> Any:
        """Return the dtype of cached keys and values."""
        return jnp.dtype(self.model.compute_dtype)


def programs(inputs: ProgramInputs, work: Workload) -> Mapping[str, Callable[[], Lowered]]:
    """Return a function by name that lowers each program of a step."""
    lowering: dict[str, Callable[[], Lowered]] = {}
    if work.update is not None:
        lowering["update"] = partial(lower_update, inputs, work.update)
        if work.scoring_passes:
            lowering["score"] = partial(lower_score, inputs, work.update, work.batches)
    load = work.evaluation if work.rollout is None else work.rollout
    lowering["prefill"] = partial(lower_prefill, inputs.sampling, load)
    lowering["decode"] = partial(lower_decode, inputs.sampling, load)
    return lowering


def lower_update(inputs: ProgramInputs, work: Update) -> Lowered:
    """Lower one update of the policy on a batch, with donated inputs and fixed output shardings, as in `make_step`."""
    cfg, state = inputs.sections.grpo, abstract_state(inputs)
    objective = inputs.loss or (losses.ppo_loss if cfg.algorithm == "ppo" else losses.grpo_loss)
    on_policy = not (needs_old_logprobs(cfg) or inputs.sections.rollout.exact)
    step = make_step(
        _policy(inputs),
        partial(objective, cfg=cfg, on_policy=on_policy),
        _optimizer(inputs),
        work.micro_batches_of(),
    )

    def update(donated: PyTree, frozen: PyTree, batch: GroupBatch) -> PyTree:
        count, trainable, opt_state = donated
        new_state, metrics = step(TrainState(count, trainable, frozen, None, opt_state), batch)
        return (new_state.step, new_state.trainable, new_state.opt_state), metrics

    donated = (state.step, state.trainable, state.opt_state)
    out = jax.tree.map(lambda x: x.sharding, donated)
    batch = _batch(inputs, work, work.prompts, has_old=not on_policy)
    with jax.set_mesh(inputs.mesh):
        compiled_update = jax.jit(update, donate_argnames="donated", out_shardings=(out, None))
        return compiled_update.lower(donated, state.frozen, batch)


def lower_score(inputs: ProgramInputs, work: Update, minibatches: int) -> Lowered:
    """Lower the program that scores a step's whole batch under the old policy or the reference."""
    state = abstract_state(inputs)
    batch = _batch(inputs, work, work.prompts * minibatches, has_old=False, is_sampled=True)
    with jax.set_mesh(inputs.mesh):
        scorer = make_scorer(_policy(inputs), work.micro_batches_of(minibatches))
        return scorer.lower(state.trainable, state.frozen, batch)  # type: ignore[attr-defined] # of a jitted function


def lower_prefill(inputs: ProgramInputs, load: EngineLoad) -> Lowered:
    """Lower the program that prefills a chunk of prompts after their first chunk, and so reads earlier keys."""
    (rows, tokens), sizes, array = load.prefill_shape, load.sizes, partial(_replicated, inputs)
    chunk = PrefillChunk(
        tokens=array((rows, tokens)), length=array((rows,)), start=array((rows,)),
        table=array((rows, sizes.prompt_columns)), prompt_slot=array((rows,)),
    )  # fmt: skip
    pool = _pool(inputs, sizes.prompt_blocks, load.config.block_size)
    with jax.set_mesh(inputs.mesh):
        return prefill_chunk.lower(
            _weights(inputs), inputs.paged_model, pool, _hidden_states(inputs, sizes.prompt_slots), chunk, has_past=True
        )


def lower_decode(inputs: ProgramInputs, load: EngineLoad) -> Lowered:
    """Lower the program of a chunk of decode steps. The tables of stop strings have the minimum size."""
    sampling, model = inputs.sections.sampling, inputs.model.shape
    sizes, n = load.sizes, load.config.max_num_seqs
    penalizes = sampling.repetition_penalty != 1
    truncation = Truncation(sampling.top_k > 0, sampling.top_p < 1, sampling.min_p > 0)
    chunk = ChunkConfig(
        inputs.decoding(load), samples=True, has_greedy=False, truncation=truncation, penalizes=penalizes,
        steps=load.config.chunk_steps,
    )  # fmt: skip
    array = partial(_replicated, inputs)

    def block_map(sequences: int, columns: int, blocks: int) -> BlockMap:
        return BlockMap(array((sequences, columns)), array((blocks,)), array((blocks,)))

    seen = array((sizes.prompt_slots, model.vocab_size), bool) if penalizes else None
    prompts = PromptSlots(
        block_map(sizes.prompt_slots, sizes.prompt_columns, sizes.prompt_blocks), array((sizes.prompt_slots,)),
        _hidden_states(inputs, sizes.prompt_slots), seen,
    )  # fmt: skip
    blocks = block_map(n, sizes.completion_columns, sizes.completion_blocks)
    prompt_pool = _pool(inputs, sizes.prompt_blocks, load.config.block_size)
    completion_pool = _pool(inputs, sizes.completion_blocks, load.config.completion_block_size)
    stops = StopCriteria(array((2,)), array((1, model.vocab_size), jnp.int16), array((1,), bool))
    with jax.set_mesh(inputs.mesh):
        slot_shapes = jax.eval_shape(
            partial(empty_slots, model, n, sizes.prompt_slots, sizes.group_size, inputs.cache_dtype, penalizes)
        )
        slots = _replicate(inputs, slot_shapes).replace(hidden=_hidden_states(inputs, n))
        requests = _replicate(inputs, jax.eval_shape(partial(empty_request, 2 * n + sizes.group_size)))
        return decode_chunk.lower(
            _weights(inputs), chunk, prompt_pool, prompts,
            DecodeState(completion_pool, slots), blocks, RequestRing(requests, array(())),
            stops,
        )  # fmt: skip


def abstract_state(inputs: ProgramInputs) -> TrainState:
    """Return the training state before the first update, as abstract arrays with their shardings."""
    (section, model), mesh = inputs.model, inputs.mesh
    base = _base(inputs)
    trainable, frozen = split(base, model, section.frozen)
    if section.lora.rank:
        trainable, frozen = _adapters(inputs), base
    if inputs.sections.grpo.algorithm == "ppo":
        head = jax.eval_shape(lambda: add_value_head(None, model).value)
        trainable = ActorCritic(trainable, _replicate(inputs, head))
    state = jax.eval_shape(lambda params: init_state(params, _optimizer(inputs)), trainable)
    shardings: dict[Any, Any] = {path: leaf.sharding for path, leaf in jax.tree.leaves_with_path(trainable)}

    def place(path: tuple[Any, ...], leaf: Any) -> Any:
        # An optimizer's array has the sharding of the weight at the end of its path, if it has as many dimensions.
        for start in range(len(path)):
            sharding = shardings.get(path[start:])
            if sharding is not None and len(sharding.spec) <= leaf.ndim:
                return _abstract(leaf, sharding)
        return _abstract(leaf, replicated_sharding(mesh))

    opt_state = jax.tree.map_with_path(place, state.opt_state)
    return TrainState(_replicated(inputs, ()), trainable, frozen, None, opt_state)


def _base(inputs: ProgramInputs) -> PyTree:
    """Return the model's abstract parameters with the shardings of the rule table."""
    section, model = inputs.model
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0), jnp.dtype(section.dtype)))
    return jax.tree.map(_abstract, shapes, param_shardings(model, inputs.mesh))


def _adapters(inputs: ProgramInputs) -> PyTree:
    """Return the model's abstract LoRA adapters."""
    lora, model = inputs.model.section.lora, inputs.model.shape
    shapes = jax.eval_shape(lambda: init_adapters(model, lora.rank, lora.alpha, lora.targets, jax.random.key(0)))
    return jax.tree.map(_abstract, shapes, adapter_shardings(model, lora.rank, lora.alpha, lora.targets, inputs.mesh))


def _weights(inputs: ProgramInputs) -> PyTree:
    """Return the engine's abstract weights with separate arrays per layer, as its programs take them."""
    return abstract_layers(_params(inputs))


def _params(inputs: ProgramInputs) -> PyTree:
    """Return the engine's abstract parameters: the weights, or the frozen base with adapters."""
    base = _base(inputs)
    if not inputs.model.section.lora.rank:
        return base
    adapters = _adapters(inputs)
    params = jax.eval_shape(policy_params, adapters, base)
    shardings = policy_params(jax.tree.map(lambda x: x.sharding, adapters).replace(scale=_Identity()), base)

    def place(leaf: Any, like: Any) -> jax.ShapeDtypeStruct:
        sharding: Any = getattr(like, "sharding", like)
        return _abstract(leaf, sharding)

    return jax.tree.map(place, params, shardings)


class _Identity:
    """In place of an adapter's scale in a tree of shardings: `policy_params` multiplies by it without effect."""

    def __mul__(self, other: Any) -> Any:
        return other


def _policy(inputs: ProgramInputs) -> Callable[..., Any]:
    """Return the function that computes the policy's log-probabilities, as in training."""
    section, model = inputs.model
    attention = for_platform(section.attention, model, inputs.model.compute_dtype, inputs.platform)
    temperature, logits = inputs.sections.sampling.temperature, section.kept_logits
    return make_policy(model, temperature, section.remat, inputs.dtype, attention, logits)


def _optimizer(inputs: ProgramInputs) -> optax.GradientTransformation:
    (section, model), grpo = inputs.model, inputs.sections.grpo
    mask = None if section.lora.rank else decay_mask(model, section.frozen)
    return make_optimizer(grpo.optim, grpo.steps * grpo.num_iterations * grpo.minibatches, mask)


def _batch(
    inputs: ProgramInputs, work: Update, num_prompts: int, has_old: bool, is_sampled: bool = False
) -> GroupBatch:
    """Return an abstract batch of `num_prompts` prompts.

    has_old: whether the loss needs the old policy's log-probabilities. is_sampled: the batch is to be scored, so it has
    no log-probabilities of the old policy or the reference yet, and no advantages.
    """
    grpo, sharding = inputs.sections.grpo, batch_sharding(inputs.mesh)

    def array(*shape: int, dtype: DTypeLike = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct((num_prompts, *shape), jnp.dtype(dtype), sharding=sharding)

    per_token, per_answer = (work.group, work.answer), (work.group,)
    is_ppo = grpo.algorithm == "ppo"
    optional: Record = {"demonstrated": array(*per_answer, dtype=bool) if grpo.demonstrations else None}
    if not is_sampled:
        optional |= {
            "old_logprobs": array(*per_token) if has_old else None,
            "reference_logprobs": array(*per_token) if grpo.kl.coef > 0 else None,
            "advantage": array(*per_token) if is_ppo else array(work.group, 1),
            "old_values": array(*per_token) if is_ppo else None,
            "returns": array(*per_token) if is_ppo else None,
        }
    if work.packed_rows:
        optional["packed_start"] = array(work.group, dtype=jnp.int32)
        optional["packed_length"] = array(work.packed_rows, dtype=jnp.int32)
    return GroupBatch(
        shared=(Segment(array(work.prompt, dtype=jnp.int32), array(dtype=jnp.int32)),),
        completion=array(*per_token, dtype=jnp.int32),
        completion_len=array(*per_answer, dtype=jnp.int32),
        loss_mask=array(*per_token, dtype=bool),
        behavior_logprobs=array(*per_token),
        rollout_logprobs=array(*per_token),
        reward=array(*per_answer),
        weight=array(*per_answer),
        truncated=array(*per_answer, dtype=bool),
        **optional,
    )


def _pool(inputs: ProgramInputs, blocks: int, block_size: int) -> KVPool:
    """Return an abstract pool of KV blocks."""
    model = inputs.model.shape
    shape = (blocks, model.n_kv_heads, block_size, model.head_dim)
    sharding = jax.NamedSharding(inputs.mesh, split_of(inputs.mesh, POOL, shape))
    layer: Any = jax.ShapeDtypeStruct(shape, inputs.cache_dtype, sharding=sharding)
    return KVPool((layer,) * model.n_layers, (layer,) * model.n_layers)


def _hidden_states(inputs: ProgramInputs, rows: int) -> PyTree:
    """Return the abstract hidden states [rows,D] of prompt slots or decode slots."""
    shape = (rows, inputs.model.shape.d_model)
    sharding = jax.NamedSharding(inputs.mesh, split_of(inputs.mesh, ("batch", "none"), shape))
    return jax.ShapeDtypeStruct(shape, inputs.cache_dtype, sharding=sharding)


def _replicated(inputs: ProgramInputs, shape: tuple[int, ...], dtype: DTypeLike = jnp.int32) -> Any:
    """Return an abstract array that is replicated on every device."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=replicated_sharding(inputs.mesh))


def _replicate(inputs: ProgramInputs, tree: PyTree) -> PyTree:
    """Return a tree's arrays as abstract arrays that are replicated on every device."""
    return jax.tree.map(lambda x: _abstract(x, replicated_sharding(inputs.mesh)), tree)


def _abstract(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
