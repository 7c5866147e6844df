"""The section `grpo`: the objective of reinforcement learning and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import Above, Among, AtLeast, OneOf, PositiveInt, Share, Synonyms, ZeroOr
from jaxrl_sql.config.optim import OptimConfig

_ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class ClipConfig:
    """Clip range of the policy ratio (PPO, Schulman et al. 2017, arXiv:1707.06347)."""

    low: Annotated[
        Share,
        "Lower clip bound of the policy ratio: 1 minus this (PPO, Schulman et al. 2017, arXiv:1707.06347).",
        Synonyms(trl="epsilon", verl=f"{_ACTOR}.clip_ratio_low"),
    ] = 0.2
    high: Annotated[
        float,
        "Upper clip bound of the policy ratio: 1 plus this; DAPO (arXiv:2503.14476) uses 0.28.",
        Synonyms(trl="epsilon_high", verl=f"{_ACTOR}.clip_ratio_high", note="TRL's default is its epsilon"),
    ] = 0.2
    dual: Annotated[
        float,
        ZeroOr(Above(1), "to disable it"),
        "Upper bound of the policy ratio for negative advantages (dual clip, Ye et al. 2020, arXiv:1912.09729); 0 sets "
        "none.",
        Synonyms(trl="delta", verl=f"{_ACTOR}.clip_ratio_c", note="verl's default is 3"),
    ] = 0.0


@dataclass(frozen=True)
class KlConfig:
    """The KL divergence from the initial policy of the phase."""

    coef: Annotated[
        float,
        "Coefficient of the KL divergence from the initial policy; 0 omits it.",
        Synonyms(
            trl="beta",
            verl=f"{_ACTOR}.kl_loss_coef",
            note="subtracted from the reward, verl's algorithm.kl_ctrl.kl_coef",
        ),
    ] = 0.0
    estimator: Annotated[
        str,
        OneOf("k1", "k2", "k3"),
        "Estimator of the KL divergence (Schulman 2020, Approximating KL Divergence); `k1` is for the reward only.",
        Synonyms(
            verl=f"{_ACTOR}.kl_loss_type",
            note="k1 is verl's kl, k2 its mse, k3 its low_var_kl; TRL's GRPO always uses k3",
        ),
    ] = "k3"
    placement: Annotated[
        str,
        OneOf("loss", "reward"),
        "Use of the KL divergence: added to the loss, or subtracted from the reward.",
        Synonyms(verl=f"{_ACTOR}.use_kl_loss", note="reward is verl's algorithm.use_kl_in_reward"),
    ] = "loss"

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        if self.coef > 0 and self.estimator == "k1" and self.placement != "reward":
            yield (
                f"{name}.estimator=k1 as a loss has zero expected gradient: use k2 or k3, or {name}.placement=reward"
            )


@dataclass(frozen=True)
class PpoConfig:
    """PPO's value head and advantages, with `grpo.algorithm` of `ppo`."""

    gae_lambda: Annotated[
        Share,
        "Lambda of the generalized advantage estimates of PPO (GAE, Schulman et al. 2015, arXiv:1506.02438).",
        Synonyms(trl="lam", verl="algorithm.lam", note="of TRL's PPOConfig, whose default is 0.95"),
    ] = 1.0
    discount: Annotated[
        Share,
        "Discount of later rewards per token, for PPO.",
        Synonyms(trl="gamma", verl="algorithm.gamma", note="of TRL's PPOConfig"),
    ] = 1.0
    value_coef: Annotated[
        float,
        "Weight of the value head's loss, for PPO.",
        Synonyms(trl="vf_coef", note="of TRL's PPOConfig, whose default is 0.1"),
    ] = 0.5
    value_clip: Annotated[
        float,
        "Maximum change of a value in the updates of a step, for PPO; 0 sets no limit.",
        Synonyms(trl="cliprange_value", verl="critic.cliprange_value", note="of TRL's PPOConfig"),
    ] = 0.2


