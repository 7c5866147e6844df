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
from jaxrl_sql.models.attention.paged_kernel import fetched
from jaxrl_sql.models.flops import UPDATE_PASSES, decode_flops, grouped_forward_flops, layer_weights
from jaxrl_sql.parallel.rules import batch_ways
from jaxrl_sql.planning.chips import Chip
from jaxrl_sql.planning.lengths import ALL_LONGEST, Lengths, Schedule, StepLengths, longest, schedule, schedule_ahead
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.workload import EngineLoad, Update, Workload, decode_grids, head_ways, pieces_of_logits

# Seconds of an empty collective: an assumption for every chip, not measured.
LATENCY = 1e-6
# The phases in which answers are sampled.
SAMPLING = ("weights", "prefill", "decode")
# Operations per element of a sum by a matrix product: multiply and add, in six bfloat16 passes for float32.
_SUMS = 2 * 6


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
        """Return the least seconds of the phase: its slowest resource's."""
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
        """Return the least seconds of the phase in a step."""
        return self.runs * self.cost.seconds(chip)


def phases(
    model: PlannedModel, sizes: Mapping[str, int], work: Workload, lengths: StepLengths = ALL_LONGEST
) -> list[StepProgram]:
    """Return the phases of a step on a mesh of these sizes, with answers and prompts of these lengths.

    Without reinforcement learning it is a supervised step, if there is one.
    """
    shape, width = model.shape, model.compute_width
    if work.update is None or work.rollout is None:
        return [StepProgram("update", _update(model, sizes, update), 1) for update in work.learned]
    load, update = work.rollout, work.update
    prompts = (lengths.prompts or longest(load.prompt)).take(load.questions)
    plan = (schedule_ahead if load.ahead else schedule)(
        lengths.answers or longest(load.completion), load.questions, load.group, load.config.max_num_seqs,
        load.config.completion_block_size,
    )  # fmt: skip
    # The rows of a chunk are different prompts, so the longest prompt sets the number of chunks.
    (rows, chunk), in_order = load.prefill_shape, np.sort(prompts)[::-1]
    pieces = float(sum(-(-in_order[first] // chunk) for first in range(0, load.questions, rows)))
    pieces += plan.again / load.questions * pieces + plan.resumed / (rows * chunk)
    steps, here = list[StepProgram](), sizes
    if work.copies is not None:
        here = {"data": 1, "fsdp": 1, "tensor": work.copies[1]}
        steps.append(StepProgram("weights", _copy_weights(shape, sizes, work.copies[1], width), 1 / work.served))
    steps.append(StepProgram("prefill", _prefill(shape, here, load, width), pieces / work.served))
    steps.append(StepProgram("decode", _decode(shape, here, load, width, plan, prompts), plan.steps / work.served))
    if work.scored:
        whole = update._replace(prompts=update.prompts * work.batches, parts=update.parts * work.batches)
        steps.append(StepProgram("score", _score(shape, sizes, whole, width), work.scored))
    steps.append(StepProgram("update", _update(model, sizes, update), work.updates))
    return steps


def step_seconds(steps: list[StepProgram], chip: Chip) -> float:
    """Return the least seconds of a step; SQL runs concurrently with the rollout and is not counted."""
    return sum(phase.seconds(chip) for phase in steps)


def answer_tokens(work: Workload, answers: Lengths | None = None) -> float:
    """Return the tokens of a step's answers, sampled or taught."""
    if work.rollout is not None:
        return work.questions * work.rollout.group * (answers or longest(work.rollout.completion)).mean
    return sum(update.prompts * update.group * (answers or longest(update.answer)).mean for update in work.learned)


def _tables(model: ModelConfig) -> int:
    """Return the parameters of the embeddings, and of the output matrix if it is not tied."""
    return (1 if model.tie_embeddings else 2) * model.vocab_size * model.d_model


def _others(ways: float) -> float:
    """Return the share of an array that a chip receives if it is split over `ways` chips."""
    return (ways - 1) / ways


def _copy_weights(model: ModelConfig, sizes: Mapping[str, int], tensor: int, width: int) -> Cost:
    """Return the cost of copying the weights to replicas, each over `tensor` chips."""
    copied = width * (model.n_layers * layer_weights(model) + _tables(model)) / tensor
    return Cost(0, 3 * copied, copied * _others(sizes["fsdp"] * sizes["tensor"] / math.gcd(tensor, sizes["tensor"])))


def _prefill(model: ModelConfig, sizes: Mapping[str, int], load: EngineLoad, width: int) -> Cost:
    """Return the mean cost of prefilling one chunk of prompts.

    Each shard of the batch has separate rows. Weights are gathered along `fsdp`; the blocks of earlier and new keys are
    on all chips.
    """
    rows, chunk = load.prefill_shape
    fsdp, tensor, ways = sizes["fsdp"], sizes["tensor"], batch_ways(sizes)
    tokens = rows * chunk / ways
    flops = grouped_forward_flops(model, 1, load.prompt, 0, 0) * rows / -(-load.prompt // chunk) / ways / tensor
    layers = width * model.n_layers * layer_weights(model) / tensor
    tables = width * _tables(model) / tensor
    a_key = 2 * model.n_kv_heads * model.head_dim * width
    past, new = model.n_layers * a_key * rows * load.prompt / tensor, model.n_layers * a_key * rows * chunk / tensor
    added = model.n_layers * 4 * tokens * model.d_model * width * _others(tensor)
    embedded = width * model.vocab_size * model.d_model * _others(fsdp) / tensor
    link = layers * _others(fsdp) + (past + new) * _others(ways) + added + embedded
    out = (model.n_heads + 2 * model.n_kv_heads) * model.head_dim + 2 * model.d_ff
    moved = model.n_layers * tokens * (out + 4 * model.d_model) * width * 2 / tensor + past
    return Cost(flops, layers * (2 if fsdp > 1 else 1) + tables + moved, link)


def _decode(
    model: ModelConfig, sizes: Mapping[str, int], load: EngineLoad, width: int, plan: Schedule, prompts: np.ndarray
) -> Cost:
    """Return the cost of a mean decode step: all slots compute, including idle ones.

    Each chip has its share of rows and blocks; weights are gathered, and each chip adds one part of each row's softmax.
    XLA reads every block of the pools. The kernel reads the blocks of valid keys, a prompt's once per group, and moves
    the data of its grids for attended prompts and decoding slots. `prompts` are the tokens of the prompts.
    """
    slots, held = load.config.max_num_seqs, load.sizes
    tensor, fsdp, ways = sizes["tensor"], sizes["fsdp"], batch_ways(sizes)
    split = ways if slots % ways == 0 else 1
    flops = decode_flops(model, slots, float(prompts.mean()), 1, plan.generated / plan.rows) / split / tensor
    weights = width * (model.n_layers * layer_weights(model) + _tables(model)) / tensor
    heads = tensor if model.n_kv_heads % tensor == 0 else 1
    is_kernel = load.config.attention == "pallas"
    if is_kernel:
        block = load.config.block_size
        pages = plan.prompts * float((-(-prompts // block) * block).mean()) + plan.held
        keys = fetched(pages, model.n_kv_heads // heads, model.head_dim, width)
        grids = decode_grids(model, load, heads)
        keys += sum(grid.moved(width, there) for grid, there in zip(grids, (plan.prompts, plan.rows), strict=True))
        keys *= model.n_layers
    else:
        keys = 2 * model.n_layers * model.n_kv_heads * model.head_dim * width * load.cache_tokens / ways / heads
    a_part = model.n_layers * model.n_heads * (model.head_dim + 2) * 4 / head_ways(model, tensor)
    logits = 6 * slots * model.vocab_size * 4
    link, waits = weights * _others(fsdp), model.n_layers * ((fsdp > 1) + 2 * (tensor > 1) + 2 * (ways > 1))
    if is_kernel:
        parts = 0.0
    elif ways == 1:
        pairs = held.prompt_blocks * held.group_size + held.completion_blocks
        parts = pairs + slots * (held.prompt_columns + held.completion_columns)  # each row fetches those of its blocks
    else:
        pools = load.pools_here(ways)
        parts = sum((pages + owners) * readers for pages, owners, readers in pools)
        flops += _SUMS * sum(pages * owners * readers for pages, owners, readers in pools) * a_part / 4
        queries = slots * a_part / 4 * width  # queries go to all chips, and each returns a part of each row
        link += (queries + a_part * slots * (1 if split > 1 else 2)) * _others(ways)
    link += model.n_layers * 4 * slots / split * model.d_model * width * _others(tensor)
    return Cost(flops, weights * (2 if fsdp > 1 else 1) + keys + 2 * a_part * parts + logits, link, waits)


def _score(model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int) -> Cost:
    """Return the cost of scoring a batch once, without gradients."""
    chips = batch_ways(sizes) * sizes["tensor"]
    flops = _forward(model, work) / chips
    weights = width * (model.n_layers * layer_weights(model) + _tables(model)) / sizes["tensor"]
    stream = _stream(model, sizes, work, width)
    link = work.passes * _gather_bytes(model, sizes, work, width, layers=1, embedding=1, logits=1)
    link += 4 * stream * _others(sizes["tensor"])
    return Cost(flops, work.passes * weights * 2 + 12 * stream + _layer_traffic(model, sizes, work, width), link)


def _update(model: PlannedModel, sizes: Mapping[str, int], work: Update) -> Cost:
    """Return the cost of an update; with remat each layer runs forward twice.

    Forward and backward passes gather a layer's weights, and its gradient is reduced in float32 over `fsdp`; the
    gradient of an embedding is reduced as a whole.
    """
    (shape, width), (tensor, data) = (model.shape, model.compute_width), (sizes["tensor"], sizes["data"])
    forward = _forward(shape, work)
    passes, learns = UPDATE_PASSES + (model.section.remat != "none"), not model.section.lora.rank
    whole = shape.n_layers * layer_weights(shape) + _tables(shape)
    held = whole / sizes["fsdp"] / tensor
    stream = _stream(shape, sizes, work, width)
    summed = learns * (2 if shape.tie_embeddings else 1)  # whole, or to a piece a chip
    weights = _gather_bytes(shape, sizes, work, width, layers=2, embedding=1, logits=2)
    gradients = _gather_bytes(shape, sizes, work, 4, layers=learns, embedding=2 * learns, logits=summed)
    link = work.passes * (weights + gradients)
    link += 2 * 4 * held * _others(data) * learns + 4 * passes * stream * _others(tensor)
    state = held * (20 if learns else 4)  # weights, gradients and moments, read and written
    moved = passes * (12 * stream + _layer_traffic(shape, sizes, work, width))
    hbm = work.passes * passes * width * whole / tensor + moved + state
    return Cost(forward * passes / batch_ways(sizes) / tensor, hbm, link)


def _forward(model: ModelConfig, work: Update) -> float:
    """Return the operations of a batch's forward pass, with repeated prompts for further parts of their answers.

    A common schema runs once for its prompts.
    """
    whole = grouped_forward_flops(model, work.prompts, work.prompt, work.rows, work.answer)
    saved = work.repeats * grouped_forward_flops(model, 1, work.schema, 0, work.answer)
    return whole + work.again * grouped_forward_flops(model, work.prompts, work.prompt, 0, work.answer) - saved


def _gather_bytes(
    model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int, layers: int, embedding: int, logits: int
) -> float:
    """Return the bytes of weights that a chip receives over `fsdp` in a part of an update.

    `layers`, `embedding` and `logits` are the numbers of transfers of each. The partitioner moves the output matrix
    again for each piece of the logits.
    """
    table = model.vocab_size * model.d_model
    again = logits * pieces_of_logits(model, work, sizes)
    moved = layers * model.n_layers * layer_weights(model) + (embedding + again) * table
    return width * moved * _others(sizes["fsdp"]) / sizes["tensor"]


def _stream(model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int) -> float:
    """Return the bytes of all layers' hidden states of a chip's share of a batch."""
    return model.n_layers * work.tokens / batch_ways(sizes) * model.d_model * width


def _layer_traffic(model: ModelConfig, sizes: Mapping[str, int], work: Update, width: int) -> float:
    """Return the bytes that a forward pass writes and reads within its layers."""
    inner = 4 * model.d_ff + (4 * model.n_heads + 4 * model.n_kv_heads) * model.head_dim
    return model.n_layers * work.tokens / batch_ways(sizes) * inner / sizes["tensor"] * width * 2
