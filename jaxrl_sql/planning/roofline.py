"""The cost of a step per chip by formula: FLOPs, bytes of memory and of links, and the lower bound in seconds.

The time of a phase is that of its slowest resource, a lower bound (roofline, Williams et al. 2009). Operations come
from `models.flops`. Bytes of links follow the behaviour of XLA's partitioner for each program on a mesh, as observed in
compiled programs. If a program is compiled, its own collectives replace them.

A mesh has the axes `data` (copies of the weights), `fsdp` (weights split and gathered for use) and `tensor` (layers
split by heads and MLP). Batches are split over `data` x `fsdp`, the "shards of the batch". A group is a prompt with its
answers. An update runs in parts (micro-batches); if a prompt's answers do not fit into one, it runs again for each
further part of them. KV blocks are pieces of the KV cache with a fixed number of tokens.

Costs of links: a chip receives (n - 1) / n of the array in an all-gather or reduce-scatter over n chips. In an
all-reduce it receives twice as much, hence factors of 2. With `tensor`, each layer has two all-reduces of its hidden
states (after attention and after the MLP), hence factors of 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.attention.paged_traffic import fetch_bytes
from jaxrl_sql.models.flops import UPDATE_PASSES, decode_flops, grouped_forward_flops, layer_weights
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.chips import Chip
from jaxrl_sql.planning.lengths import ALL_LONGEST, Lengths, Schedule, StepLengths, constant, schedule, schedule_ahead
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.workload import EngineLoad, Update, Workload, decode_grids, num_head_shards, update_logit_chunks

# Seconds of an empty collective: an assumption for every chip, not measured.
LATENCY = 1e-6
# The phases in which answers are sampled; "weights" copies the weights to the rollout engines.
SAMPLING = ("weights", "prefill", "decode")
# Bytes of a float32 number: logits, gradients and partial results of attention.
_FLOAT32 = 4
# Operations per element of a sum by a matrix product: multiply and add, in six bfloat16 passes for float32.
_SUM_FLOPS = 2 * 6


class Cost(NamedTuple):
    """The cost of one run of a program per chip.

    flops: operations; hbm: bytes to and from the chip's memory; link: bytes received from other chips; waits: number of
    consecutive collectives, each of which takes at least `LATENCY`.
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

    They are "weights" (copying them to replicas), "prefill", "decode", "score" (old or reference log-probabilities) and
    "update". Without reinforcement learning it is a supervised step, if there is one, with the phase "update" alone.
    """
    shape, bytes_per_activation = model.shape, model.bytes_per_activation
    if work.update is None or work.rollout is None:
        return [StepProgram("update", _update(model, sizes, update), 1) for update in work.trained_updates]
    load, update = work.rollout, work.update
    prompts = (lengths.prompts or constant(load.prompt)).take(load.questions)
    # With `rollout.ahead`, free slots begin answers of the next rollout.
    decoding = (schedule_ahead if load.ahead else schedule)(
        lengths.answers or constant(load.completion), load.questions, load.group, load.config.max_num_seqs,
        load.config.completion_block_size,
    )  # fmt: skip
    # The rows of a chunk are different prompts, so the longest prompt sets the number of chunks.
    (rows, chunk_tokens), longest_first = load.prefill_shape, np.sort(prompts)[::-1]
    prompt_chunks = float(sum(-(-longest_first[i] // chunk_tokens) for i in range(0, load.questions, rows)))
    # Answers that the previous rollout began continue: their prompts are prefilled again, and so are their tokens.
    repeated_chunks = decoding.repeated_prompts / load.questions * prompt_chunks
    prompt_chunks += repeated_chunks + decoding.resumed_tokens / (rows * chunk_tokens)
    steps, engine_sizes = list[StepProgram](), sizes
    if work.rollout_grid is not None:
        engine_sizes = {"data": 1, "fsdp": 1, "tensor": work.rollout_grid[1]}
        steps.append(
            StepProgram(
                "weights",
                _copy_weights(shape, sizes, work.rollout_grid[1], bytes_per_activation),
                1 / work.steps_per_rollout,
            )
        )
    steps.append(
        StepProgram(
            "prefill", _prefill(shape, engine_sizes, load, bytes_per_activation), prompt_chunks / work.steps_per_rollout
        )
    )
    steps.append(
        StepProgram(
            "decode",
            _decode(shape, engine_sizes, load, bytes_per_activation, decoding, prompts),
            decoding.steps / work.steps_per_rollout,
        )
    )
    if work.scoring_passes:
        all_batches = update._replace(prompts=update.prompts * work.batches, parts=update.parts * work.batches)
        steps.append(StepProgram("score", _score(shape, sizes, all_batches, bytes_per_activation), work.scoring_passes))
    steps.append(StepProgram("update", _update(model, sizes, update), work.updates))
    return steps


def step_seconds(steps: list[StepProgram], chip: Chip) -> float:
    """Return the minimum seconds of a step; SQL runs concurrently with the rollout and is not counted."""
    return sum(phase.seconds(chip) for phase in steps)


def answer_tokens(work: Workload, answers: Lengths | None = None) -> float:
    """Return the total tokens of a step's answers, sampled or supervised."""
    if work.rollout is not None:
        return work.questions * work.rollout.group * (answers or constant(work.rollout.completion)).mean
    return sum(
        update.prompts * update.group * (answers or constant(update.answer)).mean for update in work.trained_updates
    )


