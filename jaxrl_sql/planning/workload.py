"""The workload of a run as numbers: the batch of an update and the sizes of its engines (`rollout.engine_config`).

`memory` and `roofline` derive bytes and operations from them, and `programs` the abstract arrays that it compiles, so
all refer to the same arrays. All sizes are maxima: prompts and answers of the most tokens, and pools that hold them.

Terms: a mesh splits a batch into shards along its prompts. A part is a micro-batch. A row has T answer tokens of a
prompt: one answer, or several short answers with packing (`grpo.packing`). If a part does not fit into
`grpo.max_tokens_per_device`, it runs in several passes: first fewer prompts at a time, then fewer rows of a single
prompt. A schema is the common first part of the prompts of one database.

Array letters: B prompts, P tokens of a prompt, G answers per prompt, T tokens of an answer, R rows per prompt.
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
from jaxrl_sql.models.attention.paged_traffic import Grid, grids_of
from jaxrl_sql.models.ops.micro_batches import MicroBatches, order_for_parts, row_counts
from jaxrl_sql.models.ops.token_distribution import KEPT_BYTES, num_logit_chunks
from jaxrl_sql.parallel.rules import num_logit_shards
from jaxrl_sql.planning.lengths import Lengths, shuffle_lengths
from jaxrl_sql.rollout.engine_config import EngineConfig, EngineSizes, KVBudget


class Update(NamedTuple):
    """The batch of an update: prompts [B,P] with answers [B,G,T].

    prompts B, group G, prompt P, answer T: sizes of the batch.
    parts: number of micro-batches.
    packed_rows R: rows per prompt with packing, else 0.
    part_rows: rows per prompt that each part runs with packing, else empty.
    micro_batches: the split into parts and passes.
    kept_logits: bytes of logits that a device may keep at a time.
    prompts_per_schema, schema: the first `schema` tokens of so many consecutive prompts are computed once.
    keeps_copy: whether the phase has a copy of the trained parameters, as the KL penalty's reference or as the best
        weights by held-out loss.
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
        """Return the micro-batches of a batch of the size of `minibatches` updates."""
        return self.micro_batches if self.micro_batches.tokens else MicroBatches(self.parts * minibatches)

    def chunk_sizes(self, rows: int) -> tuple[int, int]:
        """Return the size of a pass over all shards, (prompts, rows of each prompt), if a prompt has `rows` rows."""
        prompts_per_part = self.prompts // self.parts
        if not self.micro_batches.tokens:
            return prompts_per_part, rows
        prompts_per_shard, rows_per_pass = self.micro_batches.chunk_sizes(
            prompts_per_part // self.micro_batches.num_shards, self.prompt, rows, self.answer
        )
        return prompts_per_shard * self.micro_batches.num_shards, rows_per_pass

    @property
    def passes(self) -> float:
        """Return the number of passes of an update, over all parts."""
        rows_by_part = self.part_rows or (self.group,)
        passes_by_part = [
            self.prompts / self.parts / (sizes := self.chunk_sizes(rows))[0] * -(-rows // sizes[1])
            for rows in rows_by_part
        ]
        return self.parts * sum(passes_by_part) / len(passes_by_part)

    @property
    def prompt_repeats(self) -> float:
        """Return the mean number of repeated runs of a prompt: one for each pass over its rows after the first."""
        rows_by_part = self.part_rows or (self.group,)
        return sum(-(-rows // self.chunk_sizes(rows)[1]) for rows in rows_by_part) / len(rows_by_part) - 1

    @property
    def rows(self) -> float:
        """Return the mean number of rows per prompt."""
        return sum(self.part_rows) / len(self.part_rows) if self.part_rows else self.group

    @property
    def tokens(self) -> float:
        """Return the tokens that an update computes, with padding and repeated prompts; each schema counts once."""
        total = self.prompts * ((1 + self.prompt_repeats) * self.prompt + self.rows * self.answer)
        return total - self.schema_repeats * self.schema

    @property
    def schema_repeats(self) -> float:
        """Return the number of prompts whose schema is computed with another prompt of their database."""
        return self.prompts * (1 - 1 / self.prompts_per_schema)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the share of parts for each number of rows per prompt that the program has a branch for.

        Empty if it has no branches.
        """
        has_branches = self.packed_rows and (self.parts > 1 or self.micro_batches.tokens)
        counts = row_counts(self.packed_rows) if has_branches else ()
        return tuple(self.part_rows.count(rows) / len(self.part_rows) for rows in counts) if len(counts) > 1 else ()


class EngineLoad(NamedTuple):
    """The load of an engine in a step: `group` completions of each of `questions` prompts, and the engine's sizes.

    prompt, completion: tokens of the longest prompt and completion, rounded up. ahead: 1 if free slots start answers of
    the next rollout (`rollout.ahead`), else 0.
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
        """Return (rows, tokens per row) of the program that prefills a chunk of prompts."""
        (rows, *_), tokens_per_row = self.config.prefill_shapes(1, 1)
        return rows, tokens_per_row

    @property
    def cache_tokens(self) -> int:
        """Return the tokens in all blocks of prompts and completions, which a decode step reads."""
        prompt_tokens = self.sizes.prompt_blocks * self.config.block_size
        return prompt_tokens + self.sizes.completion_blocks * self.config.completion_block_size

    def local_pools(self, num_shards: int) -> list[tuple[int, int, int]]:
        """Return (blocks, owners, readers) of the pools of prompts and of completions, on one of `num_shards` chips.

        An owner is a prompt slot or decode slot with blocks; free blocks have a further owner. The readers are the
        slots that attend to a block: the group of a prompt, or the slot of a completion. Partial attention to the
        blocks of an owner is added up on the chip.
        """
        sizes, n = self.sizes, self.config.max_num_seqs
        pools = (sizes.prompt_blocks, sizes.prompt_slots, sizes.group_size), (sizes.completion_blocks, n, 1)
        return [
            (blocks // num_shards, min(owners + 1, blocks // num_shards), readers) for blocks, owners, readers in pools
        ]


class Workload(NamedTuple):
    """The phases of a run; None for an absent phase.

    sft_dataset: the batch of a supervised update; update: the batch of an update of reinforcement learning.
    rollout, evaluation: load of one engine in training and evaluation; of one replica, if there are replicas.
    updates: updates per step.
    scoring_passes: passes per step that compute log-probabilities before the updates (old policy, reference).
    batches: minibatches per step.
    questions: sampled questions per step.
    steps_per_rollout: steps that learn from one rollout.
    rollout_grid: (replicas, devices per replica) of the rollout engines; None: the training mesh samples.
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
    """Return the number of shards of the query heads in decoding, `tensor` or 1.

    The mesh splits the key/value heads if it divides them, else the query heads of each key/value head, else nothing.
    """
    per_key = model.n_heads // model.n_kv_heads
    return tensor if model.n_kv_heads % tensor == 0 or per_key % tensor == 0 else 1


def decode_grids(model: ModelConfig, load: EngineLoad, head_shards: int) -> tuple[Grid, Grid]:
    """Return the grids of the decode kernel's two calls per layer, for prompts and for completions, on one chip.

    The chips split the key/value heads into `head_shards`.
    """
    per_key, kv_heads = model.n_heads // model.n_kv_heads, model.n_kv_heads // head_shards
    sizes = load.sizes
    return grids_of(sizes.prompt_slots, sizes.group_size, load.config.max_num_seqs, kv_heads, per_key, model.head_dim)


def longest_answer(sampling: SamplingConfig) -> tuple[str, int]:
    """Return the maximum tokens of a sampled answer in training, with all of its turns: (setting's key, tokens)."""
    if sampling.turns > 1 and sampling.max_total_tokens > sampling.max_new_tokens:
        return "sampling.max_total_tokens", sampling.max_total_tokens
    return "sampling.max_new_tokens", sampling.max_new_tokens


def update_logit_chunks(model: ModelConfig, work: Update, sizes: Mapping[str, int]) -> int:
    """Return the number of chunks in which a pass computes its logits, on a mesh of these sizes.

    A chunk has as many logits as the devices may keep together.
    """
    kept_bytes, (prompts, rows) = (
        work.kept_logits * num_logit_shards(model.vocab_size, sizes),
        work.chunk_sizes(math.ceil(work.rows)),
    )
    return num_logit_chunks(prompts * rows, work.answer, model.vocab_size, kept_bytes)


def kv_budget(rollout: RolloutConfig) -> KVBudget | None:
    """Return the numbers of KV blocks that the section sets; None before `memory.with_kv_budget` has set them."""
    budget = KVBudget(rollout.prompt_blocks, rollout.completion_blocks, rollout.prefix_blocks)
    return budget if budget.prompt_blocks and budget.completion_blocks else None


def rollout_grid(rollout: RolloutConfig) -> tuple[int, int] | None:
    """Return (replicas, devices per replica) of the rollout engines; None if the training mesh samples."""
    if "x" not in rollout.mesh:
        return None
    replicas, tensor = map(int, rollout.mesh.split("x"))
    return replicas, tensor


def engine_config(
    rollout: RolloutConfig, max_num_seqs: int, longest_prompt: int, num_shards: int, pads_to_max: bool = True
) -> EngineConfig:
    """Return the configuration of a run's engine for prompts of up to `longest_prompt` tokens (0: unknown).

    `max_num_seqs` is the total number of slots. Each replica (`rollout.mesh`) has its share of them, and its batch is
    not split; an engine on the training mesh splits its batch into `num_shards`.
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

    The replacement is the number of parts with one prompt (or schema) per shard. It is 1 if
    `grpo.max_tokens_per_device` limits the tokens of a micro-batch.
    """
    sft_parts = sft.gradient_accumulation_steps or max(sft.databases // num_shards, 1)
    parts = grpo.gradient_accumulation_steps or int(grpo.max_tokens_per_device > 0)
    parts = parts or max(grpo.prompts // grpo.minibatches // grpo.questions // num_shards, 1)
    return replace(sft, gradient_accumulation_steps=sft_parts), replace(grpo, gradient_accumulation_steps=parts)


def find_workload(model: ModelConfigSection, sections: WorkloadSections, num_shards: int) -> Workload:
    """Return the workload of a run on a mesh that splits batches into `num_shards`."""
    sft, grpo, sampling, rollout, validation, max_prompt_tokens = sections
    has_sft, has_grpo, kept_logits = bool(sft.steps or sft.epochs), grpo.steps > 0, model.kept_logits
    prompt, answer = bucket(max_prompt_tokens), longest_answer(sampling)[1]
    # A supervised "prompt" is a schema, and its "answers" are questions with their answers.
    sft_dataset = Update(
        sft.databases, sft.questions, prompt, bucket(sft.max_completion_tokens),
        sft.gradient_accumulation_steps, sft.optim, kept_logits=kept_logits, keeps_copy=sft.patience > 0,
    )  # fmt: skip
    micro_batches = micro_batches_of(grpo, num_shards) if has_grpo else MicroBatches()
    prompts = grpo.prompts // grpo.minibatches
    parts = micro_batches.parts_of(prompts, prompt, grpo.num_generations, bucket(answer))
    # New adapters have no effect, so the reference of the KL penalty is the base itself and needs no copy.
    reference_is_base = model.lora.rank > 0 and not has_sft
    update = Update(
        prompts, grpo.num_generations, prompt, bucket(answer), parts, grpo.optim, micro_batches=micro_batches,
        kept_logits=kept_logits, prompts_per_schema=grpo.questions,
        keeps_copy=grpo.kl.coef > 0 and not reference_is_base,
    )  # fmt: skip
    grid, questions = rollout_grid(rollout), grpo.prompts * grpo.dynamic_sampling.oversample
    engine_questions = -(-questions * grpo.steps_per_generation // (grid[0] if grid else 1))
    rollouts = engine_config(rollout, rollout.max_num_seqs, max_prompt_tokens, num_shards)
    evaluations = engine_config(rollout, validation.max_num_seqs, max_prompt_tokens, num_shards)
    # The engine's log-probabilities then serve as those of the old policy.
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
    """Return a workload in which the first `tokens` tokens are common to the prompts of a database."""
    update = work.update
    return work if update is None else work._replace(update=update._replace(schema=min(tokens, update.prompt)))


def with_packing(work: Workload, answers: Lengths | None) -> Workload:
    """Return a workload whose update runs only the rows that packed answers of these lengths fill.

    The answers of a step are assigned to its prompts at random and packed; parts are formed as in training.
    """
    update, engine_load = work.update, work.rollout
    if update is None or engine_load is None or answers is None:
        return work
    prompts, batch_size = update.prompts * work.batches, update.prompts
    lengths_by_prompt = shuffle_lengths(answers.take(prompts * update.group)).reshape(prompts, update.group)
    rows_needed = [len(first_fit(lengths, update.answer)[1]) for lengths in lengths_by_prompt]
    max_rows = bucketed_rows(rows_needed)
    if max_rows >= update.group:  # packing saves nothing
        return work
    parts = update.parts
    if update.micro_batches.tokens:
        parts = update.micro_batches.parts_of(batch_size, update.prompt, row_counts(max_rows)[0], update.answer)
    rows_by_part = list[int]()
    for start in range(0, prompts, batch_size):
        rows_of_batch = rows_needed[start : start + batch_size]
        order = order_for_parts(rows_of_batch, parts)
        needed_by_part = (max(rows_of_batch[i] for i in order[part::parts]) for part in range(parts))
        # The program has a branch for each of `row_counts`; a part runs the smallest that suffices.
        rows_by_part += [next(rows for rows in row_counts(max_rows) if rows >= needed) for needed in needed_by_part]
    if parts == 1 and not update.micro_batches.tokens:  # the program has no branches
        rows_by_part = [max_rows] * len(rows_by_part)
    return work._replace(update=update._replace(parts=parts, packed_rows=max_rows, part_rows=tuple(rows_by_part)))


def _load(config: EngineConfig, questions: int, group: int, completion: int, ahead: int = 0) -> EngineLoad:
    """Return the load of an engine for `questions` questions, and as many of each of `ahead` next rollouts."""
    prompt = config.longest_prompt
    groups = (1 + ahead) * questions * -(-group // config.group_size(group))
    config = config.for_calls([prompt], groups, group)
    sizes = config.sizes([prompt], group, completion)
    return EngineLoad(config, sizes, questions, group, bucket(prompt), bucket(completion), ahead)