@dataclass(frozen=True)
class LossConfig:
    """Weights and aggregation of the tokens' losses."""

    agg_mode: Annotated[
        str,
        OneOf("sequence_mean", "token_mean", "constant"),
        "Aggregation of the tokens' losses. They are averaged per answer first (GRPO), over all tokens (DAPO), or "
        "summed and divided by a `constant` per answer (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).",
        Synonyms(
            trl="loss_type",
            verl=f"{_ACTOR}.loss_agg_mode",
            note="TRL's grpo, dapo, dr_grpo; verl's seq-mean-token-mean, token-mean, seq-mean-token-sum-norm",
        ),
    ] = "token_mean"
    max_completion_tokens: Annotated[
        int,
        "Divisor for `grpo.loss.agg_mode` of `constant`, in tokens; 0 uses the maximum length of an answer, including "
        "all turns.",
        Synonyms(
            trl="max_completion_length",
            verl=f"{_ACTOR}.loss_scale_factor",
            note="as a divisor; see also max_new_tokens",
        ),
    ] = 0
    importance_sampling_level: Annotated[
        str,
        OneOf("token", "sequence"),
        "Level of the policy ratio. `sequence` is GSPO (arXiv:2507.18071), which needs a smaller clip range: 3e-4 and "
        "4e-4 in its paper.",
        Synonyms(
            trl="importance_sampling_level",
            verl=f"{_ACTOR}.policy_loss.loss_mode",
            note="token is verl's vanilla, sequence its gspo",
        ),
    ] = "token"
    mask_truncated: Annotated[
        bool,
        "Exclude answers that reached their token limit from the loss.",
        Synonyms(trl="mask_truncated_completions"),
    ] = False
    tis_clip_max: Annotated[
        float,
        ZeroOr(AtLeast(1), "to disable the weight"),
        "Maximum importance weight of a token: its probability by the trainer, divided by that by the sampler. The "
        "weight corrects for differences between sampler and trainer; 0 disables it.",
        Synonyms(
            trl="vllm_importance_sampling_clip_max",
            verl="algorithm.rollout_correction.rollout_is_threshold",
            note="per token and truncated: TRL's mode token_truncate, verl's rollout_is=token",
        ),
    ] = 2.0
    entropy_bonus: Annotated[
        float,
        "Coefficient of the tokens' entropy, which is added to the objective; 0 omits it.",
        Synonyms(trl="entropy_coef", verl=f"{_ACTOR}.entropy_coeff", note="TRL's is always a mean over tokens"),
    ] = 0.0


@dataclass(frozen=True)
class DynamicSamplingConfig:
    """Oversampling of groups, and the selection of the groups to train on."""

    oversample: Annotated[
        PositiveInt,
        "Groups sampled per round, as a multiple of `grpo.prompts`. A step learns from the `grpo.prompts` groups whose "
        "rewards differ most.",
        Synonyms(
            verl="data.gen_batch_size",
            note="of verl's DAPO recipe: grpo.dynamic_sampling.oversample x grpo.prompts; TRL has no such setting",
        ),
    ] = 1
    max_extra_generations: Annotated[
        int,
        "Maximum number of additional rounds of sampling while too few groups have different rewards (DAPO, Yu et al. "
        "2025, arXiv:2503.14476); 0 samples one round.",
        Synonyms(verl="algorithm.filter_groups.max_num_gen_batches", note="verl's counts the first round too"),
    ] = 0
    filter_groups: Annotated[
        str,
        OneOf("reward", "accuracy"),
        "Groups to train on: those with different rewards, or those with correct and wrong answers (as in DAPO). With "
        "`reward`, a group without a correct answer may be used, because wrong answers that execute may have a higher "
        "reward than those that fail.",
        Synonyms(verl="algorithm.filter_groups.metric", note="accuracy is verl's acc"),
    ] = "reward"


