"""The cost of a step per chip by formula: FLOPs, bytes of memory and of links, and the lower bound in seconds.

The time of a phase is that of its slowest resource, a lower bound (roofline, Williams et al. 2009). Operations come
from `models.flops`. Bytes of links follow the partitioner's observed behaviour for each program on a mesh; if a program
is compiled, its own collectives replace them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.attention.paged_kernel import fetch_bytes
from jaxrl_sql.models.flops import UPDATE_PASSES, decode_flops, grouped_forward_flops, layer_weights
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.chips import Chip
from jaxrl_sql.planning.lengths import ALL_LONGEST, Lengths, Schedule, StepLengths, constant, schedule, schedule_ahead
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.workload import EngineLoad, Update, Workload, decode_grids, num_head_shards, update_logit_chunks

# Seconds of an empty collective: an assumption for every chip, not measured.
LATENCY = 1e-6
# The phases in which answers are sampled.
SAMPLING = ("weights", "prefill", "decode")
# Operations per element of a sum by a matrix product: multiply and add, in six bfloat16 passes for float32.
_SUM_FLOPS = 2 * 6


class Cost(NamedTuple):
    """The cost of one run of a program per chip: operations, bytes of its memory, bytes received from other chips.

    waits: number of consecutive collectives, each of which takes at least `LATENCY`.
    """

    flops: float
    hbm: float
    link: float
    waits: float = 0.0

    def bounds(self, chip: Chip) -> Mapping[str, float]:
        """Return the seconds of each resource at the chip's peak."""
        links = self.link / chip.link + self.waits * LATENCY
        return {"compute": self.flops / chip.flops, "memory": self.hbm / chip.hbm, "links": links}

    def seconds(self, chip: Chip) -> float:
        """Return the minimum seconds of the phase: its slowest resource's."""
        return max(self.bounds(chip).values())

    def bound_by(self, chip: Chip) -> str:
        """Return the slowest resource."""
        bounds = self.bounds(chip)
        return max(bounds, key=lambda name: bounds[name])


class StepProgram(NamedTuple):
    """A part of a step: the cost of one run of its program, and the number of runs per step."""

    name: str
    cost: Cost
    runs: float

    def seconds(self, chip: Chip) -> float:
        """Return the minimum seconds of the phase in a step."""
        return self.runs * self.cost.seconds(chip)


