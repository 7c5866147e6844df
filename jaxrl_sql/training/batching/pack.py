"""Packing of token lists into a padded `GroupBatch`, the device's data type.

Lengths are rounded up to buckets, a few fixed lengths (`batch.bucket`), so that a run compiles a handful of shapes.
Lengths mark the padding; its value (0) is never read. Letters of shapes: B prompts (schemas in a supervised batch), G
completions per prompt, P and T padded lengths of prompts and completions.

To pack is to write lists into the arrays of a batch. With the settings `grpo.packing` and `sft.packing`, completions
also share rows: the model then computes R < G rows of T tokens per prompt instead of G.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jaxrl_sql.batch import GroupBatch, Segment, bucket, bucketed_rows, first_fit, pad_tokens
from jaxrl_sql.models.ops.micro_batches import MicroBatches, order_for_parts, row_counts
from jaxrl_sql.training.batching.sft_batches import SftCompletion, SftRow
from jaxrl_sql.types import DEMONSTRATION, Record, Trajectory


def width_by_answer(_schema: int, answer: int) -> int:
    """Return the padded length in tokens of a completion without packing, where each has a row of its own.

    `_schema` and `answer` are the lengths in tokens of the completion's schema and of its own; as `width_by_schema`.
    """
    return bucket(answer)


def width_by_schema(schema: int, _answer: int) -> int:
    """Return the padded length in tokens of a row with packing: that of the schema, as all rows have one length."""
    return bucket(schema, smallest=256)


def pack_rows(
    rows: Sequence[SftRow],
    databases: int,
    questions: int,
    prompt_width: int,
    indices: Sequence[int] | None = None,
    longest: int = 0,
) -> GroupBatch:
    """Pack up to B = `databases` supervised rows of up to G = `questions` completions; missing ones get weight 0.

    P is `prompt_width`. T is the bucket of the longest completion, or of `longest` tokens if that is more. `indices`
    selects the rows to pack (None: all B); P and T are those of the whole batch.
    """
    t = bucket(max(longest, *(len(answer.token_ids) for row in rows for answer in row.answers)))
    rows = [*rows, *[SftRow((0,), ())] * (databases - len(rows))]
    rows = rows if indices is None else [rows[i] for i in indices]
    databases = len(rows)
    prompt, prompt_len = pad_tokens([row.prompt for row in rows], prompt_width)
    empty = SftCompletion((), ())
    flat = [answer for row in rows for answer in [*row.answers, *[empty] * (questions - len(row.answers))]]
    completion, length = pad_tokens([answer.token_ids for answer in flat], t)
    mask = pad_tokens([answer.loss_mask for answer in flat], t)[0].astype(bool)
    return _group_batch(
        prompt,
        prompt_len,
        completion.reshape(databases, questions, t),
        length.reshape(databases, questions),
        loss_mask=mask.reshape(databases, questions, t),
        weight=(length > 0).astype(np.float32).reshape(databases, questions),
    )


class RewardedGroup(Protocol):
    """G answers to one question with a reward and a weight each."""

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """Return the answers."""
        ...

    @property
    def rewards(self) -> Sequence[float]:
        """Return the reward of each answer."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """Return the weight of each answer: 0 for answers that are not learned."""
        ...


def pack(
    groups: Sequence[RewardedGroup], longest: int, max_prompt_bucket: int = 0, demonstrations: bool = False
) -> GroupBatch:
    """Pack rewarded groups for the update, on the host; the other arguments are those of `pack_groups`."""
    rewards = np.array([group.rewards for group in groups], np.float32)
    weights = np.array([group.weights for group in groups], np.float32)
    trajectories = [group.trajectories for group in groups]
    return pack_groups(
        trajectories, rewards, weights, longest, max_prompt_bucket=max_prompt_bucket, demonstrations=demonstrations
    )


def pack_groups(
    groups: Sequence[Sequence[Trajectory]],
    reward: np.ndarray,
    weight: np.ndarray,
    longest: int,
    indices: Sequence[int] | None = None,
    max_prompt_bucket: int = 0,
    demonstrations: bool = False,
) -> GroupBatch:
    """Pack B groups of G trajectories with their rewards and weights [B,G] for the policy loss.

    P is the bucket of the longest prompt, or of `max_prompt_bucket` tokens if that is more. T is the bucket of
    `longest`, the maximum number of tokens of a completion. The loss mask excludes tokens of the environment. `indices`
    selects the groups to pack (None: all B); P and T are those of the whole batch. With `demonstrations`, the batch
    marks the completions that are demonstrations; they have no log-probabilities of the sampler. `rollout_logprobs` of
    the batch are those of the policy itself when it sampled, `behavior_logprobs` those of the distribution that it
    sampled from, with penalties and top-k or top-p.
    """
    width = bucket(longest)
    prompt_width = bucket(max(max_prompt_bucket, *(len(group[0].prompt.token_ids) for group in groups)))
    if indices is not None:
        groups, reward, weight = [groups[i] for i in indices], reward[list(indices)], weight[list(indices)]
    b, g = weight.shape
    prompt, prompt_len = pad_tokens([group[0].prompt.token_ids for group in groups], prompt_width)
    flat = [trajectory for group in groups for trajectory in group]
    completion, length = pad_tokens([trajectory.completion for trajectory in flat], width)
    mask = np.zeros((b * g, width), bool)
    rollout, behavior = np.zeros((b * g, width), np.float32), np.zeros((b * g, width), np.float32)
    is_demonstration = np.array([trajectory.finish_reason == DEMONSTRATION for trajectory in flat])
    for i, trajectory in enumerate(flat):
        start = 0
        for turn in trajectory.turns:
            end = start + len(turn.token_ids)
            if is_demonstration[i]:
                mask[i, start:end] = True
            elif turn.logprobs:
                mask[i, start:end] = True
                rollout[i, start:end] = turn.logprobs
                behavior[i, start:end] = turn.behavior_logprobs
            start = end
    shape = (b, g, width)
    return _group_batch(
        prompt,
        prompt_len,
        completion.reshape(shape),
        length.reshape(b, g),
        loss_mask=mask.reshape(shape),
        weight=weight.astype(np.float32),
        behavior_logprobs=behavior.reshape(shape),
        rollout_logprobs=rollout.reshape(shape),
        reward=reward.astype(np.float32),
        truncated=np.array([t.finish_reason == "length" for t in flat]).reshape(b, g),
        demonstrated=is_demonstration.reshape(b, g) if demonstrations else None,
    )


def _group_batch(prompt: Any, prompt_len: Any, completion: Any, completion_len: Any, **arrays: Any) -> GroupBatch:
    """Build the pytree of NumPy arrays, with zeros for fields that are not among `arrays`."""
    per_token = np.zeros(completion.shape, np.float32)
    per_answer = np.zeros(completion_len.shape, np.float32)
    defaults: Record = {
        "behavior_logprobs": per_token,
        "rollout_logprobs": per_token,
        "reward": per_answer,
        "truncated": per_answer.astype(bool),
    }
    shared = (Segment(prompt, prompt_len),)
    return GroupBatch(shared=shared, completion=completion, completion_len=completion_len, **{**defaults, **arrays})


def share_schemas(batch: GroupBatch, prompts_per_schema: int) -> GroupBatch:
    """Return a host's batch in which each `prompts_per_schema` consecutive prompts share their common prefix.

    The prefix is their database's schema, up to the first token in which they differ. It becomes the first segment of
    `batch.shared`, and the rest of each prompt, of at least one token, the second.
    """
    (prompt,) = batch.shared
    tokens, length = np.asarray(prompt.tokens), np.asarray(prompt.length)
    groups, lengths = tokens.reshape(-1, prompts_per_schema, tokens.shape[1]), length.reshape(-1, prompts_per_schema)
    prefix_length = np.logical_and.accumulate((groups == groups[:, :1]).all(axis=1), axis=1).sum(axis=1)
    common = np.repeat(np.minimum(prefix_length, lengths.min(axis=1) - 1), prompts_per_schema).astype(np.int32)
    prefixes, _ = pad_tokens([row[:n] for row, n in zip(tokens, common, strict=True)], tokens.shape[1])
    remainders = [row[start:end] for row, start, end in zip(tokens, common, length, strict=True)]
    suffixes = pad_tokens(remainders, bucket(max(map(len, remainders)), smallest=64))  # each width compiles a program
    shared = Segment(prefixes, common), Segment(*suffixes)  # type: ignore[arg-type] # NumPy's
    return dataclasses.replace(batch, shared=shared, prompts_per_schema=prompts_per_schema)


def with_packed_rows(batch: GroupBatch) -> GroupBatch:
    """Return a host's batch whose completions are packed into rows of T tokens, R per prompt; unchanged if R >= G.

    R is the maximum that a prompt of the batch needs, rounded up to a bucket, so that a run compiles few shapes.
    """
    width, group = batch.completion.shape[2], batch.completion.shape[1]
    fits = [first_fit(lengths, width) for lengths in np.asarray(batch.completion_len)]
    rows = bucketed_rows([len(used) for _, used in fits])
    if rows >= group:
        return batch
    length = np.zeros((len(fits), rows), np.int32)
    for row_lengths, (_, used) in zip(length, fits, strict=True):
        row_lengths[: len(used)] = used
    packed: Record = {"packed_start": np.stack([start for start, _ in fits]), "packed_length": length}
    return dataclasses.replace(batch, **packed)


def order_by_rows(
    groups: Sequence[Sequence[Trajectory]],
    longest: int,
    max_prompt_bucket: int,
    batch_size: int,
    micro_batches: MicroBatches,
    prompts_per_schema: int = 1,
) -> list[int]:
    """Return an order of groups for packing, in which the groups of a micro-batch need similar numbers of rows.

    Each `batch_size` consecutive groups are the batch of an update, which `micro_batches` splits into parts; a group
    stays in its batch. `longest` and `max_prompt_bucket` are those of `pack_groups`. Each `prompts_per_schema`
    consecutive groups share a schema and stay together.
    """
    width, order = bucket(longest), list[int]()
    prompt = bucket(max(max_prompt_bucket, *(len(group[0].prompt.token_ids) for group in groups)))
    rows = [
        len(first_fit(np.array([len(trajectory.completion) for trajectory in group]), width)[1]) for group in groups
    ]
    min_rows = row_counts(min(bucketed_rows(rows), len(groups[0])))[0]
    # From here on, a unit is `prompts_per_schema` groups, and needs the rows of its largest group.
    units_per_batch = batch_size // prompts_per_schema
    unit_rows = [max(rows[i : i + prompts_per_schema]) for i in range(0, len(rows), prompts_per_schema)]
    parts = micro_batches.parts_of(units_per_batch, prompt, min_rows * prompts_per_schema, width)
    for start in range(0, len(unit_rows), units_per_batch):
        order += [start + i for i in order_for_parts(unit_rows[start : start + units_per_batch], parts)]
    return [i * prompts_per_schema + j for i in order for j in range(prompts_per_schema)]


def score_learned_only(batch: GroupBatch) -> GroupBatch:
    """Return a packed batch with `scored` [B,K], the positions of learned tokens; unchanged if it is not packed.

    The model computes logits at these positions only. K is the bucket of the maximum number of learned tokens per
    prompt, so that a run compiles few shapes, but at most the number R·T of positions. The value R·T pads `scored`.
    """
    if batch.packed_start is None or batch.packed_length is None:
        return batch
    start, width = np.asarray(batch.packed_start), batch.completion.shape[2]
    learned = np.asarray(batch.loss_mask) & (np.arange(width) < np.asarray(batch.completion_len)[..., None])
    positions = [(start[i][:, None] + np.arange(width))[learned[i]] for i in range(len(start))]
    num_positions = batch.packed_length.shape[1] * width
    size = min(bucket(max(len(learned_positions) for learned_positions in positions), smallest=8), num_positions)
    scored = np.full((len(positions), size), num_positions, np.int32)
    for row, learned_positions in zip(scored, positions, strict=True):
        row[: len(learned_positions)] = learned_positions
    fields: Record = {"scored": scored}
    return dataclasses.replace(batch, **fields)