def _embedding_params(model: ModelConfig) -> int:
    """Return the parameters of the embeddings, and of the output matrix if it is not tied."""
    return (1 if model.tie_embeddings else 2) * model.vocab_size * model.d_model


def _remote_share(num_shards: float) -> float:
    """Return the share of an array that a chip receives in an all-gather over `num_shards` chips, which split it."""
    return (num_shards - 1) / num_shards


def _copy_weights(model: ModelConfig, sizes: Mapping[str, int], tensor: int, bytes_per_activation: int) -> Cost:
    """Return the cost of copying the weights to replicas, each over `tensor` chips.

    A chip writes its copy, then reads and writes it again to split the layers (`rollout.replicated`): 3 transfers. It
    has a part of its replica's weights already, those that its shards of the training mesh and of the replica share.
    """
    copied = bytes_per_activation * (model.n_layers * layer_weights(model) + _embedding_params(model)) / tensor
    num_parts = sizes["fsdp"] * sizes["tensor"] / math.gcd(tensor, sizes["tensor"])
    return Cost(0, 3 * copied, copied * _remote_share(num_parts))


def _prefill(model: ModelConfig, sizes: Mapping[str, int], load: EngineLoad, bytes_per_activation: int) -> Cost:
    """Return the mean cost of prefilling one chunk of prompts.

    Each shard of the batch has separate rows. Weights are gathered along `fsdp`. The KV blocks of a prompt's earlier
    chunks are read from all chips, and those of this chunk are written to all chips.
    """
    rows, chunk_tokens = load.prefill_shape
    fsdp, tensor, num_shards = sizes["fsdp"], sizes["tensor"], num_batch_shards(sizes)
    tokens = rows * chunk_tokens / num_shards
    chunks_per_prompt = -(-load.prompt // chunk_tokens)
    flops = grouped_forward_flops(model, 1, load.prompt, 0, 0) * rows / chunks_per_prompt / num_shards / tensor
    layers = bytes_per_activation * model.n_layers * layer_weights(model) / tensor
    embeddings = bytes_per_activation * _embedding_params(model) / tensor
    kv_bytes = 2 * model.n_kv_heads * model.head_dim * bytes_per_activation  # keys and values of a token in a layer
    earlier_kv, new_kv = (
        model.n_layers * kv_bytes * rows * load.prompt / tensor,
        model.n_layers * kv_bytes * rows * chunk_tokens / tensor,
    )
    reduced = model.n_layers * 4 * tokens * model.d_model * bytes_per_activation * _remote_share(tensor)
    embedded = bytes_per_activation * model.vocab_size * model.d_model * _remote_share(fsdp) / tensor
    link = layers * _remote_share(fsdp) + (earlier_kv + new_kv) * _remote_share(num_shards) + reduced + embedded
    # Per token and layer: queries, keys and values; gate and up of the MLP; four arrays of the model's width (inputs
    # and outputs of attention and MLP). Each is written and read.
    values = (model.n_heads + 2 * model.n_kv_heads) * model.head_dim + 2 * model.d_ff + 4 * model.d_model
    traffic = model.n_layers * tokens * values * bytes_per_activation * 2 / tensor + earlier_kv
    # Weights are read; gathered weights are written before.
    return Cost(flops, layers * (2 if fsdp > 1 else 1) + embeddings + traffic, link)


def _decode(
    model: ModelConfig,
    sizes: Mapping[str, int],
    load: EngineLoad,
    bytes_per_activation: int,
    decoding: Schedule,
    prompts: np.ndarray,
) -> Cost:
    """Return the cost of a mean decode step, in which all slots compute, including idle slots.

    prompts [questions]: tokens of each prompt. A row is a slot's next token. Each chip has a share of the rows and of
    the KV blocks, and weights are gathered. Each chip computes the partial attention of all rows to its blocks; these
    results are then added up. XLA attends to every block of the pools, and the kernel only to those with valid keys.
    """
    slots, pool_sizes = load.config.max_num_seqs, load.sizes
    tensor, fsdp, num_shards = sizes["tensor"], sizes["fsdp"], num_batch_shards(sizes)
    row_shards = num_shards if slots % num_shards == 0 else 1
    mean_answer = decoding.generated / decoding.rows  # tokens so far of an answer
    flops = decode_flops(model, slots, float(prompts.mean()), 1, mean_answer) / row_shards / tensor
    weights = bytes_per_activation * (model.n_layers * layer_weights(model) + _embedding_params(model)) / tensor
    head_shards = tensor if model.n_kv_heads % tensor == 0 else 1
    is_kernel = load.config.attention == "pallas"
    if is_kernel:
        kv_traffic = _kernel_traffic(model, load, head_shards, bytes_per_activation, decoding, prompts)
    else:
        kv_values = 2 * model.n_layers * model.n_kv_heads * model.head_dim * load.cache_tokens
        kv_traffic = kv_values * bytes_per_activation / num_shards / head_shards
    # A row's partial attention in all layers: for each head, values of its size, a maximum and a sum of weights.
    partial_values = model.n_layers * model.n_heads * (model.head_dim + 2) / num_head_shards(model, tensor)
    partial_bytes = partial_values * _FLOAT32
    logits = 6 * slots * model.vocab_size * _FLOAT32  # sampling reads or writes them about six times
    # Per layer: a gather over `fsdp`, two all-reduces over `tensor`, queries to all shards and their results back.
    link, waits = weights * _remote_share(fsdp), model.n_layers * ((fsdp > 1) + 2 * (tensor > 1) + 2 * (num_shards > 1))
    # The number of partial results of a row that the chip writes to its memory and reads again.
    if is_kernel:
        num_partials = 0.0  # counted in `kv_traffic`
    elif num_shards == 1:
        # A block of a prompt is read by the rows of its group, a block of a completion by one row.
        num_reads = pool_sizes.prompt_blocks * pool_sizes.group_size + pool_sizes.completion_blocks
        # Then each row gathers the partial results of its blocks, padded to the columns of the block tables.
        num_partials = num_reads + slots * (pool_sizes.prompt_columns + pool_sizes.completion_columns)
    else:
        # Partial results of each block and reader, and their sums per owner: the prompt or completion with the block.
        pools = load.local_pools(num_shards)
        num_partials = sum((blocks + owners) * readers for blocks, owners, readers in pools)
        # The sums are matrix products [owners, blocks] x [blocks, readers].
        num_products = sum(blocks * owners * readers for blocks, owners, readers in pools)
        flops += _SUM_FLOPS * num_products * partial_values
        queries = slots * partial_values * bytes_per_activation  # about as many values as in partial results
        # Results are reduced, and if rows are not split, all chips receive them.
        link += (queries + partial_bytes * slots * (1 if row_shards > 1 else 2)) * _remote_share(num_shards)
    link += model.n_layers * 4 * slots / row_shards * model.d_model * bytes_per_activation * _remote_share(tensor)
    weight_traffic = weights * (2 if fsdp > 1 else 1)  # weights are read; gathered weights are written before
    return Cost(flops, weight_traffic + kv_traffic + 2 * partial_bytes * num_partials + logits, link, waits)


def _kernel_traffic(
    model: ModelConfig,
    load: EngineLoad,
    head_shards: int,
    bytes_per_activation: int,
    decoding: Schedule,
    prompts: np.ndarray,
) -> float:
    """Return the bytes that the decode kernel (`models.attention.paged_kernel`) moves in a mean decode step.

    It reads the blocks with valid keys, a prompt's once per group. It also reads and writes queries and partial results
    for each prompt that is attended to and each decoding slot (`Grid.bytes_moved`).
    """
    block = load.config.block_size
    kv_tokens = decoding.prompts * float((-(-prompts // block) * block).mean()) + decoding.block_tokens
    kv_traffic = fetch_bytes(kv_tokens, model.n_kv_heads // head_shards, model.head_dim, bytes_per_activation)
    grids = decode_grids(model, load, head_shards)
    kv_traffic += sum(
        grid.bytes_moved(bytes_per_activation, active)
        for grid, active in zip(grids, (decoding.prompts, decoding.rows), strict=True)
    )
    return kv_traffic * model.n_layers


def _score(model: ModelConfig, sizes: Mapping[str, int], work: Update, bytes_per_activation: int) -> Cost:
    """Return the cost of computing a batch's log-probabilities once, without gradients.

    The weights are written (gathered or cast) and read in each pass. Besides the values within layers, a layer reads or
    writes its hidden states about 12 times: residual additions, norms, inputs and outputs of attention and MLP.
    """
    chips = num_batch_shards(sizes) * sizes["tensor"]
    flops = _forward(model, work) / chips
    weights = (
        bytes_per_activation * (model.n_layers * layer_weights(model) + _embedding_params(model)) / sizes["tensor"]
    )
    stream = _stream(model, sizes, work, bytes_per_activation)
    link = work.passes * _gather_bytes(model, sizes, work, bytes_per_activation, layers=1, embedding=1, logits=1)
    link += 4 * stream * _remote_share(sizes["tensor"])
    return Cost(
        flops, work.passes * weights * 2 + 12 * stream + _layer_traffic(model, sizes, work, bytes_per_activation), link
    )


def _update(model: PlannedModel, sizes: Mapping[str, int], work: Update) -> Cost:
    """Return the cost of an update; with rematerialization (`model.remat`) each layer runs forward twice.

    Forward and backward passes gather a layer's weights, and its gradient is reduced in float32 over `fsdp`
    (reduce-scatter). The gradient of the embeddings is reduced as a whole (all-reduce), so it counts twice.
    """
    (shape, bytes_per_activation), (tensor, data) = (
        (model.shape, model.bytes_per_activation),
        (sizes["tensor"], sizes["data"]),
    )
    forward = _forward(shape, work)
    passes, trains_weights = UPDATE_PASSES + (model.section.remat != "none"), not model.section.lora.rank
    params = shape.n_layers * layer_weights(shape) + _embedding_params(shape)
    local_params = params / sizes["fsdp"] / tensor
    stream = _stream(shape, sizes, work, bytes_per_activation)
    # The output matrix's gradient: tied, it is that of the embeddings and reduced as a whole; else reduce-scattered.
    logit_sums = trains_weights * (2 if shape.tie_embeddings else 1)
    weights = _gather_bytes(shape, sizes, work, bytes_per_activation, layers=2, embedding=1, logits=2)
    gradients = _gather_bytes(
        shape, sizes, work, _FLOAT32, layers=trains_weights, embedding=2 * trains_weights, logits=logit_sums
    )
    link = work.passes * (weights + gradients)
    # Gradients are all-reduced over `data`; hidden states over `tensor`, in each of the passes.
    gradient_bytes = 2 * _FLOAT32 * local_params * _remote_share(data) * trains_weights
    link += gradient_bytes + 4 * passes * stream * _remote_share(tensor)
    # The optimizer reads and writes weights, gradients and moments: about 20 bytes per parameter. With adapters its
    # state is small, so only 4 bytes per parameter of the base count.
    state = local_params * (20 if trains_weights else 4)
    traffic = passes * (12 * stream + _layer_traffic(shape, sizes, work, bytes_per_activation))
    hbm = work.passes * passes * bytes_per_activation * params / tensor + traffic + state
    return Cost(forward * passes / num_batch_shards(sizes) / tensor, hbm, link)


def _forward(model: ModelConfig, work: Update) -> float:
    """Return the operations of a batch's forward pass.

    A prompt whose answers run in several parts (`Update.prompt_repeats`) runs again for each further part. Prompts of
    one database have a common first part, the schema, which runs once for all of them.
    """
    batch_flops = grouped_forward_flops(model, work.prompts, work.prompt, work.rows, work.answer)
    saved = work.schema_repeats * grouped_forward_flops(model, 1, work.schema, 0, work.answer)
    return (
        batch_flops
        + work.prompt_repeats * grouped_forward_flops(model, work.prompts, work.prompt, 0, work.answer)
        - saved
    )


def _gather_bytes(
    model: ModelConfig,
    sizes: Mapping[str, int],
    work: Update,
    bytes_per_value: int,
    layers: int,
    embedding: int,
    logits: int,
) -> float:
    """Return the bytes that a chip receives over `fsdp` in a part of an update, of weights or of their gradients.

    layers, embedding, logits: number of transfers of the layers, of the embeddings and of the output matrix. The
    partitioner transfers the output matrix again for each chunk of the logits.
    """
    table = model.vocab_size * model.d_model
    logit_transfers = logits * update_logit_chunks(model, work, sizes)
    weights = layers * model.n_layers * layer_weights(model) + (embedding + logit_transfers) * table
    return bytes_per_value * weights * _remote_share(sizes["fsdp"]) / sizes["tensor"]


def _stream(model: ModelConfig, sizes: Mapping[str, int], work: Update, bytes_per_activation: int) -> float:
    """Return the bytes of the hidden states of all layers, for a chip's share of a batch."""
    return model.n_layers * work.tokens / num_batch_shards(sizes) * model.d_model * bytes_per_activation


def _layer_traffic(model: ModelConfig, sizes: Mapping[str, int], work: Update, bytes_per_activation: int) -> float:
    """Return the bytes that a forward pass writes and reads within its layers.

    Per token: four arrays of the width of the MLP, of the queries and of the keys, each written and read.
    """
    values = 4 * model.d_ff + (4 * model.n_heads + 4 * model.n_kv_heads) * model.head_dim
    return model.n_layers * work.tokens / num_batch_shards(sizes) * values / sizes["tensor"] * bytes_per_activation * 2
