"""The workload of a run as numbers: the batch of an update and the sizes of its engines (`rollout.engine_config`).

`memory` and `roofline` derive bytes and operations from them, and `programs` the abstract arrays that it compiles, so
both refer to the same arrays. All sizes are maxima: prompts and answers of the most tokens, and pools that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from jaxrl_sql.algo.updates import micro_batches_of, needs_old_logprobs
from jaxrl_sql.batch import bucket, bucketed_rows, first_fit
from jaxrl_sql.config import (
    GrpoConfig,
    ModelConfigSection,
    OptimConfig,
    RolloutConfig,
    SamplingConfig,
    SftConfig,
    WorkloadSections,
)
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.attention.paged_kernel import Grid, grids_of
from jaxrl_sql.models.ops.micro_batches import MicroBatches, order_for_parts, row_counts
from jaxrl_sql.models.ops.token_distribution import KEPT_BYTES, num_logit_chunks
from jaxrl_sql.parallel.rules import num_logit_shards
from jaxrl_sql.planning.lengths import Lengths, shuffle_lengths
from jaxrl_sql.rollout.engine_config import EngineConfig, EngineSizes, KVBudget


class Update(NamedTuple):
    """The batch of an update: B prompts [B,P] with G answers [B,G,T] each, computed in `parts`.

    With packed answers, a prompt has `packed_rows` rows [R,T], and `part_rows` has the number of rows that each part
    runs; 0 and empty without packing. `kept_logits`: the bytes of logits that a device keeps. The first `schema` tokens
    of `prompts_per_schema` consecutive prompts run once. `keeps_copy`: the phase has a copy of the trained parameters,
    the KL penalty's reference or the best weights by held-out loss.
    """

    prompts: int
    group: int
    prompt: int
    answer: int
    parts: int
    optim: OptimConfig
    packed_rows: int = 0
    part_rows: tuple[int, ...] = ()
    micro_batches: MicroBatches = MicroBatches()
    kept_logits: int = KEPT_BYTES
    prompts_per_schema: int = 1
    schema: int = 0
    keeps_copy: bool = False

    def micro_batches_of(self, minibatches: int = 1) -> MicroBatches:
        """Return the micro-batches of `minibatches` batches together."""
        return self.micro_batches if self.micro_batches.tokens else MicroBatches(self.parts * minibatches)

    def chunk_sizes(self, rows: int) -> tuple[int, int]:
        """Return (prompts, rows of answers of each) that run at a time if a prompt has `rows` rows."""
        micro_batch = self.prompts // self.parts
        if not self.micro_batches.tokens:
            return micro_batch, rows
        prompts, fit = self.micro_batches.chunk_sizes(
            micro_batch // self.micro_batches.num_shards, self.prompt, rows, self.answer
        )
        return prompts * self.micro_batches.num_shards, fit

    @property
    def passes(self) -> float:
        """Return the number of micro-batches of an update."""
        rows_run = self.part_rows or (self.group,)
        passes_of_part = [
            self.prompts / self.parts / (sizes := self.chunk_sizes(rows))[0] * -(-rows // sizes[1]) for rows in rows_run
        ]
        return self.parts * sum(passes_of_part) / len(passes_of_part)

    @property
    def prompt_repeats(self) -> float:
        """Return the mean number of repeated runs of a prompt: one for each further part of its answers."""
        rows_run = self.part_rows or (self.group,)
        return sum(-(-rows // self.chunk_sizes(rows)[1]) for rows in rows_run) / len(rows_run) - 1

    @property
    def rows(self) -> float:
        """Return the mean number of rows of answers per prompt."""
        return sum(self.part_rows) / len(self.part_rows) if self.part_rows else self.group

    @property
    def tokens(self) -> float:
        """Return the tokens of the whole batch with padding, each prompt once."""
        total = self.prompts * ((1 + self.prompt_repeats) * self.prompt + self.rows * self.answer)
        return total - self.schema_repeats * self.schema

    @property
    def schema_repeats(self) -> float:
        """Return the number of prompts whose schema has run for another prompt of their database."""
        return self.prompts * (1 - 1 / self.prompts_per_schema)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the share of parts for each number of rows that the program supports; empty if it supports one."""
        has_branches = self.packed_rows and (self.parts > 1 or self.micro_batches.tokens)
        counts = row_counts(self.packed_rows) if has_branches else ()
        return tuple(self.part_rows.count(rows) / len(self.part_rows) for rows in counts) if len(counts) > 1 else ()


