"""The section `grpo`: the objective of reinforcement learning and its batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveInt
from jaxrl_sql.config.optim import OptimConfig


@dataclass(frozen=True)
class GrpoConfig:
    """The objective and its numbers (RL steps of `prompts` x `num_generations` answers; `minibatches` updates a step).

    `gradient_accumulation_steps` cuts each update's batch into that many parts, computed one after another for less
    memory (0: as many as leave a prompt and its answers at a time to each shard of `mesh.data` x `mesh.fsdp`). In its
    place `max_tokens_per_device` above 0 says how many tokens, of prompts and answers with their padding, a shard may
    run at a time: as many prompts as they allow, and where a group is too much some of its answers at a time.
    `packing` puts a group's answers into fewer rows of the longest answer's length, each seeing itself alone: the same
    sums over less padding. Of the prompts of an update each `questions` in a row are of one database, whose schema is
    then run once for them.

    `oversample` times as many questions are answered as the update takes: those whose answers differ in reward first.
    Up to `max_extra_generations` more rounds are generated while too few do. `filter_groups`: which groups teach:
    `reward`, those whose rewards differ, or `accuracy`, those with right and wrong answers, as DAPO has it: else what a
    reward pays for wrong answers that run is all that hard questions teach. With `demonstrations` a group without a
    right answer learns its question's demonstration, the gold where it has none, in place of its last answer, and is
    chosen among others as if that had been sampled (in a chat only where the question has a `reasoning`).
    One rollout serves the updates of `steps_per_generation` steps (1: online; more: batch RL, on stored
    log-probabilities). loss_agg_mode: sequence_mean
    | token_mean | constant; advantage: group | batch | batch_centered | none | leave_one_out (`group` divides by the
    group's standard deviation, with `group_std_ddof` 0 or 1: torch's, and so TRL's and verl's, is 1; `batch` by that
    of all rewards, as TRL does, `batch_centered` by that of the rewards without their groups' means);
    kl_kind: k1 | k2 | k3, with coefficient `kl_coef` (0: no KL), as a loss or taken off the reward by `kl_in` loss |
    reward (k1 in the reward only); `tis_clip_max` caps exp(old - behavior), 0 leaves that weight out.
    importance_sampling_level: token | sequence (GSPO), the second with clip bounds of its own size (its paper: 3e-4 and
    4e-4). `num_iterations`: how often a step's batch is learned, `minibatches` updates each time.
    `max_completion_tokens`: what `constant` divides by (0: the most tokens that an answer may have, of all its turns).

    algorithm: grpo | ppo. PPO has a value head instead of a group to compare with, so `advantage` is not read and a
    group may be 1: advantages are GAE's with `discount` and `gae_lambda`, normalised over the batch's trained tokens.
    The head's loss has the weight `value_coef`, and its values move at most `value_clip` a step (0: freely).
    """

    steps: int = 100
    prompts: PositiveInt = 16
    questions: PositiveInt = 1
    oversample: PositiveInt = 1
    max_extra_generations: int = 0
    filter_groups: Annotated[str, OneOf("reward", "accuracy")] = "reward"
    demonstrations: bool = False
    steps_per_generation: PositiveInt = 1
    num_generations: PositiveInt = 8
    minibatches: PositiveInt = 1
    gradient_accumulation_steps: int = 1
    max_tokens_per_device: int = 0
    packing: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    kl_coef: float = 0.0
    kl_kind: Annotated[str, OneOf("k1", "k2", "k3")] = "k3"
    entropy_bonus: float = 0.0
    loss_agg_mode: Annotated[str, OneOf("sequence_mean", "token_mean", "constant")] = "token_mean"
    max_completion_tokens: int = 0
    advantage: Annotated[str, OneOf("group", "batch", "batch_centered", "none", "leave_one_out")] = "group"
    group_std_ddof: int = 0
    mask_truncated: bool = False
    tis_clip_max: float = 2.0
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-4, schedule="constant", warmup_steps=5))
    num_iterations: PositiveInt = 1
    kl_in: Annotated[str, OneOf("loss", "reward")] = "loss"
    importance_sampling_level: Annotated[str, OneOf("token", "sequence")] = "token"
    algorithm: Annotated[str, OneOf("grpo", "ppo")] = "grpo"
    gae_lambda: float = 1.0
    discount: float = 1.0
    value_coef: float = 0.5
    value_clip: float = 0.2
