"""The section `rollout`: the engine that samples training answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import Above, Among, Matches, OneOf, PositiveInt, Synonyms

_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class RolloutConfig:
    """The engine that samples training answers, and its KV cache.

    At the start of a run `memory` becomes numbers of KV blocks, which the run's `config.yaml` keeps: a resumed run has
    as many on any machine. Where the cache has no room, prompts and answers wait.
    """

    max_num_seqs: Annotated[
        PositiveInt,
        "Number of decode slots: answers that are generated at the same time.",
        Synonyms(verl=f"{_ROLLOUT}.max_num_seqs", note="of all engines together; verl's is per engine"),
    ] = 128
    memory: Annotated[
        float,
        Above(0, most=1),
        "Largest share of a device's memory that the KV cache takes; on CPUs, of the machine's memory.",
        Synonyms(
            trl="vllm_gpu_memory_utilization",
            verl=f"{_ROLLOUT}.gpu_memory_utilization",
            note="of the KV cache alone; theirs include the engine's weights",
        ),
    ] = 0.4
    prompt_blocks: Annotated[int, "Number of KV blocks for prompts; 0 derives it from `rollout.memory`."] = 0
    completion_blocks: Annotated[int, "Number of KV blocks for answers; 0 derives it from `rollout.memory`."] = 0
    prefix_blocks: Annotated[int, "Number of KV blocks for cached prefixes; 0 derives it from `rollout.memory`."] = 0
    exact: Annotated[
        bool,
        "Compare the policy with the engine's own log-probabilities of its tokens, under the full distribution, "
        "instead of the trainer's. The ratio then includes the difference between sampler and trainer, which is "
        "clipped with it; `policy/sampler_…` no longer measures it.",
        Synonyms(verl="algorithm.rollout_correction.bypass_mode"),
    ] = False
    attention: Annotated[
        str,
        OneOf("xla", "pallas"),
        "Attention backend of decode steps: `xla`, or on one GPU or TPU the kernel `pallas` "
        "(`models/attention/paged_kernel.py`).",
    ] = "xla"
    mesh: Annotated[
        str,
        Matches(
            r"auto|training|[1-9]\d*x[1-9]\d*", "auto, training, or replicas x tensor such as 8x1", verb="is none of"
        ),
        "Layout of the run's devices during sampling. `training` keeps the mesh of training; `8x4` makes eight copies "
        "of the weights, each over four devices of one process. A copy has an equal part of the slots, and KV blocks "
        "of its own. `auto` chooses the fastest layout by formula (on CPUs, `training`). Several turns need copies "
        "where a run has several processes.",
        Synonyms(
            trl="vllm_tensor_parallel_size",
            verl=f"{_ROLLOUT}.tensor_model_parallel_size",
            note="theirs are the second number",
        ),
    ] = "auto"
    ahead: Annotated[
        int,
        Among(0, 1),
        "With 1, slots that a rollout's last answers leave free begin the next rollout's questions, which continue "
        "under the newer policy. `grpo.loss.tis_clip_max` bounds the weight that corrects for it. "
        "`rollout/stale_tokens` is "
        "the share of such tokens; `rollout/staleness` is the mean number of updates between a token and the end of "
        "its rollout, and `policy/sampler_…` includes the policy's change. For answers of one turn, where few answers "
        "take the longest.",
    ] = 0