class EngineLoad(NamedTuple):
    """The load of an engine in a step: `group` completions of each of `questions` prompts, and its sizes.

    `prompt` and `completion` are the most tokens. `ahead`: the number of next rollouts that start in free slots.
    """

    config: EngineConfig
    sizes: EngineSizes
    questions: int
    group: int
    prompt: int
    completion: int
    ahead: int = 0

    @property
    def prefill_shape(self) -> tuple[int, int]:
        """Return (rows X, tokens T) of the program that prefills a chunk of prompts of the most tokens."""
        (rows, *_), width = self.config.prefill_shapes(1, 1)
        return rows, width

    @property
    def cache_tokens(self) -> int:
        """Return the tokens in all blocks of prompts and completions, which a decode step reads."""
        prompt_tokens = self.sizes.prompt_blocks * self.config.block_size
        return prompt_tokens + self.sizes.completion_blocks * self.config.completion_block_size

    def local_pools(self, num_shards: int) -> list[tuple[int, int, int]]:
        """Return (blocks, owners, readers) of both pools on one of `num_shards` chips, with blocks merged by owner."""
        sizes, n = self.sizes, self.config.max_num_seqs
        pools = (sizes.prompt_blocks, sizes.prompt_slots, sizes.group_size), (sizes.completion_blocks, n, 1)
        return [
            (blocks // num_shards, min(owners + 1, blocks // num_shards), readers) for blocks, owners, readers in pools
        ]


class Workload(NamedTuple):
    """The phases of a run; None for an absent phase.

    rollout, evaluation: load of one engine (of one replica, if there are replicas) in training and evaluation; updates:
    number per batch of a rollout; scoring_passes: those before the updates (old policy, reference); batches: number of
    minibatches per step; questions: number per step; rollout_grid: (replicas, tensor) of the rollout engines.
    """

    sft_dataset: Update | None
    update: Update | None
    rollout: EngineLoad | None
    evaluation: EngineLoad
    updates: int
    scoring_passes: int
    batches: int
    questions: int
    steps_per_rollout: int
    rollout_grid: tuple[int, int] | None

    @property
    def trained_updates(self) -> list[Update]:
        """Return the batches of the run's phases."""
        return [update for update in (self.sft_dataset, self.update) if update is not None]


def num_head_shards(model: ModelConfig, tensor: int) -> int:
    """Return the number of parts of a row's heads in decoding: by key heads, else by queries per key head, else 1."""
    per_key = model.n_heads // model.n_kv_heads
    return tensor if model.n_kv_heads % tensor == 0 or per_key % tensor == 0 else 1


def decode_grids(model: ModelConfig, load: EngineLoad, heads: int) -> tuple[Grid, Grid]:
    """Return the grids of a layer's two calls of the decode kernel on a chip with one of `heads` parts of the heads."""
    per_key, kv_heads = model.n_heads // model.n_kv_heads, model.n_kv_heads // heads
    sizes = load.sizes
    return grids_of(sizes.prompt_slots, sizes.group_size, load.config.max_num_seqs, kv_heads, per_key, model.head_dim)


def longest_answer(sampling: SamplingConfig) -> tuple[str, int]:
    """Return (key, tokens) of the longest sampled answer in training, with all of its turns."""
    if sampling.turns > 1 and sampling.max_total_tokens > sampling.max_new_tokens:
        return "sampling.max_total_tokens", sampling.max_total_tokens
    return "sampling.max_new_tokens", sampling.max_new_tokens


def update_logit_chunks(model: ModelConfig, work: Update, sizes: Mapping[str, int]) -> int:
    """Return the number of chunks of the logits of a part of an update on a mesh of these sizes."""
    kept_bytes, (prompts, rows) = (
        work.kept_logits * num_logit_shards(model.vocab_size, sizes),
        work.chunk_sizes(math.ceil(work.rows)),
    )
    return num_logit_chunks(prompts * rows, work.answer, model.vocab_size, kept_bytes)


def kv_budget(rollout: RolloutConfig) -> KVBudget | None:
    """Return the numbers of KV blocks of a run's engines; None if they are not determined yet."""
    budget = KVBudget(rollout.prompt_blocks, rollout.completion_blocks, rollout.prefix_blocks)
    return budget if budget.prompt_blocks and budget.completion_blocks else None


def rollout_grid(rollout: RolloutConfig) -> tuple[int, int] | None:
    """Return (replicas, tensor) of the rollout engines; None if the training mesh samples."""
    if "x" not in rollout.mesh:
        return None
    replicas, tensor = map(int, rollout.mesh.split("x"))
    return replicas, tensor


def engine_config(
    rollout: RolloutConfig, max_num_seqs: int, longest_prompt: int, num_shards: int, pads_to_max: bool = True
) -> EngineConfig:
    """Return the configuration of a run's engine for prompts of up to `longest_prompt` tokens (0: unknown).

    `max_num_seqs` is the total number of slots; each replica (`rollout.mesh`) has its share and a separate batch.
    """
    grid = rollout_grid(rollout)
    return EngineConfig(
        -(-max_num_seqs // (grid[0] if grid else 1)),
        longest_prompt=longest_prompt,
        pads_to_max=pads_to_max,
        budget=kv_budget(rollout),
        num_shards=1 if grid else num_shards,
        attention=rollout.attention,
    )


def with_parts(sft: SftConfig, grpo: GrpoConfig, num_shards: int) -> tuple[SftConfig, GrpoConfig]:
    """Return the sections with `gradient_accumulation_steps` of 0 replaced, for batches split into `num_shards`.

    If `grpo.max_tokens_per_device` limits the tokens of a micro-batch, the replacement is 1.
    """
    sft_parts = sft.gradient_accumulation_steps or max(sft.databases // num_shards, 1)
    parts = grpo.gradient_accumulation_steps or int(grpo.max_tokens_per_device > 0)
    parts = parts or max(grpo.prompts // grpo.minibatches // grpo.questions // num_shards, 1)
    return replace(sft, gradient_accumulation_steps=sft_parts), replace(grpo, gradient_accumulation_steps=parts)


def find_workload(model: ModelConfigSection, sections: WorkloadSections, num_shards: int) -> Workload:
    """Return the workload of a run on a mesh that splits batches into `num_shards`."""
    sft, grpo, sampling, rollout, validation, max_prompt_tokens = sections
    has_sft, has_grpo, kept_logits = bool(sft.steps or sft.epochs), grpo.steps > 0, model.kept_logits
    width, answer = bucket(max_prompt_tokens), longest_answer(sampling)[1]
    sft_dataset = Update(
        sft.databases, sft.questions, width, bucket(sft.max_completion_tokens),
        sft.gradient_accumulation_steps, sft.optim, kept_logits=kept_logits, keeps_copy=sft.patience > 0,
    )  # fmt: skip
    micro_batches = micro_batches_of(grpo, num_shards) if has_grpo else MicroBatches()
    prompts = grpo.prompts // grpo.minibatches
    parts = micro_batches.parts_of(prompts, width, grpo.num_generations, bucket(answer))
    is_base = model.lora.rank > 0 and not has_sft  # the reference of new adapters
    update = Update(
        prompts, grpo.num_generations, width, bucket(answer), parts, grpo.optim, micro_batches=micro_batches,
        kept_logits=kept_logits, prompts_per_schema=grpo.questions, keeps_copy=grpo.kl.coef > 0 and not is_base,
    )  # fmt: skip
    grid, questions = rollout_grid(rollout), grpo.prompts * grpo.dynamic_sampling.oversample
    engine_questions = -(-questions * grpo.steps_per_generation // (grid[0] if grid else 1))
    rollouts = engine_config(rollout, rollout.max_num_seqs, max_prompt_tokens, num_shards)
    evaluations = engine_config(rollout, validation.max_num_seqs, max_prompt_tokens, num_shards)
    has_exact_logprobs = rollout.exact and grpo.algorithm != "ppo"
    return Workload(
        sft_dataset=sft_dataset if has_sft else None,
        update=update if has_grpo else None,
        rollout=_load(rollouts, engine_questions, grpo.num_generations, answer, rollout.ahead) if has_grpo else None,
        evaluation=_load(evaluations, evaluations.max_num_seqs, 1, validation.sampling.max_new_tokens),
        updates=grpo.num_iterations * grpo.minibatches if has_grpo else 0,
        scoring_passes=((needs_old_logprobs(grpo) and not has_exact_logprobs) + (grpo.kl.coef > 0)) if has_grpo else 0,
        batches=grpo.minibatches,
        questions=questions,
        steps_per_rollout=grpo.steps_per_generation,
        rollout_grid=grid,
    )


def with_schemas(work: Workload, tokens: int) -> Workload:
    """Return a workload in which the first `tokens` tokens of a database's prompts are its schema."""
    update = work.update
    return work if update is None else work._replace(update=update._replace(schema=min(tokens, update.prompt)))


def with_packing(work: Workload, answers: Lengths | None) -> Workload:
    """Return a workload whose update runs only the rows that packed answers of these lengths fill.

    The answers of a step are assigned to its prompts at random and packed; parts are formed as in training.
    """
    update, engine_load = work.update, work.rollout
    if update is None or engine_load is None or answers is None:
        return work
    questions, batch_size = update.prompts * work.batches, update.prompts
    lengths_by_prompt = shuffle_lengths(answers.take(questions * update.group)).reshape(questions, update.group)
    rows_needed = [len(first_fit(lengths, update.answer)[1]) for lengths in lengths_by_prompt]
    max_rows = bucketed_rows(rows_needed)
    if max_rows >= update.group:
        return work
    parts = update.parts
    if update.micro_batches.tokens:
        parts = update.micro_batches.parts_of(batch_size, update.prompt, row_counts(max_rows)[0], update.answer)
    rows_run = list[int]()
    for start in range(0, questions, batch_size):
        rows_of_batch = rows_needed[start : start + batch_size]
        order = order_for_parts(rows_of_batch, parts)
        by_part = (max(rows_of_batch[i] for i in order[part::parts]) for part in range(parts))
        rows_run += [next(rows for rows in row_counts(max_rows) if rows >= needed) for needed in by_part]
    rows_run = rows_run if parts > 1 or update.micro_batches.tokens else [max_rows] * len(rows_run)
    return work._replace(update=update._replace(parts=parts, packed_rows=max_rows, part_rows=tuple(rows_run)))


def _load(config: EngineConfig, questions: int, group: int, completion: int, ahead: int = 0) -> EngineLoad:
    """Return the load of an engine for `questions` questions, and as many for each rollout `ahead`."""
    prompt = config.longest_prompt
    groups = (1 + ahead) * questions * -(-group // config.group_size(group))
    config = config.for_calls([prompt], groups, group)
    sizes = config.sizes([prompt], group, completion)
    return EngineLoad(config, sizes, questions, group, bucket(prompt), bucket(completion), ahead)
