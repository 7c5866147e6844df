"""Keys of older configurations, and what each is called now: an old one is refused by its new name."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    "data.begin": "data.assistant_prefill",
    "data.keep": "data.include_ids",
    "data.mysql_share": "data.dialects.mysql",
    "eval.every": "validation.every",
    "eval.max_new_tokens": "validation.max_new_tokens",
    "eval.slots": "validation.max_num_seqs",
    "eval.turns": "validation.turns",
    "evaluate.slots": "evaluate.max_num_seqs",
    "filter.one_in": "filter.subsample_every",
    "grpo.accumulate": "grpo.gradient_accumulation_steps",
    "grpo.aggregation": "grpo.loss_agg_mode",
    "grpo.block": "grpo.steps_per_generation",
    "grpo.epochs": "grpo.num_iterations",
    "grpo.group": "grpo.num_generations",
    "grpo.kl": "grpo.kl_coef",
    "grpo.max_importance_weight": "grpo.tis_clip_max",
    "grpo.ratio": "grpo.importance_sampling_level",
    "grpo.refills": "grpo.max_extra_generations",
    "health.equal_steps": "health.zero_advantage_patience",
    "restart.final_lr_ratio": "second_stage.final_lr_ratio",
    "restart.steps": "second_stage.steps",
    "run.few_programs": "run.pad_to_max",
    "run.wandb": "run.trackers",
    "sampling.slots": "rollout.max_num_seqs",
    "sft.accumulate": "sft.gradient_accumulation_steps",
    "sft.rename": "sft.shuffle_identifiers",
}