@dataclass(frozen=True)
class GrpoConfig:
    """Reinforcement learning: a step trains on `prompts` x `num_generations` answers, in `minibatches` updates."""

    steps: Annotated[
        int,
        "Number of steps; 0 skips reinforcement learning.",
        Synonyms(
            trl="max_steps",
            verl="trainer.total_training_steps",
            note="TRL counts updates; here a step may have several (grpo.minibatches, grpo.num_iterations)",
        ),
    ] = 100
    prompts: Annotated[
        PositiveInt,
        "Number of questions per step, over all devices.",
        Synonyms(
            trl="per_device_train_batch_size",
            verl="data.train_batch_size",
            note="TRL's is the answers of a backward pass per device; its generation_batch_size is grpo.prompts x "
            "grpo.num_generations x grpo.steps_per_generation",
        ),
    ] = 16
    questions: Annotated[
        PositiveInt,
        "Number of consecutive questions of an update that share a database. The schema, the common first part of "
        "their prompts, is then computed once.",
    ] = 1
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)
    demonstrations: Annotated[
        bool,
        "In a group without a correct answer, replace the last answer by the question's demonstration or gold query. "
        "The group is then treated like a sampled one. In a chat, answers begin with reasoning, so this applies only "
        "to questions that have a `reasoning`.",
    ] = False
    steps_per_generation: Annotated[
        PositiveInt,
        "Number of steps that train on one rollout: 1 is online; more is batch RL, with the log-probabilities of the "
        "policy that sampled the answers.",
        Synonyms(trl="steps_per_generation", note="TRL counts its gradient accumulation steps"),
    ] = 1
    num_generations: Annotated[
        PositiveInt,
        "Number of answers per question (group size).",
        Synonyms(trl="num_generations", verl="actor_rollout_ref.rollout.n"),
    ] = 8
    minibatches: Annotated[
        PositiveInt,
        "Number of updates per pass over a step's answers; it divides `grpo.prompts`.",
        Synonyms(
            verl=f"{_ACTOR}.ppo_mini_batch_size", note="verl's is the prompts of an update: grpo.prompts / minibatches"
        ),
    ] = 1
    gradient_accumulation_steps: Annotated[
        int,
        "Number of parts into which an update's batch is split to save memory; they are computed sequentially. With 0, "
        "each shard of `mesh.data` x `mesh.fsdp` computes one prompt and its answers at a time.",
        Synonyms(
            trl="gradient_accumulation_steps",
            verl=f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
            note="it splits the batch and does not enlarge it; verl's is the answers of a part per GPU",
        ),
    ] = 1
    max_tokens_per_device: Annotated[
        int,
        "Maximum number of tokens that a shard computes at a time, including prompts and padding, instead of "
        "`grpo.gradient_accumulation_steps`. A group that exceeds it is computed in several parts; 0 sets no limit.",
        Synonyms(verl=f"{_ACTOR}.ppo_max_token_len_per_gpu", note="above 0 is verl's use_dynamic_bsz"),
    ] = 0
    packing: Annotated[
        bool,
        "Pack several answers of a group into one row of the longest answer's length: the same sums with less padding. "
        "Answers do not attend to each other.",
    ] = False
    clip: ClipConfig = field(default_factory=ClipConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    advantage: Annotated[
        str,
        OneOf("group", "batch", "batch_centered", "none", "leave_one_out"),
        "Scale of the rewards after the group's mean is subtracted. `group` divides by the group's standard deviation "
        "(GRPO, Shao et al. 2024, arXiv:2402.03300), `batch` by that of all rewards (arXiv:2508.08221), "
        "`batch_centered` by that of the rewards without their groups' means (REINFORCE++, arXiv:2501.03262). `none` "
        "does not divide (Dr. GRPO); `leave_one_out` subtracts the mean of the other answers (RLOO, arXiv:2402.14740).",
        Synonyms(
            trl="scale_rewards",
            verl="algorithm.adv_estimator",
            note="group is verl's grpo, leave_one_out its rloo, none its norm_adv_by_std_in_grpo=false",
        ),
    ] = "group"
    group_std_ddof: Annotated[
        int,
        Among(0, 1),
        "Delta degrees of freedom of the standard deviation for `grpo.advantage` of `group`; PyTorch, TRL and verl use "
        "1.",
    ] = 1
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(schedule="constant", warmup_steps=5))
    num_iterations: Annotated[
        PositiveInt,
        "Number of passes over a step's answers, each with `grpo.minibatches` updates.",
        Synonyms(trl="num_iterations", verl=f"{_ACTOR}.ppo_epochs"),
    ] = 1
    algorithm: Annotated[
        str,
        OneOf("grpo", "ppo"),
        "Source of the advantages: the group's rewards, or with `ppo` a value head. PPO normalises them over the "
        "batch's trained tokens, does not read `grpo.advantage`, and allows groups of 1.",
        Synonyms(verl="algorithm.adv_estimator", note="ppo is verl's gae"),
    ] = "grpo"
    ppo: PpoConfig = field(default_factory=PpoConfig)

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        yield from self._batch_errors(name)
        if self.num_generations < 2 and self.steps > 0 and self.algorithm != "ppo":
            yield (
                f"{name}.num_generations={self.num_generations} must be 2 or more, because advantages compare answers; "
                f"or set {name}.algorithm=ppo"
            )
        if self.demonstrations and self.algorithm != "grpo":
            yield f"{name}.demonstrations is incompatible with {name}.algorithm=ppo, which has no groups"

    def _batch_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each pair of batch sizes or steps that must divide each other and do not."""
        prompts, parts = self.prompts // self.minibatches, self.gradient_accumulation_steps
        if self.prompts % self.minibatches:
            yield f"{name}.minibatches={self.minibatches} must divide {name}.prompts={self.prompts}"
        if prompts % (parts or 1):
            yield f"{name}.gradient_accumulation_steps={parts} must divide the {prompts} prompts of an update"
        elif prompts % ((parts or 1) * self.questions):
            yield (
                f"{name}.questions={self.questions} must divide the prompts of each part of an update, "
                f"{prompts // (parts or 1)}"
            )
        if self.max_tokens_per_device and parts > 1:
            yield (
                f"{name}.max_tokens_per_device={self.max_tokens_per_device} replaces "
                f"{name}.gradient_accumulation_steps={parts}, which must be 1"
            )
        if self.steps % self.steps_per_generation:
            yield f"{name}.steps_per_generation={self.steps_per_generation} must divide {name}.steps={self.steps}"
