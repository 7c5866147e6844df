"""The section `rollout`: the engine that samples training answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import Above, Among, Matches, OneOf, PositiveInt, Synonyms

_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class RolloutConfig:
    """The engine that samples training answers, and its KV cache.

    The cache consists of KV blocks, which hold a fixed number of tokens. At the start of a run, `memory` is converted
    to numbers of blocks, which are saved in the run's `config.yaml`, so that a resumed run has the same numbers on any
    machine. If the cache is full, prompts and answers wait.
    """

    max_num_seqs: Annotated[
        PositiveInt,
        "Number of decode slots: answers that are generated concurrently.",
        Synonyms(verl=f"{_ROLLOUT}.max_num_seqs", note="over all engines; verl's is per engine"),
    ] = 128
    memory: Annotated[
        float,
        Above(0, maximum=1),
        "Maximum share of a device's memory for the KV cache; on CPUs, of the machine's memory.",
        Synonyms(
            trl="vllm_gpu_memory_utilization",
            verl=f"{_ROLLOUT}.gpu_memory_utilization",
            note="of the KV cache only; theirs include the engine's weights",
        ),
    ] = 0.4
    prompt_blocks: Annotated[int, "Number of KV blocks for prompts; 0 derives it from `rollout.memory`."] = 0
    completion_blocks: Annotated[int, "Number of KV blocks for answers; 0 derives it from `rollout.memory`."] = 0
    prefix_blocks: Annotated[
        int, "Number of KV blocks for cached prefixes of earlier prompts; 0 derives it from `rollout.memory`."
    ] = 0
    exact: Annotated[
        bool,
        "Use the engine's log-probabilities as the old policy's in the ratio, under the full distribution, instead of "
        "the trainer's. The ratio then includes the difference between sampler and trainer, which is clipped with it; "
        "`policy/sampler_…` no longer measures it.",
        Synonyms(verl="algorithm.rollout_correction.bypass_mode"),
    ] = False
    attention: Annotated[
        str,
        OneOf("xla", "pallas"),
        "Attention backend of decode steps: `xla`, or, on one GPU or TPU, the kernel `pallas` "
        "(`models/attention/paged_kernel.py`).",
    ] = "xla"
    mesh: Annotated[
        str,
        Matches(r"auto|training|[1-9]\d*x[1-9]\d*", "auto, training, or replicas x tensor such as 8x1"),
        "Layout of the run's devices during sampling. `training` uses the mesh of training; `8x4` creates eight "
        "replicas of the weights, each over four devices of one process, with an equal share of the slots and its own "
        "KV blocks. `auto` chooses the fastest layout by formula (on CPUs, `training`). Several turns with several "
        "processes require replicas.",
        Synonyms(
            trl="vllm_tensor_parallel_size",
            verl=f"{_ROLLOUT}.tensor_model_parallel_size",
            note="theirs are the second number",
        ),
    ] = "auto"
    ahead: Annotated[
        int,
        Among(0, 1),
        "With 1, slots that become free at the end of a rollout start the next rollout's questions, which continue "
        "under the newer policy. `grpo.loss.tis_clip_max` limits the weight that corrects for it. "
        "`rollout/stale_tokens` is the share of such tokens; `rollout/staleness` is the mean number of updates between "
        "a token and the end of its rollout, and `policy/sampler_…` includes the policy's change. It requires answers "
        "of one turn, and helps if few answers are much longer than the others.",
    ] = 0