def phases(
    model: PlannedModel, sizes: Mapping[str, int], work: Workload, lengths: StepLengths = ALL_LONGEST
) -> list[StepProgram]:
    """Return the phases of a step on a mesh of these sizes, with answers and prompts of these lengths.

    Without reinforcement learning it is a supervised step, if there is one.
    """
    shape, width = model.shape, model.bytes_per_activation
    if work.update is None or work.rollout is None:
        return [StepProgram("update", _update(model, sizes, update), 1) for update in work.trained_updates]
    load, update = work.rollout, work.update
    prompts = (lengths.prompts or constant(load.prompt)).take(load.questions)
    plan = (schedule_ahead if load.ahead else schedule)(
        lengths.answers or constant(load.completion), load.questions, load.group, load.config.max_num_seqs,
        load.config.completion_block_size,
    )  # fmt: skip
    # The rows of a chunk are different prompts, so the longest prompt sets the number of chunks.
    (rows, chunk), in_order = load.prefill_shape, np.sort(prompts)[::-1]
    prompt_chunks = float(sum(-(-in_order[first] // chunk) for first in range(0, load.questions, rows)))
    prompt_chunks += plan.repeated_prompts / load.questions * prompt_chunks + plan.resumed_tokens / (rows * chunk)
    steps, engine_sizes = list[StepProgram](), sizes
    if work.rollout_grid is not None:
        engine_sizes = {"data": 1, "fsdp": 1, "tensor": work.rollout_grid[1]}
        steps.append(
            StepProgram("weights", _copy_weights(shape, sizes, work.rollout_grid[1], width), 1 / work.steps_per_rollout)
        )
    steps.append(
        StepProgram("prefill", _prefill(shape, engine_sizes, load, width), prompt_chunks / work.steps_per_rollout)
    )
    steps.append(
        StepProgram(
            "decode", _decode(shape, engine_sizes, load, width, plan, prompts), plan.steps / work.steps_per_rollout
        )
    )
    if work.scoring_passes:
        all_batches = update._replace(prompts=update.prompts * work.batches, parts=update.parts * work.batches)
        steps.append(StepProgram("score", _score(shape, sizes, all_batches, width), work.scoring_passes))
    steps.append(StepProgram("update", _update(model, sizes, update), work.updates))
    return steps


def step_seconds(steps: list[StepProgram], chip: Chip) -> float:
    """Return the minimum seconds of a step; SQL runs concurrently with the rollout and is not counted."""
    return sum(phase.seconds(chip) for phase in steps)


def answer_tokens(work: Workload, answers: Lengths | None = None) -> float:
    """Return the tokens of a step's answers, sampled or supervised."""
    if work.rollout is not None:
        return work.questions * work.rollout.group * (answers or constant(work.rollout.completion)).mean
    return sum(
        update.prompts * update.group * (answers or constant(update.answer)).mean for update in work.trained_updates
    )


def _embedding_params(model: ModelConfig) -> int:
    """Return the parameters of the embeddings, and of the output matrix if it is not tied."""
    return (1 if model.tie_embeddings else 2) * model.vocab_size * model.d_model


def _remote_share(num_shards: float) -> float:
    """Return the share of an array that a chip receives if it is split over `num_shards` chips."""
    return (num_shards - 1) / num_shards


def _copy_weights(model: ModelConfig, sizes: Mapping[str, int], tensor: int, width: int) -> Cost:
    """Return the cost of copying the weights to replicas, each over `tensor` chips."""
    copied = width * (model.n_layers * layer_weights(model) + _embedding_params(model)) / tensor
    return Cost(
        0, 3 * copied, copied * _remote_share(sizes["fsdp"] * sizes["tensor"] / math.gcd(tensor, sizes["tensor"]))
    )


def _prefill(model: ModelConfig, sizes: Mapping[str, int], load: EngineLoad, width: int) -> Cost:
    """Return the mean cost of prefilling one chunk of prompts.

    Each shard of the batch has separate rows. Weights are gathered along `fsdp`; the blocks of earlier and new keys are
    on all chips.
    """
    rows, chunk = load.prefill_shape
    fsdp, tensor, num_shards = sizes["fsdp"], sizes["tensor"], num_batch_shards(sizes)
    tokens = rows * chunk / num_shards
    flops = grouped_forward_flops(model, 1, load.prompt, 0, 0) * rows / -(-load.prompt // chunk) / num_shards / tensor
    layers = width * model.n_layers * layer_weights(model) / tensor
    embeddings = width * _embedding_params(model) / tensor
    key_bytes = 2 * model.n_kv_heads * model.head_dim * width
    past, new = (
        model.n_layers * key_bytes * rows * load.prompt / tensor,
        model.n_layers * key_bytes * rows * chunk / tensor,
    )
    reduced = model.n_layers * 4 * tokens * model.d_model * width * _remote_share(tensor)
    embedded = width * model.vocab_size * model.d_model * _remote_share(fsdp) / tensor
    link = layers * _remote_share(fsdp) + (past + new) * _remote_share(num_shards) + reduced + embedded
    out = (model.n_heads + 2 * model.n_kv_heads) * model.head_dim + 2 * model.d_ff
    traffic = model.n_layers * tokens * (out + 4 * model.d_model) * width * 2 / tensor + past
    return Cost(flops, layers * (2 if fsdp > 1 else 1) + embeddings + traffic, link)


def _decode(
    model: ModelConfig, sizes: Mapping[str, int], load: EngineLoad, width: int, plan: Schedule, prompts: np.ndarray
) -> Cost:
    """Return the cost of a mean decode step: all slots compute, including idle ones.

    Each chip has its share of rows and blocks; weights are gathered, and each chip adds one part of each row's softmax.
    XLA reads every block of the pools. The kernel reads the blocks of valid keys, a prompt's once per group, and moves
    the data of its grids for attended prompts and decoding slots. `prompts` are the tokens of the prompts.
    """
    slots, pool_sizes = load.config.max_num_seqs, load.sizes
    tensor, fsdp, num_shards = sizes["tensor"], sizes["fsdp"], num_batch_shards(sizes)
    row_shards = num_shards if slots % num_shards == 0 else 1
    flops = decode_flops(model, slots, float(prompts.mean()), 1, plan.generated / plan.rows) / row_shards / tensor
    weights = width * (model.n_layers * layer_weights(model) + _embedding_params(model)) / tensor
    heads = tensor if model.n_kv_heads % tensor == 0 else 1
    is_kernel = load.config.attention == "pallas"
    if is_kernel:
        block = load.config.block_size
        pages = plan.prompts * float((-(-prompts // block) * block).mean()) + plan.block_tokens
        keys = fetch_bytes(pages, model.n_kv_heads // heads, model.head_dim, width)
        grids = decode_grids(model, load, heads)
        keys += sum(
            grid.bytes_moved(width, active) for grid, active in zip(grids, (plan.prompts, plan.rows), strict=True)
        )
        keys *= model.n_layers
    else:
        keys = 2 * model.n_layers * model.n_kv_heads * model.head_dim * width * load.cache_tokens / num_shards / heads
    partial_bytes = model.n_layers * model.n_heads * (model.head_dim + 2) * 4 / num_head_shards(model, tensor)
    logits = 6 * slots * model.vocab_size * 4
    link, waits = weights * _remote_share(fsdp), model.n_layers * ((fsdp > 1) + 2 * (tensor > 1) + 2 * (num_shards > 1))
    if is_kernel:
        parts = 0.0
    elif num_shards == 1:
        pairs = pool_sizes.prompt_blocks * pool_sizes.group_size + pool_sizes.completion_blocks
        parts = pairs + slots * (
            pool_sizes.prompt_columns + pool_sizes.completion_columns
        )  # each row fetches those of its blocks
    else:
        pools = load.local_pools(num_shards)
        parts = sum((pages + owners) * readers for pages, owners, readers in pools)
        flops += _SUM_FLOPS * sum(pages * owners * readers for pages, owners, readers in pools) * partial_bytes / 4
        queries = slots * partial_bytes / 4 * width  # queries go to all chips, and each returns a part of each row
        link += (queries + partial_bytes * slots * (1 if row_shards > 1 else 2)) * _remote_share(num_shards)
    link += model.n_layers * 4 * slots / row_shards * model.d_model * width * _remote_share(tensor)
    return Cost(flops, weights * (2 if fsdp > 1 else 1) + keys + 2 * partial_bytes * parts + logits, link, waits)


def _score(model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int) -> Cost:
    """Return the cost of scoring a batch once, without gradients."""
    chips = num_batch_shards(sizes) * sizes["tensor"]
    flops = _forward(model, work) / chips
    weights = width * (model.n_layers * layer_weights(model) + _embedding_params(model)) / sizes["tensor"]
    stream = _stream(model, sizes, work, width)
    link = work.passes * _gather_bytes(model, sizes, work, width, layers=1, embedding=1, logits=1)
    link += 4 * stream * _remote_share(sizes["tensor"])
    return Cost(flops, work.passes * weights * 2 + 12 * stream + _layer_traffic(model, sizes, work, width), link)


def _update(model: PlannedModel, sizes: Mapping[str, int], work: Update) -> Cost:
    """Return the cost of an update; with remat each layer runs forward twice.

    Forward and backward passes gather a layer's weights, and its gradient is reduced in float32 over `fsdp`; the
    gradient of an embedding is reduced as a whole.
    """
    (shape, width), (tensor, data) = (model.shape, model.bytes_per_activation), (sizes["tensor"], sizes["data"])
    forward = _forward(shape, work)
    passes, trains_weights = UPDATE_PASSES + (model.section.remat != "none"), not model.section.lora.rank
    params = shape.n_layers * layer_weights(shape) + _embedding_params(shape)
    local_params = params / sizes["fsdp"] / tensor
    stream = _stream(shape, sizes, work, width)
    logit_sums = trains_weights * (2 if shape.tie_embeddings else 1)  # whole, or a share per chip
    weights = _gather_bytes(shape, sizes, work, width, layers=2, embedding=1, logits=2)
    gradients = _gather_bytes(
        shape, sizes, work, 4, layers=trains_weights, embedding=2 * trains_weights, logits=logit_sums
    )
    link = work.passes * (weights + gradients)
    link += 2 * 4 * local_params * _remote_share(data) * trains_weights + 4 * passes * stream * _remote_share(tensor)
    state = local_params * (20 if trains_weights else 4)  # weights, gradients and moments, read and written
    traffic = passes * (12 * stream + _layer_traffic(shape, sizes, work, width))
    hbm = work.passes * passes * width * params / tensor + traffic + state
    return Cost(forward * passes / num_batch_shards(sizes) / tensor, hbm, link)


def _forward(model: ModelConfig, work: Update) -> float:
    """Return the operations of a batch's forward pass, with repeated prompts for further parts of their answers.

    A common schema runs once for its prompts.
    """
    batch_flops = grouped_forward_flops(model, work.prompts, work.prompt, work.rows, work.answer)
    saved = work.schema_repeats * grouped_forward_flops(model, 1, work.schema, 0, work.answer)
    return (
        batch_flops
        + work.prompt_repeats * grouped_forward_flops(model, work.prompts, work.prompt, 0, work.answer)
        - saved
    )


def _gather_bytes(
    model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int, layers: int, embedding: int, logits: int
) -> float:
    """Return the bytes of weights that a chip receives over `fsdp` in a part of an update.

    `layers`, `embedding` and `logits` are the numbers of transfers of each. The partitioner moves the output matrix
    again for each chunk of the logits.
    """
    table = model.vocab_size * model.d_model
    logit_transfers = logits * update_logit_chunks(model, work, sizes)
    weights = layers * model.n_layers * layer_weights(model) + (embedding + logit_transfers) * table
    return width * weights * _remote_share(sizes["fsdp"]) / sizes["tensor"]


def _stream(model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int) -> float:
    """Return the bytes of all layers' hidden states of a chip's share of a batch."""
    return model.n_layers * work.tokens / num_batch_shards(sizes) * model.d_model * width


def _layer_traffic(model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int) -> float:
    """Return the bytes that a forward pass writes and reads within its layers."""
    inner = 4 * model.d_ff + (4 * model.n_heads + 4 * model.n_kv_heads) * model.head_dim
    return model.n_layers * work.tokens / num_batch_shards(sizes) * inner / sizes["tensor"] * width * 2
